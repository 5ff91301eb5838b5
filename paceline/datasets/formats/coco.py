"""One COCO-format JSON -> `Annotations`.

Wanted in the JSON: images (id, file_name), annotations (image_id, category_id, bbox), categories (id, name). Where it
leaves out the rest: height and width are the file's own, iscrowd is 0, area is the box's, annotations count from 1.
Every contradiction is refused here with the file and the entry; pixels are looked at later.
Source: cocodataset.org, "Data format", section 1.

Letters: N images, M objects.
"""

from __future__ import annotations

import os
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from paceline.config.errors import DataError
from paceline.config.printable import short, some
from paceline.datasets.formats.annotations import Annotations
from paceline.datasets.formats.class_folders import first_twice, tidy_class_name
from paceline.datasets.formats.coco_files import ForeignPaths, is_foreign_path, load_json

_MISSING = object()
MOST_PATH_BYTES = 4095  # Linux's PATH_MAX


def read_coco(path: Path, images_folder: Path, *, split: str = "") -> tuple[Annotations, list[str]]:
    """-> one JSON's annotations in its own order, and notes on what it left out, for people.

    path   the JSON, or a zip that holds it as instances_SPLIT*.json
    split  "train" or "val", which of a zip's JSONs is meant
    Raises DataError, naming the file and the entry, where it is no COCO JSON or contradicts itself.
    """
    path, record = load_json(path, split)
    return coco_annotations(path, record, images_folder)


def coco_annotations(path: Path, record: dict[str, Any], images_folder: Path) -> tuple[Annotations, list[str]]:
    """The same of the content of such a JSON; messages name it `path`."""
    images, objects, categories = (_list(path, record, key) for key in ("images", "annotations", "categories"))
    if not images:
        raise DataError(f"{path}: it lists no image. Check that this is the right file.")
    names, notes = _names(path, categories, objects)
    image_ids = _integers(path, "image", images, "id")
    _refuse_twice(path, "image", image_ids)
    rows = _rows_of(path, image_ids, _integers(path, "annotation", objects, "image_id"))
    category = _integers(path, "annotation", objects, "category_id")
    unknown = np.flatnonzero(~np.isin(category, np.array(list(names), np.int64)))
    if len(unknown):
        raise DataError(
            f"{path}: annotation {unknown[0]} ({_title(objects[unknown[0]])}) has category_id {category[unknown[0]]}, "
            f"and there is no such category ({some(map(str, sorted(names)), 10)}). {_more(unknown)}"
        )
    boxes = _boxes(path, objects)
    with np.errstate(over="ignore"):  # of boxes that no image can hold
        box_areas = boxes[:, 2] * boxes[:, 3]
    areas = _optional(path, objects, "area", box_areas, notes, "the box's area")
    annotation_ids = _annotation_ids(path, objects, notes)
    annotations = Annotations(
        source=path,
        images_folder=images_folder,
        file_names=_file_names(path, images, images_folder, notes),
        image_ids=image_ids,
        heights=_sides(path, images, "height"),
        widths=_sides(path, images, "width"),
        object_rows=rows,
        boxes=boxes,
        categories=category,
        crowd=(_optional(path, objects, "iscrowd", np.zeros(len(objects)), notes, "0") != 0).astype(np.uint8),
        areas=areas.astype(np.float64),
        annotation_ids=annotation_ids,
        segmentations=[entry.get("segmentation") or None for entry in objects],
        names=names,
    )
    return annotations, notes


def _list(path: Path, record: dict[str, Any], key: str) -> list[dict[str, Any]]:
    entries = record.get(key)
    if not isinstance(entries, list):
        what = f"has no {key!r}" if key not in record else f"{key!r} is no list"
        raise DataError(
            f"{path}: not a COCO annotation file: it {what}. Wanted: images, annotations and categories; found "
            f"{some(map(short, record))}."
        )
    for place, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise DataError(f"{path}: entry {place} of {key!r} is no object but {short(entry, 40)!r}.")
    return entries


def _names(
    path: Path, categories: list[dict[str, Any]], objects: list[dict[str, Any]]
) -> tuple[dict[int, str], list[str]]:
    """-> category id -> name, and notes."""
    if not categories:
        raise DataError(f"{path}: it has no categories, so there is nothing to detect. Export it with its classes.")
    ids = _integers(path, "category", categories, "id")
    _refuse_twice(path, "category", ids)
    labels = [
        tidy_class_name(entry.get("name"), f"{path}: category {place} (id {ids[place]})")
        for place, entry in enumerate(categories)
    ]
    if (twice := first_twice(labels)) is not None:
        raise DataError(f"{path}: two categories are called {twice!r}. Give each a name of its own.")
    names = dict(zip(ids.tolist(), labels))
    parent = names.get(0)
    others = [entry for entry in categories if entry["id"] != 0]
    is_parent = parent is not None and bool(others) and all(entry.get("supercategory") == parent for entry in others)
    if not is_parent or any(entry.get("category_id") == 0 for entry in objects):
        return names, []
    # Roboflow writes the parent of all classes as category 0.
    del names[0]
    return names, [f"{path}: category 0 ({parent}) is the parent of all others and has no object: left out"]


def _integers(path: Path, what: str, entries: list[dict[str, Any]], key: str) -> np.ndarray:
    """(n,) int64. Raises DataError for the first entry where `key` is missing or no whole number."""
    values = [entry.get(key, _MISSING) for entry in entries]
    array = _numbers(values)
    if array is not None and (array.dtype.kind == "i" or ((array == np.floor(array)) & (abs(array) < 2**63)).all()):
        return array.astype(np.int64)
    whole = (_is_number(value) and abs(value) < 2**63 and value == int(value) for value in values)
    place = next(i for i, is_whole in enumerate(whole) if not is_whole)
    raise _wrong(path, what, place, entries[place], key, values[place], "a whole number")


def _numbers(values: list[Any]) -> np.ndarray | None:
    """(n,) int64, or float64; None where one is no number, or none that a float64 can hold."""
    if not values:
        return np.zeros(0, np.int64)
    if not set(map(type, values)) <= {int, float}:
        return None
    array = np.array(values)
    if array.dtype in (np.int64, np.float64):
        return array
    try:
        return np.array(array, np.float64)  # some are beyond 64 bits
    except OverflowError:
        return None


def _is_number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) <= sys.float_info.max)


def _wrong(path: Path, what: str, place: int, entry: dict[str, Any], key: str, value: Any, wanted: str) -> DataError:
    found = "is missing" if value is _MISSING else f"is {short(value)!r}"
    return DataError(f"{path}: {what} {place} ({_title(entry)}): {key!r} {found}, wanted is {wanted}.")


def _title(entry: dict[str, Any]) -> str:
    """An entry's id and file name, for messages."""
    name = f", {short(entry['file_name'], 90)}" if "file_name" in entry else ""
    return f"id {short(entry.get('id', 'missing'), 30)}{name}"


def _more(rows: np.ndarray) -> str:
    return (f"{len(rows) - 1:,} more like this. " if len(rows) > 1 else "") + "Correct the file, or export it again."


def _refuse_twice(path: Path, what: str, ids: np.ndarray) -> None:
    values, counts = np.unique(ids, return_counts=True)
    if (counts > 1).any():
        twice = values[counts > 1]
        places = np.flatnonzero(ids == twice[0])
        raise DataError(
            f"{path}: {what} id {twice[0]} is there {len(places)} times (entries {places[0]} and {places[1]}). "
            f"{len(twice):,} such id{'s' if len(twice) > 1 else ''}. Each must be unique: were two files merged? Export it again."
        )


def _rows_of(path: Path, image_ids: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """(M,) the row of each object's image."""
    order = np.argsort(image_ids, kind="stable")
    at = np.minimum(np.searchsorted(image_ids[order], wanted), len(image_ids) - 1)
    rows = order[at]
    unknown = np.flatnonzero(image_ids[rows] != wanted)
    if len(unknown):
        raise DataError(
            f"{path}: annotation {unknown[0]} belongs to image id {wanted[unknown[0]]}, and there is no such image. "
            f"{_more(unknown)}"
        )
    return rows.astype(np.int64)


def _boxes(path: Path, objects: list[dict[str, Any]]) -> np.ndarray:
    values = [entry.get("bbox", _MISSING) for entry in objects]
    fours = [type(value) is list and len(value) == 4 for value in values]
    if all(fours) and (array := _numbers(list(chain.from_iterable(values)))) is not None:
        return array.astype(np.float64).reshape(-1, 4)
    place = next(i for i, value in enumerate(values) if not fours[i] or _numbers(value) is None)
    raise _wrong(path, "annotation", place, objects[place], "bbox", values[place], "[x, y, width, height]")


def _optional(
    path: Path, objects: list[dict[str, Any]], key: str, default: np.ndarray, notes: list[str], instead: str
) -> np.ndarray:
    """(M,) numbers; where an entry has none (or null), `default`'s, and a note."""
    values = [entry.get(key) for entry in objects]
    lacking = [i for i, value in enumerate(values) if value is None]
    for i in lacking:
        values[i] = float(default[i])
    array = _numbers([int(value) if isinstance(value, bool) else value for value in values])
    if array is None:
        place = next(i for i, value in enumerate(values) if not isinstance(value, bool) and not _is_number(value))
        raise _wrong(path, "annotation", place, objects[place], key, values[place], "a number")
    if lacking:
        notes.append(f"{path}: {len(lacking):,} annotations have no {key!r}: {instead} is used")
    return array


def _annotation_ids(path: Path, objects: list[dict[str, Any]], notes: list[str]) -> np.ndarray:
    if any("id" in entry for entry in objects):
        ids = _integers(path, "annotation", objects, "id")
        twice = len(ids) - len(np.unique(ids))
        if not twice:
            return ids
        notes.append(f"{path}: {twice:,} annotations have the id of another one: all are numbered from 1")
    return np.arange(1, len(objects) + 1, dtype=np.int64)


def _sides(path: Path, images: list[dict[str, Any]], key: str) -> np.ndarray:
    """(N,) int32 pixels, 0 where the JSON names none."""
    entries = [{**entry, key: entry.get(key) or 0} for entry in images]
    sides = _integers(path, "image", entries, key)
    bad = np.flatnonzero((sides < 0) | (sides > 1_000_000))
    if len(bad):
        raise _wrong(path, "image", int(bad[0]), images[bad[0]], key, int(sides[bad[0]]), "a number of pixels")
    return sides.astype(np.int32)


def _is_file_name(name: str) -> bool:
    """Whether a file can have this name; one with a line break would forge lines of messages."""
    try:
        return len(os.fsencode(name)) <= MOST_PATH_BYTES and "\0" not in name and "\n" not in name
    except UnicodeEncodeError:  # half a character
        return False


def _file_names(path: Path, images: list[dict[str, Any]], folder: Path, notes: list[str]) -> list[str]:
    """N paths inside the folder of images. Raises DataError for one that leads out of it, or is there twice."""
    seen: dict[str, int] = {}
    foreign = ForeignPaths(folder)
    for place, entry in enumerate(images):
        name = entry.get("file_name", _MISSING)
        if not isinstance(name, str) or not name or not _is_file_name(name):
            raise _wrong(path, "image", place, {"id": entry.get("id")}, "file_name", name, "the name of a file")
        if is_foreign_path(name):
            name = foreign.resolve(name, f"{path}: image {place} ({_title(entry)})")
        name = os.path.normpath(name)
        if name in seen:
            raise DataError(
                f"{path}: images {seen[name]} and {place} are the same file, {short(name, 200)}. Its objects must be listed under "
                "one image. Correct the file, or export it again."
            )
        seen[name] = place
    notes += foreign.notes(path)
    return list(seen)
