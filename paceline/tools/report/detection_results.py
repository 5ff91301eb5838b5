"""Read a detector's predictions: which photos to show and how, and what counts as found.

A predictions file, RUN/predictions/step-*.json; boxes are left, top, width, height in pixels, labels are 1..K:
    {"step": 350, "kind": "boxes", "classes": [name, ...],
     "images": [{"index", "image_id", "file", "width", "height", "boxes", "labels", "scores",     (best first)
                 "truth": {"boxes", "labels", "crowd"}}, ...],
     "per_class", "curves": see prediction_section.py}
Of kind "instances" an image and its truth also have "masks": for each box the `counts` of COCO's compressed run-length
encoding, its size that of the photo; null for an object whose mask is not known.
Letters: n boxes found in an image   m boxes annotated   K classes
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any

import numpy as np

from paceline.config.resnet import Exif
from paceline.data.checks.suspicious_boxes import paired_overlaps
from paceline.inference.drawing.boxes import Annotation, draw_annotations, draw_side_by_side, sort_largest_first
from paceline.inference.drawing.rendering import encode_jpeg_uri, read_rgb
from paceline.models.metrics.bootstrap import stored_detections, stored_truth
from paceline.models.metrics.coco import Detections, GroundTruth
from paceline.models.metrics.detection_errors import (
    BACKGROUND_IOU,
    MATCH_IOU,
    SHOWN_SCORE,
    Pairs,
    ThresholdCounts,
    find_best_f1,
)

# Where nothing is sure enough to be shown, so many of the best boxes are.
UNSURE = 3
# Partners of a box found that matches no object.
FREE, ON_CROWD = -1, -2
# Each half of a picture fits into this many pixels: legible at the width that the page gives it.
HALF_WIDTH, HALF_HEIGHT = 400, 300
# A crowded photo would be nothing but frames.
MAX_FOUND = 40


@dataclass(frozen=True)
class ImageComparison:
    """One photo: the predictions with a score worth showing (best first), and the annotations."""

    file: str
    width: int  # pixels of the photo, which the boxes are in
    height: int
    boxes: np.ndarray  # (n, 4)
    labels: np.ndarray  # (n,)
    scores: np.ndarray  # (n,)
    truth: np.ndarray  # (m, 4)
    truth_labels: np.ndarray  # (m,)
    crowd: np.ndarray  # (m,) bool
    shown: float = SHOWN_SCORE  # smallest score of a box that counts
    masks: Sequence[dict[str, Any] | None] = ()  # n of them, or none where the predictions are boxes alone
    truth_masks: Sequence[dict[str, Any] | None] = ()  # m, or none; None for an object whose mask is not known

    @cached_property
    def partners(self) -> np.ndarray:
        """(n,) number of the annotated box that each found one matches; below 0: none, or inside a crowd region.

        Best first, each takes the largest overlap (IoU >= 0.5) among the free boxes of its class.
        """
        shape = len(self.boxes), len(self.truth)
        overlap = paired_overlaps(
            self.boxes.repeat(shape[1], axis=0), np.tile(self.truth, (shape[0], 1)), np.tile(self.crowd, shape[0])
        ).reshape(shape)
        same = self.labels[:, None] == self.truth_labels[None, :]
        free = ~self.crowd
        partners = np.full(len(self.boxes), FREE)
        for result in np.flatnonzero(self.scores >= self.shown):
            reach = np.where(same[result] & free, overlap[result], 0.0)
            if reach.size and reach.max() >= MATCH_IOU:
                partners[result] = reach.argmax()
                free[partners[result]] = False
            elif (same[result] & self.crowd & (overlap[result] >= MATCH_IOU)).any():
                partners[result] = ON_CROWD
        return partners

    @property
    def counts(self) -> tuple[int, int, int]:
        """Objects found, objects there, and boxes where no such object is."""
        right = int((self.partners >= 0).sum())
        wrong = int(((self.partners == FREE) & (self.scores >= self.shown)).sum())
        return right, int((~self.crowd).sum()), wrong

    @property
    def quality(self) -> float | None:
        """F1 of the shown boxes, 0..1; None where nothing is there and nothing was found."""
        right, there, wrong = self.counts
        return 2 * right / (right + wrong + there) if right + wrong + there else None

    @property
    def hues(self) -> tuple[list[int], list[int]]:
        """Numbers of the hues of the n masks found and of the m annotated: through each class, a found pair has one."""
        count, there = Counter[int](), []
        for label in self.truth_labels.tolist():
            there.append(count[label])
            count[label] += 1
        results = []
        for label, partner in zip(self.labels.tolist(), self.partners.tolist()):
            results.append(there[partner] if partner >= 0 else count[label])
            count[label] += partner < 0
        return results, there

    @property
    def mask_iou(self) -> float | None:
        """The mean of `mask_overlaps`; None without masks."""
        return float(self.mask_overlaps.mean()) if len(self.mask_overlaps) else None

    @cached_property
    def mask_overlaps(self) -> np.ndarray:
        """IoU of the mask of each object found with the mask annotated, 0..1; () without masks."""
        from hotcoco.mask import iou

        pairs = zip(self.masks, self.partners.tolist())
        known = [(mask, there) for mask, real in pairs if real >= 0 and mask and (there := self.truth_masks[real])]
        return np.array([iou([mask], [there], [0])[0, 0] for mask, there in known])


@dataclass(frozen=True)
class ScoredPredictions:
    """A whole predictions file: the objects and the detections of all photos, best first in each."""

    files: Sequence[str]
    truth: GroundTruth
    boxes: Detections
    masks: Sequence[dict[str, Any] | None]  # of the detections, or none where they are boxes alone
    truth_masks: Sequence[dict[str, Any] | None]

    def scenes(self, shown: float) -> list[ImageComparison]:
        """Each photo with the boxes of this score or more, or its UNSURE best ones."""
        starts, scenes = np.searchsorted(self.boxes.images, np.arange(len(self.files) + 1)).tolist(), []
        for photo, file in enumerate(self.files):
            first, real = starts[photo], slice(*self.truth.starts[photo : photo + 2].tolist())
            sure = int((self.boxes.scores[first : starts[photo + 1]] >= shown).sum()) or UNSURE
            mine = slice(first, min(first + sure, starts[photo + 1]))
            size = int(self.truth.widths[photo]), int(self.truth.heights[photo])
            result = self.boxes.boxes[mine], self.boxes.classes[mine], self.boxes.scores[mine]
            there = self.truth.boxes[real], self.truth.classes[real], self.truth.crowd[real] != 0
            scenes.append(ImageComparison(file, *size, *result, *there, shown, self.masks[mine], self.truth_masks[real]))
        return scenes

    def mask_pairs(self) -> Pairs:
        """For `classify_errors`, of masks instead of boxes; an object whose mask is not known has no pair."""
        from hotcoco.mask import iou

        starts = np.searchsorted(self.boxes.images, np.arange(len(self.files) + 1)).tolist()
        pairs = [np.zeros((3, 0))]
        for photo, (first, last) in enumerate(pairwise(starts)):
            rows = np.arange(*self.truth.starts[photo : photo + 2])
            rows = rows[[self.truth_masks[row] is not None for row in rows]]
            if len(rows) and last > first:
                there: list[Any] = [self.truth_masks[row] for row in rows]
                mine: list[Any] = list(self.masks[first:last])
                overlap = iou(mine, there, self.truth.crowd[rows].tolist())
                positions, row = np.nonzero(overlap >= BACKGROUND_IOU)
                pairs.append(np.stack([first + positions, rows[row], overlap[positions, row]]))
        positions, row, overlap = np.concatenate(pairs, axis=1)
        return positions.astype(np.int64), row.astype(np.int64), overlap


def read_detections(predictions: Mapping[str, Any], root: Path) -> ScoredPredictions:
    """Every image of a predictions file of either kind; relative files lie in `root`.

    Of a damaged file raises ValueError, LookupError or TypeError: images have a pixel, as many labels, scores and masks as boxes,
    finite numbers, labels of classes that there are, and masks that can be drawn, annotated ones where some were found.
    """
    images, classes = predictions["images"], len(predictions["classes"])
    masks, truth_masks = [], []
    for image in images:
        scores = np.array(image["scores"], float)
        if scores.ndim != 1 or not np.isfinite(scores).all():
            raise ValueError(f"{image['file']} has a non-finite score")
        truth, size = image["truth"], (int(image["height"]), int(image["width"]))
        if np.ndim(truth["crowd"]) != 1:
            raise ValueError(f"the crowd field of {image['file']} is not a list")
        if min(size) < 1:
            raise ValueError(f"{image['file']} has no pixels")
        if "masks" in image and "masks" not in truth:
            raise ValueError(f"{image['file']} has predicted masks but no annotated masks")
        _check_objects(image["boxes"], image["labels"], len(scores), classes)
        _check_objects(truth["boxes"], truth["labels"], len(truth["crowd"]), classes)
        masks += _encoded(image["masks"], size, len(scores)) if "masks" in image else []
        truth_masks += _encoded(truth["masks"], size, len(truth["crowd"])) if "masks" in truth else []
    truth, detections = stored_truth(images, range(len(images)), classes), stored_detections(images)
    if (masks or truth_masks) and (len(masks), len(truth_masks)) != (len(detections.scores), len(truth.classes)):
        raise ValueError("some images have masks, and others do not")
    return ScoredPredictions([str(root / image["file"]) for image in images], truth, detections, masks, truth_masks)


def find_best_threshold(predictions: Mapping[str, Any], result: ScoredPredictions) -> ThresholdCounts | None:
    """The threshold with the best F1 and the numbers there, as the file has them or else counted; None where there is none.

    Raises ValueError, LookupError or TypeError of a damaged file.
    """
    if "best_f1" not in predictions:
        counted = find_best_f1(result.truth, result.boxes)
        return counted and counted.best
    best = ThresholdCounts(*(float(predictions["best_f1"][name]) for name in ("threshold", "f1", "precision", "recall")))
    if not all(0 <= value <= 1 for value in vars(best).values()):
        raise ValueError("invalid best F1")
    return best


def select_worst_and_best(
    scenes: Sequence[ImageComparison], bad: int, good: int
) -> tuple[list[ImageComparison], list[ImageComparison]]:
    """The `bad` worst photos, worst first, and the `good` best, best first; equal ones by file name, none in both."""
    rated = [(scene.quality, scene) for scene in scenes if scene.quality is not None]
    rising = [scene for quality, scene in sorted(rated, key=lambda pair: (pair[0], pair[1].file)) if quality < 1]
    falling = [scene for quality, scene in sorted(rated, key=lambda pair: (-pair[0], pair[1].file)) if quality > 0]
    worst = rising[: min(bad, max(1, len(rated) // 2))]
    chosen = {id(scene) for scene in worst}
    return worst, [scene for scene in falling if id(scene) not in chosen][:good]


def _check_objects(boxes: Sequence[Any], labels: Sequence[int], count: int, classes: int) -> None:
    """Raises ValueError where they are not `count`, or cannot be."""
    rows, named = np.array(boxes, float).reshape(count, 4), np.array(labels, np.int64).reshape(count)
    if len(boxes) != count or np.shape(labels) != (count,):
        raise ValueError(f"{len(boxes)} boxes and {len(labels)} labels for {count} objects")
    if not np.isfinite(rows).all() or ((named < 1) | (named > classes)).any():
        raise ValueError("a box is not finite, or has no valid class")


def _encoded(counts: Sequence[str | None], size: tuple[int, int], number: int) -> list[dict[str, Any] | None]:
    masks = [None if one is None else {"size": list(size), "counts": one + ""} for one in counts]
    if len(masks) != number:
        raise ValueError(f"{len(masks)} masks for {number} objects")
    from hotcoco.mask import area

    area([mask for mask in masks if mask])  # raises ValueError for run lengths that do not fit the size
    return masks


def add_rendered_images(
    scenes: Sequence[ImageComparison], names: Sequence[str], exif: Exif
) -> list[tuple[ImageComparison, str]]:
    """Each photo with its picture, a JPEG data URI with boxes and masks; "" where the file cannot be read.

    names  of classes 1..K
    exif   how the run took photos that lie turned
    """
    return [(scene, render_comparison(scene, names, exif)) for scene in scenes]


def render_comparison(scene: ImageComparison, names: Sequence[str], exif: Exif, *, small: bool = False) -> str:
    """Predictions beside annotations as a JPEG data URI; a dashed box has no counterpart on the other side.

    small  the predictions alone, without words, at half the size
    """
    photo = read_rgb(scene.file, exif, least=(2 * HALF_WIDTH, 2 * HALF_HEIGHT))
    if photo is None:  # the data may have moved since: the page says so
        return ""
    across, down = photo.width / scene.width, photo.height / scene.height

    def mark(box: np.ndarray, label: int, text: str, alone: bool, mask: dict[str, Any] | None, hue: int) -> Annotation:
        left, top, width, height = (box * [across, down, across, down]).tolist()
        return Annotation((left, top, width, height), label, text, "dashed" if alone else "solid", mask, hue)

    taken = set(scene.partners.tolist())
    results: list[Annotation] = [
        mark(box, label, f"{names[label - 1]} {score:.2f}", partner == FREE, own, hue)
        for box, label, score, partner, own, hue in zip(
            scene.boxes, scene.labels.tolist(), scene.scores, scene.partners, scene.masks or repeat(None), scene.hues[0]
        )
    ]
    if small:
        bare = [replace(one, text="") for one in results[:MAX_FOUND]]
        return encode_jpeg_uri(draw_annotations(photo, bare, width=HALF_WIDTH // 2, height=HALF_HEIGHT // 2), quality=75)
    there = [
        mark(box, label, f"{names[label - 1]}{' (crowd)' if crowd else ''}", not crowd and number not in taken, own, hue)
        for number, (box, label, crowd, own, hue) in enumerate(
            zip(scene.truth, scene.truth_labels.tolist(), scene.crowd, scene.truth_masks or repeat(None), scene.hues[1])
        )
    ]
    return encode_jpeg_uri(
        draw_side_by_side(photo, results[:MAX_FOUND], sort_largest_first(there), width=HALF_WIDTH, height=HALF_HEIGHT)
    )
