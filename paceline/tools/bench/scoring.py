"""`paceline bench eval`: our box scores beside pycocotools and faster-coco-eval on the same synthetic data set, in one run.

Letters: N images   P detections of an image   K classes   M objects (7 an image on average, as in COCO)
Every contender starts from arrays in memory and ends with the twelve numbers, which must be equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from paceline.models.metrics.coco import Detections, GroundTruth, score_boxes
from paceline.tools.bench import find_peers
from paceline.tools.bench.harness import OURS, Operation, compare_operation, machine_facts

OBJECTS = 7  # of an image, on average
CROWDS = 0.012  # share of objects that are crowds, as in COCO
NEAR = 0.25  # share of detections that lie near an object, most of the right class; the others are anywhere
EMPTY = 0.01  # share of images without objects, as in COCO's val2017
JITTER = 0.08  # how far off these are, in sides of the object (standard deviation)
SIDE = 500  # pixels
Numbers = tuple[float, ...]  # the twelve, in the official order


def run_scoring(images: int, detections_per_image: int, classes: int, rounds: int) -> dict[str, Any]:
    """Time every installed contender after a small warm-up, -> JSON facts.

    images  N   detections_per_image  P   classes  K
    """
    device = torch.device("cpu")
    for work in list_scorers(*make_synthetic_detections(20, 10, classes)).values():
        work()
    works = list_scorers(*make_synthetic_detections(images, detections_per_image, classes))
    equal = {name: lambda mine, theirs: float(mine != theirs) for name in works if name != OURS}
    row, numbers = compare_operation(Operation("scoring", works, equal), rounds, 0.0, device, warm=False)
    about = {"images": images, "detections": detections_per_image, "classes": classes}
    return {**about, **machine_facts(device), **row, "numbers": numbers}


def list_scorers(truth: GroundTruth, detections: Detections) -> dict[str, Callable[[], Numbers]]:
    """Ours, and the peers that are installed."""
    theirs = find_peers("scoring")
    return {
        OURS: lambda: tuple(map(float, score_boxes(truth, detections).metrics.values())),
        **(theirs.contenders(truth, detections, SIDE) if theirs else {}),
    }


def make_synthetic_detections(images: int, detections_per_image: int, classes: int) -> tuple[GroundTruth, Detections]:
    """A data set like COCO in its counts, the same on every call: objects of all sizes, crowds, empty images."""
    draw = np.random.default_rng(0)
    counts = draw.poisson(OBJECTS, images) * (draw.random(images) >= EMPTY)
    objects = int(counts.sum())
    boxes = _boxes(draw, objects)
    truth = GroundTruth(
        image_ids=draw.permutation(600_000)[:images] if images <= 600_000 else np.arange(images),
        heights=np.full(images, SIDE),
        widths=np.full(images, SIDE),
        starts=np.concatenate([[0], np.cumsum(counts)]),
        boxes=boxes,
        classes=draw.integers(1, classes + 1, objects).astype(np.int32),
        crowd=(draw.random(objects) < CROWDS).astype(np.uint8),
        areas=boxes[:, 2] * boxes[:, 3] * draw.uniform(0.5, 1, objects),
        num_classes=classes,
    )
    total = images * detections_per_image
    owner = np.repeat(np.arange(images), detections_per_image)
    guesses, named = _boxes(draw, total), draw.integers(1, classes + 1, total)
    near = np.flatnonzero((draw.random(total) < NEAR) & (counts[owner] > 0))
    target = truth.starts[owner[near]] + draw.integers(0, counts[owner[near]])
    sides = boxes[target, 2:]
    guesses[near, :2] = boxes[target, :2] + sides * draw.normal(0, JITTER, (len(near), 2))
    guesses[near, 2:] = sides * np.exp(draw.normal(0, JITTER, (len(near), 2)))
    named[near] = np.where(draw.random(len(near)) < 0.9, truth.classes[target], named[near])
    scores = draw.random(total)
    far = np.ones(total, bool)
    far[near] = False
    scores[far] **= 8  # most of what a detector reports is unsure
    return truth, Detections(owner, guesses, named, scores.astype(np.float32))


def _boxes(draw: np.random.Generator, count: int) -> np.ndarray:
    """(count, 4) x, y, width, height: as many small ones as large ones, some beyond the border."""
    sides = np.exp(draw.uniform(np.log(8), np.log(400), (count, 2)))
    return np.concatenate([draw.random((count, 2)) * SIDE * 0.8, sides], axis=1)
