"""Confusion matrix of a detector: counts of true class by detected class, background included.

Letters: N images   M objects   D detections   K classes; 0 is background
An illustration, not an official number. In each image the detections that a report shows (score >= 0.3) are matched best first to
objects that overlap them (IoU >= 0.5), the largest overlap first, each object once: first objects of their own class, then, with the
rest, objects of any class. So the diagonal holds what was detected and classified correctly. A detection without an object that lies
half or more on a crowd is not counted; crowds themselves need not be detected.
"""

from __future__ import annotations

import numpy as np

from paceline.data.checks.suspicious_boxes import paired_overlaps
from paceline.data.rle import concatenated_ranges
from paceline.models.metrics.coco import Detections, GroundTruth, check_detections

SHOWN_SCORE = 0.3
MATCH_IOU = 0.5
BACKGROUND = 0
BLOCK = 20_000  # detections whose overlaps are computed at once: bounds the memory


def confusion_matrix(
    truth: GroundTruth, detections: Detections, *, score: float = SHOWN_SCORE, iou: float = MATCH_IOU
) -> np.ndarray:
    """-> (K+1, K+1) int64: entry [t, f] counts objects of class t detected as f.

    [t, 0]  objects of class t without a detection     [0, f]  detections of class f where no object is     [0, 0]  0
    Rows 1..K sum to the objects without crowds.
    Raises ValueError where a detection names no image or class of `truth`, or is not finite.
    """
    check_detections(truth, detections)
    shown = np.flatnonzero(detections.scores >= score)
    shown = shown[np.argsort(-detections.scores[shown], kind="stable")]  # best first; ties keep their order
    named = detections.classes[shown]
    positions, row, overlap = find_overlapping_pairs(truth, detections.images[shown], detections.boxes[shown], iou)
    crowd = truth.crowd[row] != 0
    on_crowd = np.zeros(len(shown), bool)
    on_crowd[positions[crowd]] = True

    # In this order the first pair whose detection and object are both free is the greedy choice.
    order = np.flatnonzero(~crowd)
    order = order[np.lexsort((-overlap[order], positions[order]))]
    positions, row = positions[order], row[order]
    match, free = np.full(len(shown), -1), truth.crowd == 0
    same = named[positions] == truth.classes[row]
    match_greedily(positions[same], row[same], match, free)
    match_greedily(positions, row, match, free)

    counts = np.zeros((truth.num_classes + 1, truth.num_classes + 1), np.int64)
    hit = match >= 0
    np.add.at(counts, (truth.classes[match[hit]], named[hit]), 1)
    counts[:, BACKGROUND] += np.bincount(truth.classes[free], minlength=len(counts))
    counts[BACKGROUND] += np.bincount(named[~hit & ~on_crowd], minlength=len(counts))
    return counts


def find_overlapping_pairs(
    truth: GroundTruth, images: np.ndarray, boxes: np.ndarray, iou: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All pairs of a box and an object of its image, crowds included, that overlap by `iou` or more.

    images  (n,) row numbers in `truth`     boxes  (n, 4) x, y, width, height
    return  place of the box, row of the object, overlap: (pairs,) each, ordered by place, then row
    """
    results = []
    for first in range(0, max(1, len(images)), BLOCK):
        block = slice(first, first + BLOCK)
        row, positions = concatenated_ranges(truth.starts[images[block]], truth.starts[images[block] + 1])
        positions += first
        overlap = paired_overlaps(boxes[positions], truth.boxes[row], truth.crowd[row] != 0)
        close = overlap >= iou
        results.append((positions[close], row[close], overlap[close]))
    positions, row, overlap = (np.concatenate(column) for column in zip(*results))
    return positions, row, overlap


def match_greedily(positions: np.ndarray, row: np.ndarray, match: np.ndarray, free: np.ndarray) -> None:
    """Match pairs in their order where both sides are free; `match` and `free` are changed in place."""
    possible = (match[positions] < 0) & free[row]
    for box, thing in zip(positions[possible].tolist(), row[possible].tolist()):
        if match[box] < 0 and free[thing]:
            match[box], free[thing] = thing, False


def match_detections(
    truth: GroundTruth, detections: Detections, positions: np.ndarray, row: np.ndarray, overlap: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """COCO's matching at MATCH_IOU: best first, each detection takes the free object of its class that it overlaps most.

    place, row, overlap  (P,) pairs of detections and objects of their images, each detection's objects in order
    return  (D,) row of the object, -1 for none, and (D,) bool: unmatched, and on a crowd of its class
    """
    close = (overlap >= MATCH_IOU) & (detections.classes[positions] == truth.classes[row])
    positions, row, overlap = positions[close], row[close], overlap[close]
    crowd = truth.crowd[row] != 0
    on_crowd = np.zeros(len(detections.scores), bool)
    on_crowd[positions[crowd]] = True
    pairs = np.flatnonzero(~crowd)
    rank = np.empty(len(on_crowd), np.int64)
    rank[np.argsort(-detections.scores, kind="stable")] = np.arange(len(rank))
    pairs = pairs[np.lexsort((-overlap[pairs], rank[positions[pairs]]))]
    match = np.full(len(rank), -1)
    match_greedily(positions[pairs], row[pairs], match, truth.crowd == 0)
    return match, on_crowd & (match < 0)
