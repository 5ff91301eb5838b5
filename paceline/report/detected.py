"""What a detector's predictions say: which photos to show, how good each class is, which classes are taken for which.

A predictions file, RUN/predictions/step-*.json; boxes are left, top, width, height in pixels, labels are 1..K:
    {"step": 350, "kind": "boxes", "classes": [name, ...],
     "images": [{"index", "image_id", "file", "width", "height", "boxes", "labels", "scores",     (best first)
                 "truth": {"boxes", "labels", "crowd"}}, ...],
     "per_class": [{"name", "ap", "ap50", "ar100", "objects"}, ...],
     "curves": {"iou": 0.5, "recall": [101 values], "classes": {name: [101 precisions]}, "mean": [101 precisions]}}
-1 stands for a value that does not exist, as in COCO's own numbers.
Letters: n boxes found in an image   m boxes annotated   K classes
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from paceline.metrics.coco import Detections, GroundTruth
from paceline.metrics.confusion import BACKGROUND, MATCH_IOU, SHOWN_SCORE, confusion, overlaps
from paceline.report.curves import WIDE, Chart, Line, draw_chart
from paceline.report.draw_boxes import Mark, beside

# Each half of a picture fits into this many pixels: legible at the width that the page gives it.
HALF_WIDTH, HALF_HEIGHT = 400, 300
# Where nothing is sure enough to be shown, so many of the best boxes are.
UNSURE = 3
# A crowded photo would be nothing but frames.
MOST_FOUND = 40
# Classes whose curves are told apart by colour, beside the mean.
MOST_CURVES = 5
_FREE, _ON_CROWD = -1, -2


@dataclass(frozen=True)
class Scene:
    """One photo: what was found with a score worth showing (best first), and what is there."""

    file: str
    width: int  # pixels of the photo, which the boxes are in
    height: int
    boxes: np.ndarray  # (n, 4)
    labels: np.ndarray  # (n,)
    scores: np.ndarray  # (n,)
    truth: np.ndarray  # (m, 4)
    truth_labels: np.ndarray  # (m,)
    crowd: np.ndarray  # (m,) bool

    @cached_property
    def partners(self) -> np.ndarray:
        """(n,) number of the annotated box that each found one matches; below 0: none, or inside a crowd region.

        Best first, each takes the largest overlap (IoU >= 0.5) among the free boxes of its class.
        """
        shape = len(self.boxes), len(self.truth)
        overlap = overlaps(
            self.boxes.repeat(shape[1], axis=0), np.tile(self.truth, (shape[0], 1)), np.tile(self.crowd, shape[0])
        ).reshape(shape)
        same = self.labels[:, None] == self.truth_labels[None, :]
        free = ~self.crowd
        partners = np.full(len(self.boxes), _FREE)
        for found in np.flatnonzero(self.scores >= SHOWN_SCORE):
            reach = np.where(same[found] & free, overlap[found], 0.0)
            if reach.size and reach.max() >= MATCH_IOU:
                partners[found] = reach.argmax()
                free[partners[found]] = False
            elif (same[found] & self.crowd & (overlap[found] >= MATCH_IOU)).any():
                partners[found] = _ON_CROWD
        return partners

    @property
    def counts(self) -> tuple[int, int, int]:
        """Objects found, objects there, and boxes where no such object is."""
        right = int((self.partners >= 0).sum())
        wrong = int(((self.partners == _FREE) & (self.scores >= SHOWN_SCORE)).sum())
        return right, int((~self.crowd).sum()), wrong

    @property
    def quality(self) -> float | None:
        """F1 of the shown boxes, 0..1; None where nothing is there and nothing was found."""
        right, there, wrong = self.counts
        return 2 * right / (right + wrong + there) if right + wrong + there else None


@dataclass(frozen=True)
class ShownScene:
    """A photo as the page shows it.

    picture  a data URI, predictions on the left and annotations on the right; "" where the file cannot be read
    """

    file: str
    found: int
    there: int
    wrong: int
    quality: float
    picture: str


def read_scenes(predictions: Mapping[str, Any], root: Path) -> list[Scene]:
    """Every image of a predictions file of kind boxes, with the boxes worth showing; relative files lie in `root`."""
    scenes = []
    for image in predictions["images"]:
        scores = np.asarray(image["scores"], np.float64)
        keep = int((scores >= SHOWN_SCORE).sum()) or UNSURE
        truth = image["truth"]
        scenes.append(
            Scene(
                file=str(root / image["file"]),
                width=int(image["width"]),
                height=int(image["height"]),
                boxes=_rows(image["boxes"][:keep]),
                labels=np.asarray(image["labels"][:keep], np.int64),
                scores=scores[:keep],
                truth=_rows(truth["boxes"]),
                truth_labels=np.asarray(truth["labels"], np.int64),
                crowd=np.asarray(truth["crowd"], bool),
            )
        )
    return scenes


def worst_and_best(scenes: Sequence[Scene], most: int) -> tuple[list[Scene], list[Scene]]:
    """The `most` worst photos, worst first, and the `most` best, best first; equal ones by file name, none in both."""
    rated = [(scene.quality, scene) for scene in scenes if scene.quality is not None]
    rising = [scene for quality, scene in sorted(rated, key=lambda pair: (pair[0], pair[1].file)) if quality < 1]
    falling = [scene for quality, scene in sorted(rated, key=lambda pair: (-pair[0], pair[1].file)) if quality > 0]
    worst = rising[: min(most, max(1, len(rated) // 2))]
    chosen = {id(scene) for scene in worst}
    return worst, [scene for scene in falling if id(scene) not in chosen][:most]


def with_pictures(scenes: Sequence[Scene], names: Sequence[str]) -> list[ShownScene]:
    """The photos with their boxes as JPEG data URIs.

    names  of classes 1..K
    """
    return [ShownScene(scene.file, *scene.counts, scene.quality or 0.0, _picture(scene, names)) for scene in scenes]


def class_table(predictions: Mapping[str, Any]) -> list[tuple[str, float, float, float, int]]:
    """(class, AP, AP50, AR100, objects) for every class that has objects, the worst first."""
    rows = [(row["name"], row["ap"], row["ap50"], row["ar100"], row["objects"]) for row in predictions["per_class"]]
    return sorted((row for row in rows if row[1] >= 0), key=lambda row: (row[1], row[0]))


def count_confusions(scenes: Sequence[Scene], num_classes: int) -> np.ndarray:
    """(K+1, K+1): objects of a class (row) found as a class (column); 0 is background. See paceline.metrics.confusion."""
    sizes = [len(scene.truth) for scene in scenes]
    truth = GroundTruth(
        image_ids=np.arange(len(scenes)),
        heights=np.array([scene.height for scene in scenes]),
        widths=np.array([scene.width for scene in scenes]),
        starts=np.cumsum([0, *sizes]),
        boxes=_rows([box for scene in scenes for box in scene.truth]),
        classes=_joined([scene.truth_labels for scene in scenes]),
        crowd=_joined([scene.crowd for scene in scenes]).astype(np.uint8),
        areas=_joined([scene.truth[:, 2] * scene.truth[:, 3] for scene in scenes], np.float64),
        num_classes=num_classes,
    )
    found = Detections(
        images=np.repeat(np.arange(len(scenes)), [len(scene.boxes) for scene in scenes]),
        boxes=_rows([box for scene in scenes for box in scene.boxes]),
        classes=_joined([scene.labels for scene in scenes]),
        scores=_joined([scene.scores for scene in scenes], np.float64),
    )
    return confusion(truth, found)


def mistakes(counts: np.ndarray, names: Sequence[str], most: int) -> list[tuple[str, str, int, float]]:
    """(class, taken for, times, share of the class's objects) of the most frequent confusions of two classes."""
    pairs = [
        (names[true - 1], names[found - 1], int(counts[true, found]), float(counts[true, found] / counts[true].sum()))
        for true, found in np.argwhere(counts).tolist()
        if true != found and BACKGROUND not in (true, found)
    ]
    return sorted(pairs, key=lambda pair: (-pair[2], pair[0], pair[1]))[:most]


def confusion_matrix(counts: np.ndarray, names: Sequence[str]) -> list[tuple[str, list[tuple[str, float, str]]]]:
    """Rows of the drawn matrix, background last both ways: (class, [(count, share of the row, tone of the cell)])."""
    order = [*range(1, len(names) + 1), BACKGROUND]
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return [
        (
            names[true - 1] if true else "no object",
            [
                (f"{counts[true, found]:,}" if true or found else "", float(shares[true, found]), tone)
                for found in order
                for tone in ["good" if true == found else "bad"]
            ],
        )
        for true in order
    ]


def precision_recall(predictions: Mapping[str, Any]) -> Chart | None:
    """Precision over recall at IoU 0.5: the mean, and classes; of many classes the best, the middle and the worst ones.

    None where no class has an object.
    """
    curves, rows = predictions["curves"], class_table(predictions)
    recall = curves["recall"]
    at = [f"recall {value:.2f}" for value in recall]
    if len(rows) > MOST_CURVES:
        rows = [rows[round(place * (len(rows) - 1) / (MOST_CURVES - 1))] for place in range(MOST_CURVES)]
    lines = [Line("mean", recall, curves["mean"], at, 0, "bold")] if len(rows) > 1 else []
    lines += [Line(name, recall, curves["classes"][name], at, 1 + n) for n, (name, *_) in enumerate(reversed(rows))]
    return draw_chart(
        f"Precision over recall at IoU {curves['iou']:g}",
        lines,
        x_label="recall",
        x_end=1,
        value_text=lambda _, value: f"{value:.3f}",
        from_zero_to=1.0,
        width=WIDE,
    )


def _picture(scene: Scene, names: Sequence[str]) -> str:
    """Predictions beside annotations as a JPEG data URI; a dashed box has no counterpart on the other side."""
    try:
        with Image.open(scene.file) as photo:
            photo.draft("RGB", (2 * HALF_WIDTH, 2 * HALF_HEIGHT))
            pixels = photo.convert("RGB")
    except (OSError, ValueError, Image.DecompressionBombError):  # the data may have moved since: the page says so
        return ""
    across, down = pixels.width / scene.width, pixels.height / scene.height
    scale = np.array([across, down, across, down])
    taken = set(scene.partners.tolist())
    found = [
        _mark(box * scale, label, f"{names[label - 1]} {score:.2f}", partner == _FREE)
        for box, label, score, partner in zip(scene.boxes, scene.labels.tolist(), scene.scores, scene.partners)
    ]
    there = [
        _mark(
            box * scale, label, names[int(label) - 1] + (" (crowd)" if crowd else ""), not crowd and number not in taken
        )
        for number, (box, label, crowd) in enumerate(zip(scene.truth, scene.truth_labels.tolist(), scene.crowd))
    ]
    there.sort(key=lambda mark: -mark.box[2] * mark.box[3])  # the large ones are named first
    buffer = io.BytesIO()
    both = beside(pixels, found[:MOST_FOUND], there, width=HALF_WIDTH, height=HALF_HEIGHT)
    both.save(buffer, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def _mark(box: np.ndarray, label: int, text: str, alone: bool) -> Mark:
    left, top, width, height = box.tolist()
    return Mark((left, top, width, height), label, text, "dashed" if alone else "solid")


def _rows(boxes: Sequence[Any]) -> np.ndarray:
    return np.asarray(boxes, np.float64).reshape(-1, 4)


def _joined(parts: Sequence[np.ndarray], kind: Any = np.int64) -> np.ndarray:
    return np.concatenate([np.zeros(0, kind), *(part.astype(kind) for part in parts)])
