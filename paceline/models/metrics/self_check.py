"""Check before training that the annotations, scored as perfect detections, have an average precision of 1.

This proves that images, classes, boxes, masks and the scorer agree on this data set, and takes about a second. Objects that can never
be detected are left out on both sides: crowd regions, boxes without area and masks without pixels, which overlap with nothing, and
images with more objects of one class than the benchmark counts, of which some are always missed.

Letters: N images   M objects   K classes, 1..K
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline._utils.errors import DataError
from paceline.data.rle import RLE, gather_rows, mask_areas
from paceline.models.metrics.coco import BoxScores, Detections, GroundTruth, score_boxes, score_masks, select_images
from paceline.models.object_predictions import InstanceTruth

# About half a second of scoring with COCO's 7 objects an image; a larger set is sampled evenly.
MAX_IMAGES = 5_000
# Detections of one class in one image that the benchmark counts.
MAX_OF_A_CLASS = 100
# Far above what rounding does to an AP of 1, far below what one missed object does to it.
TOLERANCE = 1e-6


def ground_truth_scores_one(truth: GroundTruth, names: Sequence[str] = ()) -> None:
    """Score the objects of (at most MAX_IMAGES evenly chosen images of) `truth` as if a model had detected them.

    names  of the classes 1..K, for the message; (): their numbers
    Raises DataError where its arrays contradict each other, or a class scores less than 1: with the class, its score and the first
    wrong image. A split without objects passes.
    """
    _check_arrays(truth)
    with np.errstate(invalid="ignore"):
        solid = np.isfinite(truth.boxes).all(axis=1) & (truth.boxes[:, 2:] > 0).all(axis=1)
    _refuse_less_than_one(truth, solid & (truth.crowd == 0), None, names)


def masks_score_one(truth: InstanceTruth, names: Sequence[str] = ()) -> int:
    """The same for the objects' masks -> the number of masks that cover no pixel (polygons thinner than one) and are left out."""
    _check_arrays(truth.boxes)
    solid = mask_areas(truth.masks) > 0
    wanted = truth.known & (truth.boxes.crowd == 0)
    _refuse_less_than_one(truth.boxes, solid & wanted, truth.masks, names)
    return int((wanted & ~solid).sum())


def _refuse_less_than_one(truth: GroundTruth, keep: np.ndarray, masks: RLE | None, names: Sequence[str]) -> None:
    """keep: (M,) bool, the objects that can be detected; masks: of the objects, or None to score boxes."""
    chosen, rows = _findable(truth, keep)
    if len(chosen.image_ids) > MAX_IMAGES:
        numbers = np.linspace(0, len(chosen.image_ids) - 1, MAX_IMAGES).astype(np.int64)
        chosen, rows = select_images(chosen, numbers), rows[gather_rows(chosen.starts, numbers)]
    masks = masks.take(rows) if masks is not None else None
    what = "boxes" if masks is None else "masks"
    for k in _wrong_classes(chosen, masks):
        score = _scored(chosen, masks).per_class[k - 1]
        scored = f"AP {score.ap:.4f}" if score.ap >= 0 else "no AP"
        image = _first_wrong_image(chosen, masks, k)
        raise DataError(
            f"class {names[k - 1] if names else k}: inconsistent annotations. Scoring its {score.objects:,} {what} against "
            f"themselves gives {scored} instead of AP 1.0000.\nFirst affected image: id {chosen.image_ids[image]}, "
            f"{_worst_object(chosen, image, k)}. Correct its annotation, then prepare the dataset again."
        )


def _check_arrays(truth: GroundTruth) -> None:
    """Check the scorer's assumptions: rows of images that tile the objects, and classes 1..K."""
    starts, objects = truth.starts, len(truth.classes)
    lengths = {len(truth.boxes), len(truth.crowd), len(truth.areas), objects}
    tiled = len(starts) == len(truth.image_ids) + 1 and starts[0] == 0 and starts[-1] == objects
    if len(lengths) > 1 or not tiled or (np.diff(starts) < 0).any():
        raise DataError("the index is inconsistent: the objects of its images do not add up. Prepare the dataset again.")
    wrong = np.flatnonzero((truth.classes < 1) | (truth.classes > truth.num_classes))
    if len(wrong):
        image = int(np.searchsorted(starts, wrong[0], side="right")) - 1
        raise DataError(
            f"image id {truth.image_ids[image]}: an object has class {truth.classes[wrong[0]]}, but classes are from 1 to "
            f"{truth.num_classes}. Prepare the dataset again."
        )
    ids, counts = np.unique(truth.image_ids, return_counts=True)
    if (counts > 1).any():
        raise DataError(
            f"image id {ids[counts > 1][0]} is used for {counts.max()} images. Use unique ids, then prepare again."
        )


def _findable(truth: GroundTruth, keep: np.ndarray) -> tuple[GroundTruth, np.ndarray]:
    """The same images with only the objects that a perfect model detects, without images that have too many of a class.

    -> ground truth, and its objects' rows in `truth`
    """
    image_of = np.repeat(np.arange(len(truth.image_ids)), np.diff(truth.starts))
    # One number for each pair (image, class).
    pairs, counts = np.unique(image_of[keep] * (truth.num_classes + 1) + truth.classes[keep], return_counts=True)
    crowded = np.unique(pairs[counts > MAX_OF_A_CLASS] // (truth.num_classes + 1))
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
    numbers = np.setdiff1d(np.arange(len(truth.image_ids)), crowded)
    return select_images(without, numbers), np.flatnonzero(keep)[gather_rows(without.starts, numbers)]


def _as_detections(truth: GroundTruth) -> Detections:
    images = np.repeat(np.arange(len(truth.image_ids), dtype=np.int64), np.diff(truth.starts))
    return Detections(images, truth.boxes, truth.classes, np.ones(len(truth.classes), np.float32))


def _scored(truth: GroundTruth, masks: RLE | None) -> BoxScores:
    """The objects as their own detections, scored by their boxes or, if given, by their masks."""
    detections = _as_detections(truth)
    return score_boxes(truth, detections) if masks is None else score_masks(truth, masks, detections, masks)


def _wrong_classes(truth: GroundTruth, masks: RLE | None) -> list[int]:
    """Classes 1..K that have objects and score less than 1, the worst first."""
    scores = _scored(truth, masks).per_class
    wrong = [k for k, score in enumerate(scores, start=1) if score.objects and score.ap < 1 - TOLERANCE]
    return sorted(wrong, key=lambda k: scores[k - 1].ap)


def _first_wrong_image(truth: GroundTruth, masks: RLE | None, k: int) -> int:
    """Row of the first image whose objects of class k, scored alone, are not all detected."""
    having = np.flatnonzero(np.add.reduceat(np.append(truth.classes == k, False), truth.starts[:-1]))
    having = having[np.diff(truth.starts)[having] > 0]
    for image in having:
        only = np.array([image])
        its_masks = masks.take(gather_rows(truth.starts, only)) if masks is not None else None
        if k in _wrong_classes(select_images(truth, only), its_masks):
            return int(image)
    return int(having[0])


def _worst_object(truth: GroundTruth, image: int, k: int) -> str:
    """Describe the object of class k with the largest coordinate: large numbers are the usual mistake."""
    rows = np.arange(truth.starts[image], truth.starts[image + 1])
    rows = rows[truth.classes[rows] == k]
    row = rows[np.argmax(np.abs(truth.boxes[rows]).max(axis=1))]
    box = ", ".join(f"{value:g}" for value in truth.boxes[row])
    return f"box [{box}] with area {truth.areas[row]:g} in {truth.widths[image]} x {truth.heights[image]} pixels"
