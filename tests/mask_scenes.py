"""Scenes of masks, for the tests of scoring: ground truth and detections with their run lengths."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from pycocotools import mask as official

from paceline.data.rle import RLE
from paceline.models.metrics.coco import Detections, GroundTruth


class Scene(NamedTuple):
    """The arguments of score_masks."""

    truth: GroundTruth
    wanted: RLE
    found: Detections
    masks: RLE


def strings(bitmaps: list[np.ndarray]) -> RLE:
    return RLE.of([official.encode(np.asfortranarray(bits))["counts"] for bits in bitmaps])


def truth_of(
    *images: list[tuple], sizes: list[tuple[int, int]] | None = None, num_classes: int = 3
) -> tuple[GroundTruth, RLE]:
    """Each image a list of (class, (H, W) bits) or (class, bits, "crowd"). sizes: of each image, else (200, 220)."""
    entries = [entry for image in images for entry in image]
    shapes = np.array(sizes or [(200, 220)] * len(images), np.int64).reshape(-1, 2)
    truth = GroundTruth(
        image_ids=10 * np.arange(len(images)),
        heights=shapes[:, 0],
        widths=shapes[:, 1],
        starts=np.cumsum([0] + [len(image) for image in images]),
        boxes=np.array([box_of(entry[1]) for entry in entries], np.float64).reshape(-1, 4),
        classes=np.array([entry[0] for entry in entries], np.int32),
        crowd=np.array([len(entry) > 2 for entry in entries], np.uint8),
        areas=np.array([entry[1].sum() for entry in entries], np.float64),
        num_classes=num_classes,
    )
    return truth, strings([entry[1] for entry in entries])


def box_of(bits: np.ndarray) -> list[float]:
    """x, y, width, height of the smallest box around the pixels; zeros for none."""
    rows, columns = np.flatnonzero(bits.any(1)), np.flatnonzero(bits.any(0))
    if not len(rows):
        return [0.0] * 4
    return [columns[0], rows[0], columns[-1] - columns[0] + 1, rows[-1] - rows[0] + 1]


def as_found(truth: GroundTruth) -> Detections:
    owner = np.repeat(np.arange(len(truth.image_ids)), np.diff(truth.starts))
    return Detections(owner, truth.boxes, truth.classes, np.ones(len(owner)))


def blob(draw: np.random.Generator, height: int, width: int, *, grid: bool) -> np.ndarray:
    """An ellipse or a rectangle somewhere, at times empty; with `grid`, of few shapes, so that many overlaps are equal."""
    if grid:
        top, left, high, wide = draw.choice([0, 2, 4, 8, 12], 4)
        bits = np.zeros((height, width), np.uint8)
        bits[top : top + high, left : left + wide] = 1
        return bits
    y, x = np.mgrid[:height, :width]
    middle, half = draw.random(2) * [height, width], draw.random(2) * [height, width] / 3 + 0.3
    return (((y - middle[0]) / half[0]) ** 2 + ((x - middle[1]) / half[1]) ** 2 < 1).astype(np.uint8)


def mask_scene(
    seed: int,
    images: int = 9,
    objects: int = 30,
    found: int = 60,
    *,
    crowds: float = 0.2,
    ties: bool = True,
    grid: bool = False,
) -> Scene:
    """Photos of different sizes; most detections are near an object of their image; areas, at times, on the official borders."""
    draw = np.random.default_rng(seed)
    sizes = [(int(height), int(width)) for height, width in draw.integers(1, 40, (images, 2))]
    if grid:
        sizes = [(24, 30)] * images
    owner = np.sort(draw.integers(0, images, objects)) if images else np.zeros(0, np.int64)
    bits = [blob(draw, *sizes[image], grid=grid) for image in owner]
    entries: list[list[tuple]] = [[] for _ in range(images)]
    for image, mask in zip(owner, bits):
        entries[image].append((int(draw.integers(1, 3)), mask, *["crowd"][: draw.random() < crowds]))
    truth, wanted = truth_of(*entries, sizes=sizes)
    borders = draw.choice([0, 1, 1023.99, 1024, 1024.01, 9216, 9216.01, 1e10, 2e10], len(owner))
    truth = GroundTruth(
        **{
            **vars(truth),
            "areas": np.where(draw.random(len(owner)) < 0.4, borders, truth.areas),
            "image_ids": draw.choice(10**6, images, replace=False) + int(draw.choice([0, 1 << 40])),
        }
    )
    seen = draw.integers(0, images, found) if images else np.zeros(0, np.int64)
    guesses = []
    for image in seen:
        near = np.arange(truth.starts[image], truth.starts[image + 1])
        if len(near) and draw.random() < 0.7:
            guesses.append(np.roll(bits[int(draw.choice(near))], draw.integers(-1, 2, 2), (0, 1)))
        else:
            guesses.append(blob(draw, *sizes[image], grid=grid))
    scores = draw.integers(0, 5, len(seen)) / 5 if ties else draw.random(len(seen)).astype(np.float32)
    boxes = np.array([box_of(mask) for mask in guesses], np.float64).reshape(-1, 4)
    return Scene(truth, wanted, Detections(seen, boxes, draw.integers(1, 4, len(seen)), scores), strings(guesses))
