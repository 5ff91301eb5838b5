"""Rows of a file of answers as a task's own, scored by the task: the official numbers, and all that an evaluation has."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from paceline.boxes.run_lengths import RunLengths
from paceline.config.errors import DataError
from paceline.config.printable import some
from paceline.predict.foreign import Rows, class_numbers, photo_numbers
from paceline.tasks.metrics.coco import Detections
from paceline.tasks.metrics.coco_pack import Share, pack
from paceline.tasks.metrics.top_k import KEPT, TopK
from paceline.tasks.objects import ObjectTask
from paceline.tasks.task import Evaluation, Task

# The recipe whose task scores rows of this kind.
RECIPES = {"classes": "resnet50-custom", "boxes": "fasterrcnn-custom", "masks": "maskrcnn-custom"}


@dataclass(frozen=True)
class Answers:
    """A file's rows, and whose classes they name."""

    path: Path
    rows: Rows
    classes: Sequence[str] = ()  # the model's, in its order; () = the data's
    first: int = 0  # number of the first

    @property
    def recipe(self) -> str:
        """The name of a recipe whose task scores them."""
        return RECIPES[self.rows.kind]

    def numbers(self, task: Task) -> str:
        """What numbers of classes mean, in words; "" where classes are named."""
        if not any(isinstance(given, int) for given in self.rows.classes):
            return ""
        if self.rows.ids and isinstance(task, ObjectTask) and not self.classes:
            return "numbers of classes are the annotations' category ids"
        return f"numbers of classes, from {self.first}: {some(list(self.classes or task.classes), 12)}"


def score_answers(answers: Answers, task: Task, *, passed: Callable[[int], None], **_: Any) -> Evaluation:
    """As `training.evaluate.evaluate`, without a network.

    Raises DataError for a photo or class that the data do not have, and for a mask of another size than its photo.
    """
    passed(task.val_images)
    if isinstance(task, ObjectTask):
        return task.summarise([pack(_share(answers, task))])
    path, index, numbers = answers.path, task.val_index, task.val_numbers
    rows, photos = _scored(answers, task, [index.path(number) for number in range(len(index))], ())
    classes = class_numbers(rows, path, task.classes, (), answers.classes, answers.first)
    best, scores = np.full((len(numbers), KEPT), -1, np.int32), np.zeros((len(numbers), KEPT), np.float32)
    order = np.lexsort((np.arange(len(photos)), -rows.scores, photos))
    for photo, group in groupby(order.tolist(), key=lambda row: photos[row]):
        mine = list(group)[:KEPT]
        if len(set(classes[mine].tolist())) < len(mine):
            raise DataError(f"{path}: {rows.places[mine[0]]}: its photo has one class twice.")
        best[photo, : len(mine)], scores[photo, : len(mine)] = classes[mine], rows.scores[mine]
    return task.summarise([TopK(numbers, index.labels[numbers].astype(np.int32), best, scores).pack()])


def _scored(answers: Answers, task: Task, files: Sequence[str], ids: Sequence[int]) -> tuple[Rows, np.ndarray]:
    """The rows of the photos that are scored, and each row's place among these; others of the split are left out."""
    places = np.full(len(files), -1)
    places[task.val_numbers] = np.arange(len(task.val_numbers))
    photos = places[photo_numbers(answers.rows, answers.path, files, ids)]
    return answers.rows.take(np.flatnonzero(photos >= 0)), photos[photos >= 0]


def _share(answers: Answers, task: ObjectTask) -> Share:
    path, index = answers.path, task.val_index
    files = [os.fsdecode(index.relative_name(number)) for number in range(len(index))]
    rows, photos = _scored(answers, task, files, task.val.image_ids.tolist())
    classes = class_numbers(rows, path, task.classes, task.category_ids, answers.classes, answers.first)
    sizes = np.stack([task.truth.heights, task.truth.widths], axis=1)[photos].reshape(-1, 2)  # (n, 2)
    boxes = rows.boxes * np.tile(sizes[:, ::-1], 2) if rows.fractions else rows.boxes
    masks = None
    if rows.kind == "masks":
        strings = [
            _string(mask, height, width, rows, f"{path}: {place}")
            for mask, (height, width), place in zip(rows.masks, sizes.tolist(), rows.places)
        ]
        masks = RunLengths.of(strings)
        boxes = np.where(boxes.any(axis=1, keepdims=True), boxes, _around(strings, sizes))
    found = Detections(task.val_numbers[photos], boxes, classes + 1, rows.scores)
    return Share(task.val_numbers, found, masks)


def _string(mask: Any, height: int, width: int, rows: Rows, where: str) -> bytes:
    """A mask as a string of run lengths."""
    from hotcoco import mask as coco

    if isinstance(mask, dict):
        if list(mask.get("size", ())) != [height, width]:
            raise DataError(
                f"{where}: its mask is of {mask.get('size')} pixels (height, width), its photo of [{height}, {width}]."
            )
        counts = mask.get("counts")
        if isinstance(counts, str):
            return counts.encode("ascii")
        mask = {"size": [height, width], "counts": counts}
    scale = (width, height) if rows.fractions else (1, 1)
    try:
        if isinstance(mask, dict):
            return coco.fr_py_objects(mask, height, width)["counts"]
        polygons = [(np.array(polygon, np.float64).reshape(-1, 2) * scale).reshape(-1).tolist() for polygon in mask]
        return coco.merge(coco.fr_py_objects(polygons, height, width))["counts"]
    except (TypeError, ValueError, KeyError) as problem:
        raise DataError(f"{where}: its segmentation is neither run lengths nor polygons: {problem}.") from None


def _around(strings: Sequence[bytes], sizes: np.ndarray) -> np.ndarray:
    """(n, 4) the box around each mask."""
    from hotcoco import mask as coco

    masks = [{"size": size, "counts": string} for size, string in zip(sizes.tolist(), strings)]
    return np.array(coco.to_bbox(masks), np.float64).reshape(-1, 4) if masks else np.zeros((0, 4))
