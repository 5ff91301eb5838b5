"""The score from which on a detector's boxes are best counted: the threshold with the highest F1 on the photos of an evaluation.

Letters: N images   M objects   D detections   K classes
Matching is COCO's at one IoU, of boxes: best first, each detection takes the object of its class that it overlaps most and that is
free; one on a crowd of its class counts for nothing. As no later detection changes an earlier match, one matching gives the numbers
of every threshold. Objects of all classes count alike (micro). The threshold is chosen on the photos that it is reported on, so on
others F1 is likely to be lower.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from paceline.models.metrics.coco import Detections, GroundTruth, check_detections
from paceline.models.metrics.confusion import MATCH_IOU, find_overlapping_pairs, match_detections

# Of a score in a predictions file.
DIGITS = 5
# So many times as many detections as objects are matched first; with a good detector no later one can be of use.
ENOUGH = 3


@dataclass(frozen=True)
class ThresholdCounts:
    """Counted from a score on, that one included."""

    threshold: float
    f1: float  # all three in [0, 1]
    precision: float
    recall: float


@dataclass(frozen=True)
class BestF1:
    """The best of all thresholds, and each class there; None for a class of which nothing is there and nothing was found."""

    best: ThresholdCounts
    per_class: list[ThresholdCounts | None]  # K entries; class k is entry k-1

    def record(self) -> dict[str, Any]:
        """For a predictions file and an event."""
        return {"iou": MATCH_IOU, **asdict(self.best)}


def find_best_f1(truth: GroundTruth, detections: Detections) -> BestF1 | None:
    """None where no threshold has an F1 above 0: without objects, or where none was found.

    Scores count with DIGITS digits, as they are written. The threshold is the number of the fewest digits that divides the
    detections so; of thresholds with one F1 it is the highest.
    Raises ValueError as `check_detections`.
    """
    check_detections(truth, detections)
    scores = detections.scores.astype(np.float64).round(DIGITS)
    order = np.argsort(-scores, kind="stable")
    objects = int((truth.crowd == 0).sum())
    if not objects or not len(scores):
        return None
    ranked = Detections(detections.images[order], detections.boxes[order], detections.classes[order], scores[order])
    scores = ranked.scores
    # A threshold takes all detections of a score or none.
    ends = np.flatnonzero(np.diff(scores, append=-np.inf))
    first = 0
    while True:
        first = min(len(scores), max(2 * first, ENOUGH * objects))
        first = int(ends[np.searchsorted(ends, first - 1)]) + 1
        sure = Detections(*(column[:first] for column in vars(ranked).values()))
        match, on_crowd = match_detections(truth, sure, *find_overlapping_pairs(truth, sure.images, sure.boxes, MATCH_IOU))
        right, counted = match >= 0, ~on_crowd
        hits, shown = np.cumsum(right), np.cumsum(counted)
        inside = ends[ends < first]
        f1 = 2 * hits[inside] / (shown[inside] + objects)
        most = float(f1.max())
        # From here on every object would have to be found for an F1 of this much.
        if first == len(scores) or most >= 2 * objects / (int(shown[-1]) + objects):
            break
    if not most:
        return None
    last = int(inside[f1.argmax()])
    below = float(scores[last + 1]) if last + 1 < len(scores) else -1.0
    threshold = _shortest(below, float(scores[last]))
    taken, classes = np.arange(first) <= last, ranked.classes[:first]

    def of(mine: np.ndarray, there: int) -> ThresholdCounts | None:
        hit, shown = int(right[mine & taken].sum()), int(counted[mine & taken].sum())
        if not shown + there:
            return None
        return ThresholdCounts(threshold, 2 * hit / (shown + there), hit / max(shown, 1), hit / max(there, 1))

    each = np.bincount(truth.classes[truth.crowd == 0], minlength=truth.num_classes + 1)
    best = of(np.ones(first, bool), objects)
    assert best is not None
    return BestF1(best, [of(classes == k, int(each[k])) for k in range(1, truth.num_classes + 1)])


def counts_at_thresholds(scores: np.ndarray, right: np.ndarray, objects: int) -> list[ThresholdCounts]:
    """From each score on that is written with two digits, 0.01 to 0.99, and has a detection; [] without objects.

    scores, right   (D,) of the detections that count, and whether each has found an object
    """
    order = np.argsort(-scores, kind="stable")
    hits, falling = np.cumsum(right[order]), -scores[order]
    results = []
    for threshold in np.arange(1, 100) / 100 if objects else ():
        shown = int(np.searchsorted(falling, -threshold, side="right"))
        if shown:
            hit = int(hits[shown - 1])
            results.append(ThresholdCounts(float(threshold), 2 * hit / (shown + objects), hit / shown, hit / objects))
    return results


def _shortest(low: float, high: float) -> float:
    """The number of the fewest digits in (low, high]; of equally many the largest."""
    for digits in range(1, DIGITS):
        number = math.floor(high * 10**digits + 1e-9) / 10**digits
        if low < number <= high:
            return number
    return high
