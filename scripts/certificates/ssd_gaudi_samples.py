"""Augmented photos of ssd_gaudi.py: drawn once by recipe `ssd-gaudi`, for both sides, with what the original needs to make its own.

Letters: M photos   n objects of all photos   S = 300 pixels
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from ssd_gaudi_ours import BY_CELL, LAST_WINS, build, matched, our_recipe

from paceline.data.batch import Objects, detection_batch
from paceline.data.index.manifest import Manifest
from paceline.data.prepare.auto_prepare import prepare_if_needed
from paceline.data.transforms.decode import SampleSpec
from paceline.data.transforms.image_io import read_header
from paceline.data.transforms.sample import decode_and_transform
from paceline.models.registry import WORKLOADS
from paceline.models.task import Task

FIRST, TIES = "1.5.0", (LAST_WINS, BY_CELL)


def write_samples(out: Path, data: Path, count: int) -> None:
    """M augmented photos of COCO in the order of the set; first, for each error in TIES, one whose targets it changes.

    Boxes are y, x, y, x in fractions of the crop; `categories` are COCO's own numbers, found by each class's name.
    """
    recipe = our_recipe(FIRST, 1)
    task = WORKLOADS["detection"].open(recipe, Manifest.load(prepare_if_needed(data, kind="boxes")))
    drawn = [draw_of(task, *divmod(place, task.data.train_images)) for place in range(count)]
    changed = changed_by_ties([draw.label for draw, _ in drawn])
    first = [min(changed[name]) for name in TIES]
    drawn = [drawn[place] for place in dict.fromkeys((*first, *range(count)))]
    draws, photos = [draw for draw, _ in drawn], [photo for _, photo in drawn]
    classes = np.concatenate([draw.label.classes for draw in draws])
    kinds = json.loads((data / "annotations" / "instances_train2017.json").read_text())["categories"]
    numbers = {kind["name"]: kind["id"] for kind in kinds}
    np.savez(
        out,
        pixels=rendered(draws, photos),
        starts=np.cumsum([0, *(len(draw.label.classes) for draw in draws)]),
        boxes=np.concatenate([draw.label.boxes for draw in draws])[:, [1, 0, 3, 2]],
        classes=classes,
        categories=np.array([numbers[task.data.classes[number - 1]] for number in classes]),
        # The same photos as they are stored, and what was drawn for each.
        photos=np.frombuffer(b"".join(photos), np.uint8),
        photo_starts=np.cumsum([0, *map(len, photos)]),
        region=np.array([region_of(draw) for draw in draws], np.float32),
        flip=np.array([draw.flip for draw in draws]),
        amounts=np.array([amounts_of(draw) for draw in draws], np.float32),
        changed_by_ties=np.array([len(changed[name]) for name in TIES]),
        hue_in_degrees=rendered([in_degrees(draw) for draw in draws], photos),
    )


def draw_of(task: Task, epoch: int, number: int) -> tuple[SampleSpec, bytes]:
    """What is drawn for training photo `number`, and its bytes."""
    index, records = int(task.data.train_numbers[number]), task.data.train.index
    data, name = records.read(index), records.name(index)
    return task.data.draw_train(cast(Any, None), epoch, index, read_header(data, name), name), data


def changed_by_ties(labels: Sequence[Objects]) -> dict[str, list[int]]:
    """Places of the samples whose targets each error in TIES changes."""
    found: dict[str, list[int]] = {name: [] for name in TIES}
    recipes = {name: our_recipe(FIRST, 1, name) for name in ("", *TIES)}
    detectors = {name: build(recipe) for name, recipe in recipes.items()}
    for place, objects in enumerate(labels):
        batch = detection_batch(torch.zeros(1, 3, 1, 1), [objects], torch.zeros(1))
        slots = {}
        for name, recipe in recipes.items():
            numbers, positives = matched(batch, recipe, detectors[name])
            slots[name] = numbers.masked_fill(~positives, -1)
        for name in TIES:
            if not torch.equal(slots[name], slots[""]):
                found[name].append(place)
    return found


def rendered(draws: Sequence[SampleSpec], photos: Sequence[bytes]) -> np.ndarray:
    """(M, S, S, 3) uint8"""
    pixels = np.zeros((len(draws), 300, 300, 3), np.uint8)
    for out, draw, photo in zip(pixels, draws, photos):
        decode_and_transform(photo, draw, out)
    return pixels


def in_degrees(draw: SampleSpec) -> SampleSpec:
    """The hue's turn, as if its range were given in degrees."""
    assert draw.color is not None
    return draw._replace(color=draw.color._replace(turns=draw.color.turns / 360))


def region_of(draw: SampleSpec) -> tuple[float, ...]:
    """Top, left, bottom, right of the crop in fractions of the photo."""
    window, height, width = draw.window, draw.header.height, draw.header.width
    bottom, right = window.top + window.height, window.left + window.width
    return window.top / height, window.left / width, bottom / height, right / width


def amounts_of(draw: SampleSpec) -> tuple[float, ...]:
    """Brightness to add (of 1), contrast, saturation, hue in turns."""
    color = draw.color
    assert color is not None
    return color.shift / 255, color.contrast, color.saturation, color.turns


def pixel_difference(pixels: np.ndarray, normalized: np.ndarray) -> dict[str, float]:
    """Our pixels (M, S, S, 3) uint8 beside the original's float32 ones, which may go on past black and white; ours end there.

    return  "levels": mean absolute difference, of 255; "hue": median turn of a photo's colors, in turns
    """
    photo = our_recipe(FIRST, 1).input
    levels, hues = [], []
    for own, other in zip(pixels.astype(np.float32), normalized):
        theirs = (255 * (other * np.array(photo.std) + np.array(photo.mean))).clip(0, 255)
        levels.append(np.abs(own - theirs).mean())
        hues.append(abs(np.angle((chroma(own) * chroma(theirs).conj()).sum())) / (2 * np.pi))
    return {"levels": float(np.mean(levels)), "hue": float(np.median(hues))}


def chroma(pixels: np.ndarray) -> np.ndarray:
    """Each pixel's color as a direction in the plane of hues, from (S, S, 3) RGB."""
    red, green, blue = np.moveaxis(pixels, -1, 0)
    return red - (green + blue) / 2 + 1j * (3**0.5 / 2 * (green - blue))
