"""Kinds of a detector's errors, and what each costs in AP50: which one to work on first.

Letters: M objects   D detections   K classes   P pairs of a detection and an object of its image
A detection that has found no object is, by its overlaps (IoU) with the objects of its image, of the first of these kinds that fits:
    localisation    0.1 to 0.5 with an object of its class
    classification  0.5 or more with an object of another class
    duplicate       0.5 or more with an object of its class that a surer detection has found
    background      no more than 0.1 with any object
    both            what is left: 0.1 to 0.5 with an object of another class
An object that nothing has found is missed, unless a detection of the first two kinds would have found it. A kind's cost is the AP50
that is gained where an oracle mends its errors alone: of all detections of the first two kinds that are about one object that
nothing has found, the surest becomes right, and the others go; those of the next three go; missed objects are not asked for.
Source: Bolya et al. 2020, TIDE. Other than in its program, tidecv, a detection on a crowd is no error, and a class without objects
does not count, as in COCO's mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from paceline.models.metrics.coco import RECALL_POINTS, Detections, GroundTruth, check_detections
from paceline.models.metrics.confusion import MATCH_IOU, find_overlapping_pairs, match_detections

BACKGROUND_IOU = 0.1
# Numbers of a detection's kind: in `ErrorKinds.kinds`, and place in KINDS.
LOCALISATION, CLASSIFICATION, DUPLICATE, BACKGROUND, BOTH = range(5)
RIGHT, UNCOUNTED = -1, -2  # has found an object; on a crowd: neither right nor wrong
KINDS = ("localisation", "classification", "duplicate", "background", "both", "missed")

Pairs: TypeAlias = "tuple[np.ndarray, np.ndarray, np.ndarray]"  # (P,) row of the detection, row of the object, overlap


@dataclass(frozen=True)
class ErrorKinds:
    """What became of each detection and of each object."""

    kinds: np.ndarray  # (D,) int64
    partners: np.ndarray  # (D,) row of the object that was found, or that the error is about; -1: none
    missed: np.ndarray  # (M,) bool; False for crowds
    unfound: np.ndarray  # (M,) bool: missed, or found in the wrong place or class alone; False for crowds

    def counts(self) -> dict[str, int]:
        """Errors of each kind."""
        return {name: int((self.kinds == kind).sum()) for kind, name in enumerate(KINDS[:-1])} | {
            KINDS[-1]: int(self.missed.sum())
        }


def classify_errors(truth: GroundTruth, detections: Detections, pairs: Pairs | None = None) -> ErrorKinds:
    """The kind of each detection.

    pairs  with an overlap of BACKGROUND_IOU or more, each detection's objects in order; None: of the boxes
    Raises ValueError as `check_detections`.
    """
    check_detections(truth, detections)
    positions, row, overlap = pairs or find_overlapping_pairs(truth, detections.images, detections.boxes, BACKGROUND_IOU)
    match, on_crowd = match_detections(truth, detections, positions, row, overlap)
    real = truth.crowd[row] == 0
    same = detections.classes[positions] == truth.classes[row]
    own_iou, own = _closest(len(match), positions[real & same], row[real & same], overlap[real & same])
    other_iou, other = _closest(len(match), positions[real & ~same], row[real & ~same], overlap[real & ~same])
    nearest = np.where(own_iou >= other_iou, own, other)
    tests = (
        (match >= 0, RIGHT, match),
        (on_crowd, UNCOUNTED, np.full(len(match), -1)),
        ((own_iou >= BACKGROUND_IOU) & (own_iou <= MATCH_IOU), LOCALISATION, own),
        (other_iou >= MATCH_IOU, CLASSIFICATION, other),
        (own_iou >= MATCH_IOU, DUPLICATE, own),
        (np.maximum(own_iou, other_iou) <= BACKGROUND_IOU, BACKGROUND, np.full(len(match), -1)),
    )
    conditions = [condition for condition, _, _ in tests]
    kinds = np.select(conditions, [kind for _, kind, _ in tests], BOTH)
    partners = np.select(conditions, [partner for _, _, partner in tests], nearest)
    unfound = truth.crowd == 0
    unfound[match[match >= 0]] = False
    missed = unfound.copy()
    missed[partners[(kinds == LOCALISATION) | (kinds == CLASSIFICATION)]] = False
    return ErrorKinds(kinds, partners, missed, unfound)


def _closest(count: int, positions: np.ndarray, row: np.ndarray, overlap: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """-> of each of `count` detections the largest overlap, 0 without any, and its object, the first of equal ones, or -1."""
    order = np.lexsort((row, -overlap, positions))
    first = order[np.flatnonzero(np.diff(positions[order], prepend=-1))]
    most, closest = np.zeros(count), np.full(count, -1)
    most[positions[first]], closest[positions[first]] = overlap[first], row[first]
    return most, closest


def error_costs(truth: GroundTruth, detections: Detections, errors: ErrorKinds) -> tuple[float, dict[str, float]]:
    """-> AP50, and for each of KINDS what mending it adds; all 0 without objects.

    The AP is counted from these detections alone, and each class's points as COCO's scorer does.
    """
    order = np.argsort(-detections.scores, kind="stable")
    objects = np.bincount(truth.classes[truth.crowd == 0], minlength=truth.num_classes + 1)
    kinds, classes = errors.kinds[order], detections.classes[order]
    there = np.flatnonzero(objects)
    if not len(there):
        return 0.0, dict.fromkeys(KINDS, 0.0)

    def ap50(kept: np.ndarray, right: np.ndarray, named: np.ndarray, wanted: np.ndarray) -> float:
        parts = [right[kept & (named == label)] for label in there]
        values = [_average_precision(part, int(wanted[label])) for label, part in zip(there, parts)]
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else 0.0

    counted, right = kinds != UNCOUNTED, kinds == RIGHT
    partners = errors.partners[order]
    able = np.flatnonzero(((kinds == LOCALISATION) | (kinds == CLASSIFICATION)) & errors.unfound[partners])
    surest = np.zeros(len(kinds), bool)
    surest[able[np.unique(partners[able], return_index=True)[1]]] = True
    before, gains = ap50(counted, right, classes, objects), {}
    for kind, name in enumerate(KINDS):
        mine, wanted = kinds == kind, objects
        mended = mine & surest
        if name == KINDS[-1]:
            wanted = objects - np.bincount(truth.classes[errors.missed], minlength=len(objects))
        named = np.where(mended, truth.classes[partners], classes)
        after = ap50(counted & (~mine | mended), right | mended, named, wanted)
        gains[name] = max(0.0, after - before)
    return before, gains


def _average_precision(right: np.ndarray, objects: int) -> float | None:
    """Of a class's detections, surest first; None where nothing is asked for and nothing was found."""
    if not objects:
        return 0.0 if len(right) else None
    hits = np.cumsum(right)
    precision = np.maximum.accumulate((hits / np.arange(1, len(hits) + 1))[::-1])[::-1]
    reached = np.searchsorted(hits / objects, np.arange(RECALL_POINTS) / (RECALL_POINTS - 1))
    return float(precision[reached[reached < len(hits)]].sum() / RECALL_POINTS)
