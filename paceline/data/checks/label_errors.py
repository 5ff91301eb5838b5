"""Labels that a run's answers on photos it did not learn from speak against; somebody has to look at each.

Classes, by the rule of confident learning (Northcutt, Jiang, Chuang 2021): the best class is another one, with at least the
probability that photos of that class have on average. Objects, among detections from the score of the best F1 on:

    class    on an object (IoU 0.6), of another class, and none of the object's own class is there
    place    the object's own class, and they meet (IoU 0.3) without covering each other (0.6, or what is an outlier of the class's
             overlaps where the run is that exact); nothing covers it better
    missing  where no object is (IoU below 0.1), with a score of 0.6 or more

Letters: D detections   M objects of a photo
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from paceline.data.checks.suspicious_boxes import paired_overlaps

ON, MEETS, BESIDE, SURE = 0.6, 0.3, 0.1, 0.6
FEW = 20  # objects of a class that show how exact a run is
SCORE = 0.5  # where a run found no threshold
Kind = Literal["class", "place", "missing"]
TITLES: dict[Kind, str] = {
    "class": "labels that the run's answers contradict",
    "place": "boxes that lie beside where the run found the object",
    "missing": "objects that the run found and nobody labelled",
}


class SuspiciousLabel(NamedTuple):
    """One label."""

    kind: Kind
    file: Any  # the photo's, as the predictions have it
    object: int | None  # its number in the photo; None for a photo's class, and for a missing one
    box: tuple[float, ...]  # found there: left, top, width, height in pixels; () for a photo's class
    note: str  # what is labeled and what was found
    degree: float  # the larger, the surer


def find_label_errors(predictions: Mapping[str, Any]) -> list[SuspiciousLabel]:
    """The surest first. predictions: the content of RUN/predictions/step-N.json; a detection of class 0 does not count."""
    result = _of_photos if predictions["kind"] == "classification" else _of_objects
    return sorted(result(predictions), key=lambda suspect: -suspect.degree)


def _of_photos(predictions: Mapping[str, Any]) -> Iterator[SuspiciousLabel]:
    names = predictions["classes"]
    images = [image for image in predictions["images"] if image["top5"]]
    own: list[list[float]] = [[] for _ in names]
    chances = [{answer["class"]: answer["score"] for answer in image["top5"]} for image in images]
    for image, chance in zip(images, chances):
        own[image["label"]].append(chance.get(image["label"], 0.0))
    usual = [float(np.mean(some)) if some else 1.0 for some in own]
    for image, chance in zip(images, chances):
        label, (best, score) = image["label"], max(chance.items(), key=lambda pair: pair[1])
        if best != label and score >= usual[best]:
            note = f"labelled {names[label]}, found {names[best]} at {score:.2f}"
            yield SuspiciousLabel("class", image["file"], None, (), note, score - chance.get(label, 0.0))


class _Shown(NamedTuple):
    """One photo's detections from the best threshold on, and its objects."""

    file: Any
    boxes: np.ndarray  # (D, 4)
    scores: np.ndarray  # (D,)
    labels: np.ndarray  # (D,)
    classes: np.ndarray  # (M,)
    crowd: np.ndarray  # (M,) bool
    overlap: np.ndarray  # (D, M)
    alike: np.ndarray  # (D, M) the overlap with objects of the same class, else 0


def _of_objects(predictions: Mapping[str, Any]) -> Iterator[SuspiciousLabel]:
    names, photos = predictions["classes"], [*_shown(predictions)]
    least = _least_overlap(photos, len(names))
    for photo in photos:
        for row in np.flatnonzero(~photo.crowd).tolist() if len(photo.scores) else ():
            k, alike, scores = int(photo.classes[row]), photo.alike[:, row], photo.scores
            others = np.where((photo.labels != k) & (photo.overlap[:, row] >= ON), scores, -1.0)
            index, nearest = int(others.argmax()), int(alike.argmax())
            if others[index] >= 0 and alike.max() < MEETS:
                note = f"labelled {names[k - 1]}, found {names[photo.labels[index] - 1]} at {scores[index]:.2f}"
                yield SuspiciousLabel("class", photo.file, row, tuple(photo.boxes[index]), note, float(scores[index]))
            elif MEETS <= alike[nearest] < least[k] and photo.overlap[nearest].argmax() == row:
                note = f"{names[k - 1]}, found at {scores[nearest]:.2f} with an IoU of {alike[nearest]:.2f}"
                degree = float(scores[nearest] * (1 - alike[nearest]))
                yield SuspiciousLabel("place", photo.file, row, tuple(photo.boxes[nearest]), note, degree)
        for index in np.flatnonzero((photo.overlap.max(axis=1, initial=0) < BESIDE) & (photo.scores >= SURE)).tolist():
            left, top, width, height = photo.boxes[index].tolist()
            note = f"found {names[photo.labels[index] - 1]} at {photo.scores[index]:.2f}, "
            note += f"{width:.0f} x {height:.0f} px from {left:.0f}, {top:.0f}"
            yield SuspiciousLabel("missing", photo.file, None, tuple(photo.boxes[index]), note, float(photo.scores[index]))


def _shown(predictions: Mapping[str, Any]) -> Iterator[_Shown]:
    above = predictions.get("best_f1", {}).get("threshold", SCORE)
    for image in predictions["images"]:
        scores, truth = np.array(image["scores"], np.float64), image["truth"]
        labels, classes = np.array(image["labels"], np.int64), np.array(truth["labels"], np.int64)
        kept = np.flatnonzero((scores >= above) & (labels > 0))
        boxes, labels = np.array(image["boxes"], np.float64).reshape(-1, 4)[kept], labels[kept]
        objects, crowd = np.array(truth["boxes"], np.float64).reshape(-1, 4), np.array(truth["crowd"], bool)
        overlap = _each_with_each(boxes, objects, crowd)
        alike = np.where(labels[:, None] == classes[None], overlap, 0.0)
        yield _Shown(image["file"], boxes, scores[kept], labels, classes, crowd, overlap, alike)


def _least_overlap(photos: Sequence[_Shown], classes: int) -> np.ndarray:
    """(K + 1,) what a sound label of each class overlaps with where it is found: ON, or more where the run is that exact."""
    best = [photo.alike.max(axis=0, initial=0) for photo in photos]
    overlap = np.concatenate([np.zeros(0), *best])
    of = np.concatenate([np.zeros(0, np.int64), *(photo.classes for photo in photos)])
    least = np.full(classes + 1, ON)
    for k in range(1, classes + 1):
        mine = overlap[(of == k) & (overlap >= MEETS)]
        if len(mine) >= FEW:
            low, high = np.quantile(mine, (0.25, 0.75))
            least[k] = max(ON, low - 1.5 * (high - low))  # below are outliers (Tukey 1977)
    return least


def _each_with_each(boxes: np.ndarray, others: np.ndarray, crowd: np.ndarray) -> np.ndarray:
    first, second = np.indices((len(boxes), len(others))).reshape(2, -1)
    return paired_overlaps(boxes[first], others[second], crowd[second]).reshape(len(boxes), len(others))
