"""What a detector gets wrong: kinds of errors and their cost in AP50, its confusion matrix, and the score with the best F1.

Letters: N images   M objects   D detections   K classes, 0 is background   P pairs of a detection and an object of its image
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np

from paceline.data.checks.suspicious_boxes import paired_overlaps
from paceline.data.rle import concatenated_ranges
from paceline.models.metrics.coco import RECALL_POINTS, Detections, GroundTruth, check_detections

SHOWN_SCORE = 0.3
MATCH_IOU = 0.5
BACKGROUND_CLASS = 0
BLOCK = 20_000  # detections whose overlaps are computed at once: bounds the memory

Pairs: TypeAlias = "tuple[np.ndarray, np.ndarray, np.ndarray]"  # (P,) row of the detection, row of the object, overlap


def find_overlapping_pairs(truth: GroundTruth, images: np.ndarray, boxes: np.ndarray, iou: float) -> Pairs:
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


# Kinds of a detector's errors, and what each costs in AP50: which one to work on first.
#
# A detection that has found no object is, by its overlaps (IoU) with the objects of its image, of the first of these kinds that fits:
#     localisation    0.1 to 0.5 with an object of its class
#     classification  0.5 or more with an object of another class
#     duplicate       0.5 or more with an object of its class that a surer detection has found
#     background      no more than 0.1 with any object
#     both            what is left: 0.1 to 0.5 with an object of another class
# An object that nothing has found is missed, unless a detection of the first two kinds would have found it. A kind's cost is the AP50
# that is gained where an oracle mends its errors alone: of all detections of the first two kinds that are about one object that
# nothing has found, the surest becomes right, and the others go; those of the next three go; missed objects are not asked for.
# Source: Bolya et al. 2020, TIDE. Other than in its program, tidecv, a detection on a crowd is no error, and a class without objects
# does not count, as in COCO's mean.

BACKGROUND_IOU = 0.1
# Numbers of a detection's kind: in `ErrorKinds.kinds`, and place in KINDS.
LOCALISATION, CLASSIFICATION, DUPLICATE, BACKGROUND, BOTH = range(5)
RIGHT, UNCOUNTED = -1, -2  # has found an object; on a crowd: neither right nor wrong
KINDS = ("localisation", "classification", "duplicate", "background", "both", "missed")


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


# Confusion matrix of a detector: counts of true class by detected class, background included.
#
# An illustration, not an official number. In each image the detections that a report shows (score >= 0.3) are matched best first to
# objects that overlap them (IoU >= 0.5), the largest overlap first, each object once: first objects of their own class, then, with the
# rest, objects of any class. So the diagonal holds what was detected and classified correctly. A detection without an object that lies
# half or more on a crowd is not counted; crowds themselves need not be detected.


def confusion_matrix(truth: GroundTruth, detections: Detections, *, score: float = SHOWN_SCORE) -> np.ndarray:
    """-> (K+1, K+1) int64: entry [t, f] counts objects of class t detected as f.

    [t, 0]  objects of class t without a detection     [0, f]  detections of class f where no object is     [0, 0]  0
    Rows 1..K sum to the objects without crowds.
    Raises ValueError where a detection names no image or class of `truth`, or is not finite.
    """
    check_detections(truth, detections)
    shown = np.flatnonzero(detections.scores >= score)
    shown = shown[np.argsort(-detections.scores[shown], kind="stable")]  # best first; ties keep their order
    named = detections.classes[shown]
    positions, row, overlap = find_overlapping_pairs(truth, detections.images[shown], detections.boxes[shown], MATCH_IOU)
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
    counts[:, BACKGROUND_CLASS] += np.bincount(truth.classes[free], minlength=len(counts))
    counts[BACKGROUND_CLASS] += np.bincount(named[~hit & ~on_crowd], minlength=len(counts))
    return counts


# The score from which on a detector's boxes are best counted: the threshold with the highest F1 on the photos of an evaluation.
#
# Matching is COCO's at one IoU, of boxes: best first, each detection takes the object of its class that it overlaps most and that is
# free; one on a crowd of its class counts for nothing. As no later detection changes an earlier match, one matching gives the numbers
# of every threshold. Objects of all classes count alike (micro). The threshold is chosen on the photos that it is reported on, so on
# others F1 is likely to be lower.

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
