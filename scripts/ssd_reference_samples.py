"""Augmented photos for ssd_reference.py, and what the MLPerf reference's own encoder and transform make of the same photos.

Letters: S = 300 pixels   A = 8732 default boxes   n objects
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from ssd_reference_systems import load_reference
from torch import Tensor

from paceline.config.recipes.ssd import SSDRecipe
from paceline.config.ssd import SSDModel, grid_sizes
from paceline.data.batch import Objects, detection_batch
from paceline.data.loader.sample_rng import SampleRng
from paceline.data.transforms.crop import ssd_crop
from paceline.data.transforms.image_io import read_header
from paceline.data.transforms.sample import decode_and_transform
from paceline.models.ops.anchors import anchor_to_cell, default_boxes
from paceline.models.ops.boxes import to_ltrb
from paceline.models.ops.matching import Tie, match
from paceline.models.ssd.transforms import clip_to_edges, sample_box_spec
from paceline.models.task import Task

COLOURS = ("brightness", "contrast", "saturation", "hue")


@dataclass(frozen=True)
class Sample:
    """One augmented photo, and how to make it again with the reference's own transform."""

    pixels: np.ndarray  # (S, S, 3) uint8
    objects: Objects
    photo: bytes
    window: tuple[int, int, int, int]  # left, top, right, bottom of the crop, pixels of the photo
    flip: bool
    order: tuple[int, ...]  # of the color changes, as numbers of COLOURS
    amounts: tuple[float, ...]  # of each color change, 0..1 within its range


class Recorded(SampleRng):
    """A sample's random numbers, written down as they are drawn."""

    def __init__(self, seed: int, epoch: int, index: int) -> None:
        super().__init__(seed, epoch, index)
        self.uniforms: list[float] = []
        self.integers: list[int] = []

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        self.uniforms.append(super().uniform())
        return low + (high - low) * self.uniforms[-1]

    def integer(self, low: int, high: int) -> int:
        self.integers.append(super().integer(low, high))
        return self.integers[-1]


def draw(task: Task, recipe: SSDRecipe, epoch: int, number: int) -> Sample:
    """Sample `number` of the training set in `epoch`."""
    photo, index = recipe.input, int(task.data.train_numbers[number])
    rows = slice(task.data.train.object_starts[index], task.data.train.object_starts[index + 1])
    wanted = task.data.wanted[rows]
    boxes, classes = task.data.train.boxes[rows][wanted], task.data.train.classes[rows][wanted]
    data, out = task.data.train.index.read(index), np.empty((photo.image_size, photo.image_size, 3), np.uint8)
    random = Recorded(recipe.seed, epoch, index)
    name = task.data.train.index.name(index)
    drawn = sample_box_spec(read_header(data, name, photo.exif), name, boxes, classes, random, photo)
    decode_and_transform(data, drawn, out)
    order = list(range(4))
    for last, other in zip((3, 2, 1), random.integers[-3:]):
        order[last], order[other] = order[other], order[last]
    height, width = int(task.data.train.index.heights[index]), int(task.data.train.index.widths[index])
    again = SampleRng(recipe.seed, epoch, index)
    window, _ = ssd_crop(height, width, clip_to_edges(boxes, height, width), again, photo)
    corners = (window.left, window.top, window.left + window.width, window.top + window.height)
    return Sample(
        out, drawn.label, data, corners, random.uniforms[-5] < photo.hflip, tuple(order), tuple(random.uniforms[-4:])
    )


def matched(sample: Sample, tie: Tie) -> tuple[Tensor, Tensor]:
    """Class (A,) and box (A, 4) ltrb of each default box, in the reference's order; class 0 and box 0 where negative."""
    batch = detection_batch(torch.zeros(1, 3, 1, 1), [sample.objects], torch.zeros(1))
    order = anchor_to_cell(grid_sizes(300)).argsort()
    anchors = to_ltrb(default_boxes(300, grid_sizes(300), SSDModel().scales))
    slots, positives = match(batch.boxes, batch.labels, anchors, tie=tie, order=order)
    labels, boxes = batch.labels[0, slots[0]] * positives[0], batch.boxes[0, slots[0]] * positives[0][:, None]
    return labels[order], boxes[order]


def same(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(left, right))


def choose(task: Task, recipe: SSDRecipe, wanted: int) -> tuple[list[tuple[int, int]], list[Sample]]:
    """(epoch, number) of the first samples, and the samples; one whose objects share a best default box comes first."""
    keys: list[tuple[int, int]] = []
    samples: list[Sample] = []
    tied = False
    for place in range(20 * wanted):
        key = divmod(place, task.data.train_images)
        sample = draw(task, recipe, *key)
        shares = not tied and not same(matched(sample, "last"), matched(sample, "first"))
        at = 0 if shares else len(keys)
        tied = tied or shares
        keys.insert(at, key)
        samples.insert(at, sample)
        if len(keys) >= wanted and tied:
            return keys[:wanted], samples[:wanted]
    raise SystemExit("no sample holds two objects with the same best default box: name a data set with more objects")


def reference_targets(folder: Path, samples: Sequence[Sample], tie: Tie) -> int:
    """How many samples our matching codes otherwise than the reference's encoder."""
    theirs = load_reference(folder)
    encoder = theirs.utils.Encoder(theirs.train.dboxes300_coco())
    different = 0
    for sample in samples:
        boxes, labels = encoder.encode(torch.from_numpy(sample.objects.boxes), torch.from_numpy(sample.objects.classes))
        our_labels, our_boxes = matched(sample, tie)
        chosen = labels > 0
        close = torch.allclose(to_ltrb(boxes[chosen]), our_boxes[chosen], rtol=0, atol=1e-6)
        different += not (torch.equal(labels, our_labels) and close)
    return different


def pixel_difference(folder: Path, samples: Sequence[Sample]) -> dict[str, float]:
    """Our pixels beside those of the reference's transform with the same crop, flip and random numbers.

    return  "levels": mean absolute difference, of 255; "hue": mean absolute difference of a photo's mean hue, turns
    """
    theirs = load_reference(folder)
    resize, jitter, to_tensor = theirs.utils.SSDTransformer(theirs.train.dboxes300_coco()).img_trans.transforms
    levels, hues = [], []
    for sample in samples:
        image = Image.open(io.BytesIO(sample.photo)).convert("RGB").crop(sample.window)
        if sample.flip:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        ranges = [getattr(jitter, name) for name in COLOURS]
        amounts = [low + (high - low) * share for (low, high), share in zip(ranges, sample.amounts)]
        given = (torch.tensor(sample.order), *amounts)
        jitter.get_params = lambda *_, given=given: given
        expected = to_tensor(jitter(resize(image))).permute(1, 2, 0).numpy() * 255
        levels.append(np.abs(expected - sample.pixels).mean())
        turn = np.angle(mean_chroma(sample.pixels.astype(np.float32)) * mean_chroma(expected).conjugate()) / (2 * np.pi)
        hues.append(abs(turn))
    return {"levels": float(np.mean(levels)), "hue": float(np.median(hues))}


def mean_chroma(pixels: np.ndarray) -> complex:
    """Mean hue of a photo as a direction in the plane of colors, from (S, S, 3) RGB."""
    red, green, blue = pixels.mean(axis=(0, 1))
    return complex(red - (green + blue) / 2, 3**0.5 / 2 * (green - blue))
