"""Before training: the annotations, handed back as perfect detections, must score an average precision of 1.

It proves that images, classes, boxes and the scorer agree on this very data set, and takes about a second. What can never be
found is left out on both sides: crowd regions need not be, boxes without area overlap with nothing, and of an image with more
objects of one class than the benchmark looks at, some are always missed.

Letters: N images   M objects   K classes, 1..K
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.config.errors import DataError
from paceline.metrics.coco import Detections, GroundTruth, score_boxes, subset

# About half a second of scoring with COCO's 7 objects an image; a larger set is sampled evenly.
MOST_IMAGES = 5_000
# Detections of one class in one image that the benchmark counts.
MOST_OF_A_CLASS = 100
# Far above what rounding does to an AP of 1, far below what one missed object does to it.
TOLERANCE = 1e-6


def ground_truth_scores_one(truth: GroundTruth, names: Sequence[str] = ()) -> None:
    """Score the objects of (at most MOST_IMAGES evenly chosen images of) `truth` as if a model had found them.

    names  of the classes 1..K, for the message; () calls them by number
    Raises DataError where its arrays contradict each other, or a class scores less than 1: with the class, its score and
    the first image that is wrong. A split without objects passes.
    """
    _check_arrays(truth)
    chosen = _findable(truth)
    if len(chosen.image_ids) > MOST_IMAGES:
        chosen = subset(chosen, np.linspace(0, len(chosen.image_ids) - 1, MOST_IMAGES).astype(np.int64))
    for k in _wrong_classes(chosen):
        score = score_boxes(chosen, _as_detections(chosen)).per_class[k - 1]
        scored = f"scores AP {score.ap:.4f}" if score.ap >= 0 else "is not scored at all"
        image = _first_wrong_image(chosen, k)
        raise DataError(
            f"class {names[k - 1] if names else k}: its {score.objects:,} annotated boxes, handed back as detections, "
            f"must score AP 1.0000, and it {scored}.\n"
            f"First wrong image: id {chosen.image_ids[image]}, {_worst_object(chosen, image, k)}. Correct its annotation, "
            "then prepare the data set again."
        )


def _check_arrays(truth: GroundTruth) -> None:
    """What the scorer takes for granted: rows of images that tile the objects, and classes 1..K."""
    starts, objects = truth.starts, len(truth.classes)
    lengths = {len(truth.boxes), len(truth.crowd), len(truth.areas), objects}
    tiled = len(starts) == len(truth.image_ids) + 1 and starts[0] == 0 and starts[-1] == objects
    if len(lengths) > 1 or not tiled or (np.diff(starts) < 0).any():
        raise DataError(
            "the index contradicts itself: its objects do not add up to those of its images. Prepare the data set again."
        )
    wrong = np.flatnonzero((truth.classes < 1) | (truth.classes > truth.num_classes))
    if len(wrong):
        image = int(np.searchsorted(starts, wrong[0], side="right")) - 1
        raise DataError(
            f"image id {truth.image_ids[image]}: an object of class {truth.classes[wrong[0]]}, where classes are 1 to "
            f"{truth.num_classes}. Prepare the data set again."
        )
    ids, counts = np.unique(truth.image_ids, return_counts=True)
    if (counts > 1).any():
        raise DataError(
            f"image id {ids[counts > 1][0]} stands for {counts.max()} images. Give each its own, then prepare again."
        )


def _findable(truth: GroundTruth) -> GroundTruth:
    """The same images with only those objects that a perfect model finds, without images that have too many of a class."""
    with np.errstate(invalid="ignore"):
        solid = np.isfinite(truth.boxes).all(axis=1) & (truth.boxes[:, 2:] > 0).all(axis=1)
    keep = solid & (truth.crowd == 0)
    image_of = np.repeat(np.arange(len(truth.image_ids)), np.diff(truth.starts))
    # One number for each pair (image, class).
    pairs, counts = np.unique(image_of[keep] * (truth.num_classes + 1) + truth.classes[keep], return_counts=True)
    crowded = np.unique(pairs[counts > MOST_OF_A_CLASS] // (truth.num_classes + 1))
    kept_before = np.concatenate([[0], np.cumsum(keep)])
    without = GroundTruth(
        image_ids=truth.image_ids,
        heights=truth.heights,
        widths=truth.widths,
        starts=kept_before[truth.starts].astype(np.int64),
        boxes=truth.boxes[keep],
        classes=truth.classes[keep],
        crowd=truth.crowd[keep],
        areas=truth.areas[keep],
        num_classes=truth.num_classes,
    )
    return subset(without, np.setdiff1d(np.arange(len(truth.image_ids)), crowded))


def _as_detections(truth: GroundTruth) -> Detections:
    return Detections(
        images=np.repeat(np.arange(len(truth.image_ids), dtype=np.int64), np.diff(truth.starts)),
        boxes=truth.boxes,
        classes=truth.classes,
        scores=np.ones(len(truth.classes), np.float32),
    )


def _wrong_classes(truth: GroundTruth) -> list[int]:
    """Classes 1..K that have objects and score less than 1, the worst first."""
    scores = score_boxes(truth, _as_detections(truth)).per_class
    wrong = [k for k, score in enumerate(scores, start=1) if score.objects and score.ap < 1 - TOLERANCE]
    return sorted(wrong, key=lambda k: scores[k - 1].ap)


def _first_wrong_image(truth: GroundTruth, k: int) -> int:
    """Row of the first image whose objects of class k, scored alone, are not all found."""
    having = np.flatnonzero(np.add.reduceat(np.append(truth.classes == k, False), truth.starts[:-1]))
    having = having[np.diff(truth.starts)[having] > 0]
    return next((int(i) for i in having if k in _wrong_classes(subset(truth, np.array([i])))), int(having[0]))


def _worst_object(truth: GroundTruth, image: int, k: int) -> str:
    """The object of class k that lies or reaches furthest, in words: such numbers are what goes wrong."""
    rows = np.arange(truth.starts[image], truth.starts[image + 1])
    rows = rows[truth.classes[rows] == k]
    row = rows[np.argmax(np.abs(truth.boxes[rows]).max(axis=1))]
    box = ", ".join(f"{value:g}" for value in truth.boxes[row])
    return f"box [{box}] of area {truth.areas[row]:g} in {truth.widths[image]} x {truth.heights[image]} pixels"
