"""One COCO-format JSON -> `Annotations`.

The JSON must have images (id, file_name), annotations (image_id, category_id, bbox or segmentation), and categories (id, name). If
it leaves out the rest, height and width are the file's own, iscrowd is 0, a box is the bounds of the mask, an area is that of the
mask or of the box, and annotations count from 1. Numbers may be texts. `ignore` is not read: pycocotools replaces it by iscrowd.
Every contradiction is rejected here with the file and the entry; pixels are looked at later.
Source: cocodataset.org, "Data format", section 1.

Letters: N images, M objects.
"""

from __future__ import annotations

import gc
import json
import os
import re
import shlex
import sys
import zipfile
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from paceline._utils.errors import DataError
from paceline._utils.safe_read import open_plain, read_plain
from paceline._utils.text import abbreviate, join_names
from paceline.data.formats.annotations import Annotations, segmentation_box
from paceline.data.formats.class_folders import find_duplicate, tidy_class_name
from paceline.data.formats.file_matching import match_names
from paceline.data.formats.label_tools import identify_json_tool

_MISSING = object()
MAX_PATH_BYTES = 4095  # Linux's PATH_MAX
# The largest that are used, Objects365's, have 6 GB.
MAX_BYTES = 8 << 30
# In a zip: annotations of COCO pack to a quarter, indented ones to a twentieth; nothing of so many bytes is a bomb.
MAX_RATIO, ALWAYS_BYTES = 30, 16 << 20
# The keys of each list that hold numbers.
NUMBERS = {
    "images": ("id", "height", "width"),
    "annotations": ("id", "image_id", "category_id", "bbox", "area", "iscrowd", "segmentation"),
    "categories": ("id",),
}
_NUMBER = re.compile(r"\s*[-+]?\d{1,20}(\.\d*)?([eE][-+]?\d{1,3})?\s*", re.ASCII)


def read_coco(path: Path, images_folder: Path, *, split: str = "") -> tuple[Annotations, list[str]]:
    """-> one JSON's annotations in its own order, and notes on what it left out, for people.

    path   the JSON, or a zip that holds it as instances_SPLIT*.json
    split  "train" or "val", which of a zip's JSONs is meant
    Raises DataError, naming the file and the entry, where it is no COCO JSON or contradicts itself.
    """
    path, record = load_json(path, split)
    annotations, notes = coco_annotations(path, record, images_folder)
    return match_files(annotations, notes)


def match_files(
    annotations: Annotations, notes: list[str], paths: Collection[str] | None = None
) -> tuple[Annotations, list[str]]:
    """The annotations with the paths of the files that their names mean, and the notes with those on names.

    paths  of the photos, below the folder of images; None: those on disk
    Raises DataError as match_names does.
    """
    path, names = annotations.source, annotations.file_names
    results, more = match_names(
        names, annotations.images_folder, path, lambda i: f"{path}: image {i} ({abbreviate(names[i], 90)})", paths
    )
    if doubles := len(results) - len(set(results)):
        more.append(
            f"{path}: image entries that repeat the file of another entry: {doubles:,} ({abbreviate(find_duplicate(results), 120)}). "
            "Each entry is a separate image with the objects of its id. To merge them, use one image_id for their objects"
        )
    return replace(annotations, file_names=results), [*notes, *more]


def coco_annotations(path: Path, record: dict[str, Any], images_folder: Path) -> tuple[Annotations, list[str]]:
    """The same of the content of such a JSON, with the names of files as it has them; messages name it `path`."""
    lists = {key: _list(path, record, key) for key in NUMBERS}
    images, objects, categories = lists.values()
    if not images:
        raise DataError(f"{path}: no images in the file. Check that this is the right file.")
    if any("segments_info" in entry for entry in objects):
        raise DataError(f"{path}: a panoptic JSON (segments_info) is not supported. Pass the JSON of the instances.")
    texts = Counter(key for name, entries in lists.items() for key in _read_texts(entries, NUMBERS[name]))
    names, notes = _names(path, categories, objects)
    if texts:
        counts = ", ".join(f"{count:,} of {key!r}" for key, count in texts.items())
        notes.append(f"{path}: numbers written as text are read as numbers: {counts}")
    image_ids = _integers(path, "image", images, "id")
    _refuse_twice(path, "image", image_ids)
    image_of = _integers(path, "annotation", objects, "image_id")
    row = {image: i for i, image in enumerate(image_ids.tolist())}
    rows = np.array([row.get(image, -1) for image in image_of.tolist()], np.int64)
    category = _integers(path, "annotation", objects, "category_id")
    unknown = np.flatnonzero(~np.isin(category, np.array(list(names), np.int64)))
    if len(unknown):
        more = f"{len(unknown) - 1:,} more like this. " if len(unknown) > 1 else ""
        raise DataError(
            f"{path}: annotation {unknown[0]} ({_title(objects[unknown[0]])}) has category_id {category[unknown[0]]}, but "
            f"this category is not listed ({join_names(map(str, sorted(names)), 10)}). {more}Correct or export it again."
        )
    boxes = _boxes(path, objects, notes)
    areas, lacking = _optional(path, objects, "area", np.nan)
    if lacking:
        masks = sum(bool(objects[i].get("segmentation")) for i in lacking)
        used = f"the area of the mask ({masks:,}) or of the box ({len(lacking) - masks:,}) is used"
        notes.append(f"{path}: {len(lacking):,} annotations have no 'area', so {used}")
    crowd, lacking = _optional(path, objects, "iscrowd", 0.0)
    if lacking:
        notes.append(f"{path}: {len(lacking):,} annotations have no 'iscrowd', so 0 is used")
    if ignored := sum(bool(_number_of(entry.get("ignore"))) for entry in objects):
        notes.append(f"{path}: {ignored:,} objects have 'ignore', which is not used (as in pycocotools). They are scored")
    annotations = Annotations(
        source=path,
        images_folder=images_folder,
        file_names=_file_names(path, images),
        image_ids=image_ids,
        heights=_sides(path, images, "height"),
        widths=_sides(path, images, "width"),
        object_rows=rows,
        boxes=boxes,
        categories=category,
        crowd=(crowd != 0).astype(np.uint8),
        areas=areas,
        annotation_ids=_annotation_ids(path, objects, notes),
        segmentations=[entry.get("segmentation") or None for entry in objects],
        names=names,
    )
    if len(lost := np.flatnonzero(rows < 0)):
        orphans = f"annotation {lost[0]} belongs to image id {image_of[lost[0]]}, which is missing ({len(lost)} in total)"
        annotations = replace(annotations.chosen(np.arange(len(images))), orphans=orphans)
    return annotations, notes


def _read_texts(entries: list[dict[str, Any]], keys: Sequence[str]) -> Iterator[str]:
    """Turn texts that are numbers into numbers, in place -> the key of each."""
    for key in keys:
        values = [entry.get(key) for entry in entries]
        if not set(map(type, values)) & {str, list}:
            continue
        for entry, value in zip(entries, values):
            first, inside = value, value if type(value) is list and key == "bbox" else ()
            while type(first) is list and first:
                first = first[0]
            if (type(first) is str or str in map(type, inside)) and (number := _number_of(value)) != value:
                entry[key] = number
                yield key


def _number_of(value: Any, depth: int = 3) -> Any:
    """A text that is a number, or a list of some, as numbers; everything else as it is."""
    if type(value) is list and depth:
        return [_number_of(one, depth - 1) for one in value]
    if type(value) is not str or not _NUMBER.fullmatch(value):
        return value
    return int(value) if value.strip().lstrip("+-").isdecimal() else float(value)


def _list(path: Path, record: dict[str, Any], key: str) -> list[dict[str, Any]]:
    entries = record.get(key)
    if not isinstance(entries, list):
        what = f"it has no {key!r}" if key not in record else f"{key!r} is not a list"
        raise DataError(
            f"{path}: not a COCO annotation file, because {what}. Expected images, annotations, and categories; found "
            f"{join_names(map(abbreviate, record))}."
        )
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise DataError(f"{path}: entry {index} of {key!r} must be an object, got {abbreviate(entry, 40)!r}.")
    return entries


def _names(path: Path, categories: list[dict[str, Any]], objects: list[dict[str, Any]]) -> tuple[dict[int, str], list[str]]:
    """-> category id -> name, and notes."""
    if not categories:
        raise DataError(f"{path}: has no categories, so there is nothing to detect. Export the file with its classes.")
    ids = _integers(path, "category", categories, "id")
    _refuse_twice(path, "category", ids)
    labels = [
        tidy_class_name(entry.get("name"), f"{path}: category {index} (id {ids[index]})")
        for index, entry in enumerate(categories)
    ]
    if (twice := find_duplicate(labels)) is not None:
        raise DataError(f"{path}: two categories are named {twice!r}. Give them unique names.")
    names = dict(zip(ids.tolist(), labels))
    parent = names.get(0)
    others = [entry for entry in categories if entry["id"] != 0]
    is_parent = parent is not None and bool(others) and all(entry.get("supercategory") == parent for entry in others)
    if not is_parent or any(entry.get("category_id") == 0 for entry in objects):
        return names, []
    # Roboflow writes the parent of all classes as category 0.
    del names[0]
    return names, [f"{path}: ignored category 0 ({parent}), which is the parent of all others and has no objects"]


def _integers(path: Path, what: str, entries: list[dict[str, Any]], key: str) -> np.ndarray:
    """(n,) int64. Raises DataError for the first entry where `key` is missing or no whole number."""
    values = [entry.get(key, _MISSING) for entry in entries]
    array = _numbers(values)
    if array is not None and (array.dtype.kind == "i" or ((array == np.floor(array)) & (abs(array) < 2**63)).all()):
        return array.astype(np.int64)
    whole = (_is_number(value) and abs(value) < 2**63 and value == int(value) for value in values)
    index = next(i for i, is_whole in enumerate(whole) if not is_whole)
    raise _wrong(path, what, index, entries[index], key, values[index], "an integer")


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


def _wrong(path: Path, what: str, index: int, entry: dict[str, Any], key: str, value: Any, expected: str) -> DataError:
    result = "is missing" if value is _MISSING else f"is {abbreviate(value)!r}"
    return DataError(f"{path}: {what} {index} ({_title(entry)}): {key!r} {result}; expected {expected}.")


def _title(entry: dict[str, Any]) -> str:
    """An entry's id and file name, for messages."""
    name = f", {abbreviate(entry['file_name'], 90)}" if "file_name" in entry else ""
    return f"id {abbreviate(entry.get('id', 'missing'), 30)}{name}"


def _refuse_twice(path: Path, what: str, ids: np.ndarray) -> None:
    values, counts = np.unique(ids, return_counts=True)
    if (counts > 1).any():
        twice = values[counts > 1]
        indices = np.flatnonzero(ids == twice[0])
        raise DataError(
            f"{path}: {what} id {twice[0]} occurs {len(indices)} times (entries {indices[0]} and {indices[1]}), but ids "
            f"must be unique. Number of such ids: {len(twice):,}. If the file was merged from two files, export it again."
        )


def _boxes(path: Path, objects: list[dict[str, Any]], notes: list[str]) -> np.ndarray:
    """(M, 4); if an entry has no bbox, the bounds of its mask, and a note."""
    values: list[Any] = [entry.get("bbox") or _MISSING for entry in objects]
    lacking = [i for i, value in enumerate(values) if value is _MISSING and objects[i].get("segmentation")]
    for i in lacking:
        try:
            box = segmentation_box(objects[i]["segmentation"])
        except (ValueError, TypeError, OverflowError) as error:
            raise DataError(f"{path}: annotation {i} ({_title(objects[i])}) has no 'bbox', and {error}.") from None
        values[i] = _MISSING if box is None else list(box)
    if lacking:
        notes.append(f"{path}: {len(lacking):,} annotations have no 'bbox', so the bounds of their masks are used")
    fours = [type(value) is list and len(value) == 4 for value in values]
    if all(fours) and (array := _numbers(list(chain.from_iterable(values)))) is not None:
        return array.astype(np.float64).reshape(-1, 4)
    index = next(i for i, value in enumerate(values) if not fours[i] or _numbers(value) is None)
    expected = "[x, y, width, height], or a segmentation with an area"
    raise _wrong(path, "annotation", index, objects[index], "bbox", objects[index].get("bbox", _MISSING), expected)


def _optional(path: Path, objects: list[dict[str, Any]], key: str, default: float) -> tuple[np.ndarray, list[int]]:
    """-> (M,) float64 numbers, 0 where they are not finite, and which entries have none (or null), for which `default` is used."""
    values = [entry.get(key) for entry in objects]
    lacking = [i for i, value in enumerate(values) if value is None]
    array = _numbers([0 if value is None else int(value) if isinstance(value, bool) else value for value in values])
    if array is None:
        index = next(i for i, value in enumerate(values) if not isinstance(value, bool) and not _is_number(value))
        raise _wrong(path, "annotation", index, objects[index], key, values[index], "a number")
    array = np.where(np.isfinite(array), array, 0.0)
    array[lacking] = default
    return array, lacking


def _annotation_ids(path: Path, objects: list[dict[str, Any]], notes: list[str]) -> np.ndarray:
    if any("id" in entry for entry in objects):
        ids = _integers(path, "annotation", objects, "id")
        twice = len(ids) - len(np.unique(ids))
        if not twice:
            return ids
        notes.append(f"{path}: {twice:,} annotations have the id of another annotation, so all are numbered from 1")
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
        return len(os.fsencode(name)) <= MAX_PATH_BYTES and "\0" not in name and "\n" not in name
    except UnicodeEncodeError:  # half a character
        return False


def _file_names(path: Path, images: list[dict[str, Any]]) -> list[str]:
    """N names as they are written. Raises DataError for one that no file can have."""
    for index, entry in enumerate(images):
        name = entry.get("file_name", _MISSING)
        if not isinstance(name, str) or not name or not _is_file_name(name):
            raise _wrong(path, "image", index, {"id": entry.get("id")}, "file_name", name, "a file name")
    return [entry["file_name"] for entry in images]


def load_json(path: Path, split: str) -> tuple[Path, dict[str, Any]]:
    """-> the file, of a zip with the name in it below the zip's, and what it holds.

    split  "train" or "val", which of a zip's JSONs is meant
    Raises DataError where it is none, or cannot be read.
    """
    try:
        if path.suffix == ".zip":
            path, data = _zipped(path, split)
        else:
            data = read_plain(path, MAX_BYTES)
    except FileNotFoundError:
        raise DataError(f"{path}: file not found. Check the path (--annotations).") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}). Expected a COCO JSON file.") from None
    # Millions of small objects are made and none is garbage: walking through them again and again doubles the time.
    collects = gc.isenabled()
    gc.disable()
    try:
        record = json.loads(data)
    except (ValueError, RecursionError) as error:
        if isinstance(error, UnicodeDecodeError) and error.encoding == "utf-8":
            raise DataError(
                f"{path}: its bytes are not UTF-8 text (0x{data[error.start]:02x} at {error.start:,}). Save it as UTF-8. "
                f"If it is Latin-1, run:  iconv -f latin1 -t utf-8 {shlex.quote(str(path))} > utf8.json"
            ) from None
        reason = error if isinstance(error, ValueError) else "nested too deeply"
        raise DataError(f"{path}: not valid JSON ({reason}). Download or export it again.") from None
    finally:
        if collects:
            gc.enable()
    if tool := identify_json_tool(record):
        raise DataError(f"{path}: this is {tool[0]}. {tool[1]}")
    if not isinstance(record, dict):
        raise DataError(
            f"{path}: not a COCO annotation file. Expected an object with images, annotations, and categories, got a "
            f"{type(record).__name__}. (A list may be detections, which are not annotations.)"
        )
    return path, record


def _zipped(path: Path, split: str) -> tuple[Path, bytes]:
    """The only JSON in a zip that fits the split, and its name below the zip's. Raises OSError, DataError."""
    with os.fdopen(open_plain(path), "rb") as file:
        try:
            archive = zipfile.ZipFile(file)
            names = [name for name in archive.namelist() if name.endswith(".json")]
            fitting = [name for name in names if re.fullmatch(rf"instances_{split}\d*\.json", os.path.basename(name))]
            if len(fitting or names) != 1:
                raise DataError(
                    f"{path}: the zip must have one JSON of annotations, but it has {join_names(names)}. Unpack it, and "
                    "pass the JSON (--annotations)."
                )
            name = (fitting or names)[0]
            unpacked, packed = archive.getinfo(name).file_size, os.fstat(file.fileno()).st_size
            if unpacked > max(ALWAYS_BYTES, MAX_RATIO * packed):
                raise DataError(
                    f"{path}: its {packed:,} bytes would unpack to {unpacked:,} bytes, which is not plausible for "
                    "annotations. If you trust the file, unpack it and pass the JSON (--annotations)."
                )
            with archive.open(name) as member:
                data = member.read(MAX_BYTES + 1)
        # zipfile raises NotImplementedError for a compression that it does not know, RuntimeError for an encrypted member.
        except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
            raise DataError(f"{path}: the zip cannot be read ({error}). Download it again.") from None
    if len(data) > MAX_BYTES:
        raise DataError(f"{path}: its JSON has more than {MAX_BYTES:,} bytes, which is not supported.")
    return path / name, data
