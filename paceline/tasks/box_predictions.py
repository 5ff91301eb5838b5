"""Detections in pixels of the photos, and what of an evaluation is written down for the report.

Letters: N images   M objects   D detections   K classes, 1..K
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.tasks.metrics.coco import CURVE_IOU, RECALL_POINTS, BoxScores, Detections, GroundTruth

# Detections of an image that are written down: as many as the benchmark looks at.
MOST_WRITTEN = 100


def to_detections(rows: np.ndarray, heights: np.ndarray, widths: np.ndarray, plus_one: bool) -> Detections:
    """Fractions of the photo to pixels.

    rows             (D, 7) float64: image number, left, top, right, bottom as fractions, score, class
    heights, widths  (N,) of every photo, by number
    plus_one         widths and heights one pixel larger, as the MXNet system reported them
    """
    numbers = rows[:, 0].astype(np.int64)
    across, down = widths[numbers].astype(np.float64), heights[numbers].astype(np.float64)
    left, top, right, bottom = (rows[:, place] * size for place, size in zip(range(1, 5), (across, down, across, down)))
    more = 1.0 if plus_one else 0.0
    boxes = np.column_stack((left, top, right - left + more, bottom - top + more))
    return Detections(numbers, boxes, rows[:, 6].astype(np.int64), rows[:, 5])


def describe(
    truth: GroundTruth,
    found: Detections,
    scores: BoxScores,
    files: Sequence[str],
    numbers: np.ndarray,
    classes: Sequence[str],
    category_ids: Sequence[int],
) -> dict[str, Any]:
    """JSON content of RUN/predictions/step-N.json (kind "boxes"): every image's detections beside its ground truth.

    found    its `images` are rows of `truth`
    files    (N,) of the images, relative to the data set's root or absolute
    numbers  (N,) of the images in the validation index
    """
    starts = np.searchsorted(found.images, np.arange(len(truth.image_ids) + 1))
    images = []
    for row, (file, number) in enumerate(zip(files, numbers.tolist())):
        mine = most_written(found.scores, int(starts[row]), int(starts[row + 1]))
        real = slice(truth.starts[row], truth.starts[row + 1])
        images.append(
            {
                "index": number,
                "image_id": int(truth.image_ids[row]),
                "file": file,
                "width": int(truth.widths[row]),
                "height": int(truth.heights[row]),
                "boxes": found.boxes[mine].round(2).tolist(),
                "labels": found.classes[mine].tolist(),
                "scores": found.scores[mine].astype(np.float64).round(5).tolist(),
                "truth": {
                    "boxes": truth.boxes[real].round(2).tolist(),
                    "labels": truth.classes[real].tolist(),
                    "crowd": truth.crowd[real].tolist(),
                },
            }
        )
    return {
        "kind": "boxes",
        "classes": list(classes),
        "category_ids": list(category_ids),
        "images": images,
        "per_class": [
            {"name": name, "ap": score.ap, "ap50": score.ap50, "ar100": score.ar100, "objects": score.objects}
            for name, score in zip(classes, scores.per_class)
        ],
        "curves": curves(scores, classes),
    }


def most_written(scores: np.ndarray, first: int, last: int) -> np.ndarray:
    """Of an image's detections, rows first..last - 1, those that are written down, best first."""
    mine = np.arange(first, last)
    return mine[np.argsort(-scores[mine], kind="stable")[:MOST_WRITTEN]]


def curves(scores: BoxScores, classes: Sequence[str]) -> dict[str, Any]:
    """The precision of each class, and their mean, over recall."""
    return {
        "iou": CURVE_IOU,
        "recall": np.linspace(0, 1, RECALL_POINTS).round(2).tolist(),
        "classes": {name: curve.round(5).tolist() for name, curve in zip(classes, scores.curves)},
        "mean": scores.mean_curve.round(5).tolist(),
    }
