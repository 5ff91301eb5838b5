"""Rows of a file of answers as a task's own, scored by the task: the official numbers, and all that an evaluation has."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np

from paceline._utils.errors import DataError
from paceline._utils.names import IMAGE_SUFFIXES, OTHER_PICTURES
from paceline._utils.text import abbreviate, join_names
from paceline.data.checks.suspicious_boxes import guess_coordinate_format
from paceline.data.prepare.box_arrays import mask_arrays
from paceline.data.rle import RLE, compress, decompress
from paceline.inference.external_predictions import PredictionRows, parse_id
from paceline.models.datamodule import DataModule
from paceline.models.metrics.coco import Detections
from paceline.models.metrics.top_k import KEPT, TopK
from paceline.models.object_predictions import CocoShard, pack_shard
from paceline.models.object_task import ObjectData
from paceline.models.task import EvalResult, Task

# The recipe whose task scores rows of this kind.
RECIPES = {"classes": "classify-finetune", "boxes": "fasterrcnn-finetune", "masks": "maskrcnn-finetune"}
# A run of more characters does not fit into 64 bits.
MAX_DIGITS = 12
# Masks that are read at once.
CHUNK = 1024


@dataclass(frozen=True)
class ExternalScores:
    """A file's rows, and whose classes they name."""

    path: Path
    rows: PredictionRows
    classes: Sequence[str] = ()  # the model's, in its order; () = the data's
    first: int = 0  # number of the first
    shares: list[CocoShard] = field(default_factory=list)  # the objects, once `notes` has read them

    @property
    def recipe(self) -> str:
        """The name of a recipe whose task scores them."""
        return RECIPES[self.rows.kind]

    def notes(self, task: Task) -> list[str]:
        """For people, before they are scored: what numbers of classes mean, what was passed over, what looks wrong.

        Raises DataError for a photo or class that the data do not have, and for a mask that does not fit its photo.
        """
        rows, photos, note = _scored(self, task.data)
        results = [*rows.notes, *filter(None, [note])]
        if isinstance(task.data, ObjectData):
            share, odd = _share(self, task.data, rows, photos)
            self.shares.append(share)
            results += [f"{self.path}: {text}" for text in odd if text]
        if any(isinstance(explicit, int) for explicit in rows.classes):
            if rows.ids and isinstance(task.data, ObjectData) and not self.classes:
                results.append("class numbers are read as category ids of the annotations")
            else:
                classes = list(self.classes or task.data.classes)
                results.append(f"class numbers, from {self.first}: {join_names(classes, 12)}")
        return results


def score_external(answers: ExternalScores, task: Task, *, passed: Callable[[int], None], **_: Any) -> EvalResult:
    """As `training.evaluate.evaluate`, without a network, after `answers.notes`. Raises DataError as that does."""
    passed(task.data.val_images)
    if isinstance(task.data, ObjectData):
        return task.evaluator.summarize([pack_shard(answers.shares[-1])])
    path, index, numbers = answers.path, task.data.val_index, task.data.val_numbers
    rows, photos = _scored(answers, task.data)[:2]
    classes = match_classes(rows, path, task.data.classes, (), answers.classes, answers.first)
    best, scores = np.full((len(numbers), KEPT), -1, np.int32), np.zeros((len(numbers), KEPT), np.float32)
    order = np.lexsort((np.arange(len(photos)), -rows.scores, photos))
    for photo, group in groupby(order.tolist(), key=lambda row: photos[row]):
        mine = list(group)[:KEPT]
        if len(set(classes[mine].tolist())) < len(mine):
            raise DataError(f"{path}: {rows.places[mine[0]]}: the image has more than one row for a class.")
        best[photo, : len(mine)], scores[photo, : len(mine)] = classes[mine], rows.scores[mine]
    return task.evaluator.summarize([TopK(numbers, index.labels[numbers].astype(np.int32), best, scores).pack()])


def _scored(answers: ExternalScores, data: DataModule) -> tuple[PredictionRows, np.ndarray, str]:
    """The rows of the photos that are scored, each row's place among these, and a note; others of the split are left out."""
    index, indices = data.val_index, np.full(len(data.val_index), -1)
    indices[data.val_numbers] = np.arange(len(data.val_numbers))
    ids = data.val.image_ids.tolist() if isinstance(data, ObjectData) else ()
    files = [index.path(number) for number in range(len(index))]
    numbers, note = match_images(answers.rows, answers.path, files, ids)
    photos = indices[numbers]
    return answers.rows.take(np.flatnonzero(photos >= 0)), photos[photos >= 0], note


def _share(
    answers: ExternalScores, data: ObjectData, rows: PredictionRows, photos: np.ndarray
) -> tuple[CocoShard, list[str]]:
    """The objects, and what looks wrong in them."""
    classes = match_classes(rows, answers.path, data.classes, data.category_ids, answers.classes, answers.first)
    sizes = np.stack([data.val.heights, data.val.widths], axis=1)[data.val_numbers[photos]].reshape(-1, 2)  # (n, 2)
    boxes = rows.boxes * np.tile(sizes[:, ::-1], 2) if rows.fractions else rows.boxes
    explicit = boxes.any(axis=1)
    odd = [guess_coordinate_format(boxes[explicit], sizes[explicit, ::-1])]
    if flat := np.count_nonzero((boxes[explicit, 2:] <= 0).any(axis=1)):
        odd.append(f"Zero-area boxes: {flat:,} of {len(boxes):,}.")
    masks = None
    if rows.kind == "masks":
        strings, left_out = [], 0
        for first in range(0, len(rows.masks), CHUNK):
            texts, count = _strings(rows, first, sizes[first : first + CHUNK], answers.path)
            strings, left_out = strings + texts, left_out + count
        masks = RLE.of(strings)
        boxes = np.where(boxes.any(axis=1, keepdims=True), boxes, _around(strings, sizes))
        odd += [f"Ignored polygons with less than three points: {left_out:,}."] if left_out else []
    detections = Detections(data.val_numbers[photos], boxes, classes + 1, rows.scores)
    return CocoShard(data.val_numbers, detections, masks), odd


def _strings(rows: PredictionRows, first: int, sizes: np.ndarray, path: Path) -> tuple[list[bytes], int]:
    """Masks from row `first` on as run-length strings, read as annotations are, and polygons left out; sizes: of their photos."""
    from hotcoco import mask as coco

    explicit = rows.masks[first : first + len(sizes)]
    if (texts := _compressed(explicit, sizes)) is not None:
        return texts, 0
    if rows.fractions:
        explicit = [
            [(np.reshape(polygon, (-1, 2)) * size[::-1]).reshape(-1).tolist() for polygon in mask]
            for mask, size in zip(explicit, sizes)
        ]

    def error_of(row: int, reason: str) -> DataError:
        return DataError(f"{path}: {rows.places[first + row]}: {reason}.")

    if empty := [row for row, mask in enumerate(explicit) if mask is None]:
        raise error_of(empty[0], "segmentation is required, because other entries have one (polygons or RLE)")
    arrays, left_out, not_finite = mask_arrays(explicit, sizes[:, 0], sizes[:, 1], error_of)
    if not_finite:
        raise error_of(_not_finite(explicit), "the segmentation contains a non-finite number")
    strings = list(compress(arrays["rle_counts"].astype(np.int64), arrays["object_rles"]))
    starts, objects = arrays["polygon_starts"], arrays["object_polygons"]
    for row, (height, width) in enumerate(sizes.tolist()):
        bounds = starts[objects[row] : objects[row + 1] + 1].tolist()
        polygons = [arrays["polygon_points"][begin:end].tolist() for begin, end in pairwise(bounds)]
        if polygons:
            strings[row] = coco.merge(coco.fr_py_objects(polygons, height, width))["counts"]
        elif not strings[row]:
            strings[row] = compress(np.array([height * width]), np.array([0, 1]))[0]
    return strings, left_out


def _compressed(masks: Sequence[Any], sizes: np.ndarray) -> list[bytes] | None:
    """Masks that all are compressed run lengths and fill their photos; None for others, which are to be read one by one."""
    maps = [mask for mask in masks if isinstance(mask, dict) and isinstance(mask.get("counts"), str) and mask["counts"]]
    if len(maps) < len(masks) or [mask.get("size") for mask in maps] != sizes.tolist():
        return None
    texts = [mask["counts"].encode(errors="surrogatepass") for mask in maps]
    result, pixels = RLE.of(texts), sizes.prod(axis=1)
    parts = result.text - 48  # below 48 they become large
    ends = np.flatnonzero(parts < 32)
    if (parts > 63).any() or (parts[result.starts[1:] - 1] > 31).any() or np.diff(ends, prepend=-1).max() > MAX_DIGITS:
        return None
    runs, starts = decompress(result)
    fit = (runs >= 0) & (runs <= np.repeat(pixels, np.diff(starts)))
    return texts if fit.all() and (np.add.reduceat(runs, starts[:-1]) == pixels).all() else None


def _not_finite(masks: Sequence[Any]) -> int:
    """The first of these masks with a polygon that holds a number that is not finite."""
    polygons = (mask if isinstance(mask, list) else [] for mask in masks)
    return next(row for row, mask in enumerate(polygons) if not all(np.isfinite(one).all() for one in mask))


def _around(strings: Sequence[bytes], sizes: np.ndarray) -> np.ndarray:
    """(n, 4) the box around each mask."""
    from hotcoco import mask as coco

    masks = [{"size": size, "counts": string} for size, string in zip(sizes.tolist(), strings)]
    return np.array(coco.to_bbox(masks), np.float64).reshape(-1, 4) if masks else np.zeros((0, 4))


# Match the names of photos and classes in a file of predictions with the data's.
#
# All rows of a file are read alike, as ids or as names of files: if "7" were an id in one row and a file's stem in another, a photo
# would be scored as another one.
#
# Notation:
#     n rows

SEVERAL = -1
# Other ends of a name belong to its stem: "1.v2".
SUFFIXES = frozenset({*map(os.fsdecode, IMAGE_SUFFIXES), *OTHER_PICTURES, ".txt", ".xml", ".json"})
# Folders that name a part of a data set.
_SPLIT = re.compile(r"(train|val|test)(?:id|idation|ing)?[-_]?\d*", re.IGNORECASE)


def match_images(
    rows: PredictionRows, path: Path, files: Sequence[str], image_ids: Sequence[int]
) -> tuple[np.ndarray, str]:
    """Find the place of each row's photo in `files`.

    Args:
        rows (Rows): what the file of predictions has.
        path (Path): that file, for messages.
        files (Sequence[str]): paths of the data's photos.
        image_ids (Sequence[int]): ids of the annotations; empty if photos have none.

    Returns:
        tuple[np.ndarray, str]: places, shape (n,) int64, and a note on how the rows were read, or "".

    Raises:
        DataError: for a photo that the data does not have, or whose name stands for several.
    """
    photos, ids = _Photos(files), {int(image_id): index for index, image_id in enumerate(image_ids)}
    names = list(dict.fromkeys(rows.photos))
    by_id = {name: ids.get(number) for name in names if (number := parse_id(name)) is not None}
    by_name = {name: photos.find(str(name)) for name in names}
    mixed = {name: (by_id if isinstance(name, int) else by_name).get(name) for name in names}
    readings = (by_id, by_name, mixed) if rows.by_id else (by_name, by_id, mixed)
    complete = [one for one in readings if all(one.get(name, SEVERAL) not in (None, SEVERAL) for name in names)]
    result = (complete or readings)[0]
    for row, name in enumerate(rows.photos):
        position = result.get(name)
        if position is None or position == SEVERAL:
            what = (
                f"is not one of the {len(files):,} images of the data"
                if position is None
                else "is the name of several images"
            )
            example = os.path.join(*Path(files[0]).parts[-2:]) if files else "none"
            raise DataError(
                f"{path}: {rows.places[row]}: {abbreviate(repr(name), 200)} {what}, such as {example}"
                f"{f' (id {image_ids[0]})' if len(image_ids) else ''}. Pass the dataset of the predictions with --data and --split."
            )
    note = ""
    if result is by_id and by_name in complete and by_name != by_id:
        note = f"{path}: image_id is read as the ids of the annotations, although files have these names too; file_name selects files"
    return np.fromiter((result[name] for name in rows.photos), np.int64, len(rows.photos)), note


class _Photos:
    """The data's photos, found by the end of a path, with or without a suffix, of this system or of Windows."""

    def __init__(self, files: Sequence[str]) -> None:
        self._parts = [Path(file).parts for file in files]
        self._folders = {parts[-2] for parts in self._parts if len(parts) > 1}
        self._known: dict[Callable[[str], str], dict[str, list[int]]] = {}

    def _places(self, form: Callable[[str], str]) -> dict[str, list[int]]:
        """Names with and without their folder, and stems that are not a name, in this form -> places."""
        if form not in self._known:
            names, stems = {}, {}
            for index, parts in enumerate(self._parts):
                for tail in {parts[-1], "/".join(parts[-2:])}:
                    names.setdefault(form(tail), []).append(index)
                    stems.setdefault(form(_stem(tail)), []).append(index)
            self._known[form] = {**stems, **names}
        return self._known[form]

    def find(self, name: str) -> int | None:
        """-> the photo's place; None for another photo's name, SEVERAL for the name of several."""
        for form in (str, _folded):
            for parts in (name.split("/"), re.split(r"[/\\]", name)):
                tails = ("/".join(parts[-2:]), parts[-1])
                keys = (form(end) for tail in tails for end in (tail, _stem(tail)))
                if indices := next((results for key in keys if (results := self._places(form).get(key))), None):
                    return self._nearest(parts[:-1], indices, form)
        return None

    def _nearest(self, folders: Sequence[str], indices: Sequence[int], form: Callable[[str], str]) -> int | None:
        """Of photos with the same name, the one in `folders`, which may begin elsewhere; None if it is another split's."""

        def common(position: int) -> int:
            pairs = zip(reversed(folders), reversed(self._parts[position][:-1]))
            return next((i for i, (one, other) in enumerate(pairs) if form(one) != form(other)), len(folders))

        best = max(map(common, indices))
        nearest = [index for index in indices if common(index) == best]
        if len(nearest) > 1:
            return SEVERAL
        parts = self._parts[nearest[0]]
        if best == len(folders) or best >= len(parts) - 1:
            return nearest[0]
        explicit, own = folders[-1 - best], parts[-2 - best]
        there = os.path.join(*parts[: -2 - best], *folders[len(folders) - 1 - best :], parts[-1])
        splits = [result[1].lower() for one in (explicit, own) if (result := _SPLIT.fullmatch(one))]
        is_other = (
            len(set(splits)) > 1 or explicit in self._folders or (explicit not in ("", ".", "..") and os.path.exists(there))
        )
        return None if is_other else nearest[0]


def _stem(name: str) -> str:
    stem, suffix = os.path.splitext(name)
    return stem if suffix.lower() in SUFFIXES else name


def _folded(name: str) -> str:
    """A name without what systems and exporters change: case, Unicode form, URL encoding, blanks around it."""
    return unicodedata.normalize("NFC", unquote(name)).casefold().strip()


def match_classes(
    rows: PredictionRows, path: Path, names: Sequence[str], category_ids: Sequence[int], own: Sequence[str], first: int
) -> np.ndarray:
    """Find the place of each row's class in `names`.

    Args:
        rows (Rows): what the file of predictions has.
        path (Path): that file, for messages.
        names (Sequence[str]): the data's classes.
        category_ids (Sequence[int]): their ids in the annotations; empty if they have none.
        own (Sequence[str]): the model's classes in its order; empty if numbers are the data's.
        first (int): the number of the first class.

    Returns:
        np.ndarray: places, shape (n,) int64.

    Raises:
        DataError: for a class that the data does not have.
    """
    indices = {name: index for index, name in enumerate(names)}
    if own:
        if unknown := [name for name in own if name not in indices]:
            raise DataError(
                f"--class-names: {join_names(unknown)} not found. Classes of the data: {join_names(list(names), 8)}."
            )
        numbers = {first + number: indices[name] for number, name in enumerate(own)}
    elif rows.ids and category_ids:
        numbers = {int(category): index for index, category in enumerate(category_ids)}
    else:
        numbers = {first + index: index for index in range(len(names))}
    # Texts that look like numbers are names if all of them are, as of digits.
    named = not own and all(explicit in indices for explicit in set(rows.classes) if isinstance(explicit, str))
    result = np.zeros(len(rows.classes), np.int64)
    for row, explicit in enumerate(rows.classes):
        number = None if named and isinstance(explicit, str) else parse_id(explicit)
        position = indices.get(str(explicit)) if number is None else numbers.get(number)
        if position is None:
            kind = "name" if number is None else "number"
            have = join_names(list(names), 8) if number is None else join_names([str(number) for number in numbers], 8)
            raise DataError(
                f"{path}: {rows.places[row]}: class {abbreviate(repr(explicit), 100)} is not the {kind} of a class: {have}. "
                "Set the class names of the model in order with --class-names A B C, and the first index with --label-offset."
            )
        result[row] = position
    return result
