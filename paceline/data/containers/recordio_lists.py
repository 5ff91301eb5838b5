"""Lists beside a RecordIO file, and MXNet's detection label in its records: the boxes of a photo as numbers of the header.

    .idx    key <tab> first byte of the record
    .lst    id <tab> label [<tab> label ...] <tab> path below the folder that im2rec packed
    label   A, B, A-2 further numbers, then for each object: class, xmin, ymin, xmax, ymax, B-5 further numbers
A, the width of the label's header, is 2 or more; B, the width of an object, is 5 or more; coordinates are fractions of width and
height, classes count from 0. Source: MXNet 1.9.1, ImageDetIter._parse_label and tools/im2rec.py (--pack-label).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from paceline._utils.errors import DataError
from paceline._utils.text import abbreviate
from paceline.data.containers.reading import Truncated


class LstLine(NamedTuple):
    """A line of a .lst: the record's id, its labels, and the photo's path as it was written."""

    id: int
    labels: tuple[float, ...]
    path: bytes


def read_idx(text: bytes, name: str) -> tuple[np.ndarray, np.ndarray]:
    """-> (N,) int64 keys and (N,) int64 offsets, in the file's order. `text` is the whole file.

    Raises DataError naming the line that is none of an .idx, or whose key or offset was there before.
    """
    keys: list[int] = []
    offsets: list[int] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        words = line.split(b"\t")
        if len(words) != 2 or not all(word.strip().isdigit() and len(word) < 19 for word in words):
            raise DataError(f"{name}: line {number:,} is {abbreviate(repr(line))}, not KEY <tab> OFFSET. Leave it out.")
        keys.append(int(words[0]))
        offsets.append(int(words[1]))
    result = np.array(keys, np.int64), np.array(offsets, np.int64)
    for what, values in zip(("key", "offset"), result):
        unique, counts = np.unique(values, return_counts=True)
        if len(unique) < len(values):
            raise DataError(f"{name}: {what} {unique[counts.argmax()]:,} is in it more than once. Leave the .idx out.")
    return result


def check_idx(
    keys: np.ndarray, offsets: np.ndarray, starts: np.ndarray, ids: np.ndarray, size: int, name: str, rec: str
) -> None:
    """Raises DataError where an .idx is that of other data than the .rec beside it.

    keys, offsets  (N,) as `read_idx` has them
    starts, ids    (M,) of the records that the file `rec` of `size` bytes holds
    A key need not be the record's id; where the two are the same numbers in another order, they belong to other data.
    Raises Truncated where the .rec ends between two records, and the .idx goes on.
    """
    remedy = f"It is the index of other data: put the right one there, or remove it ({rec} is read without)."
    order, wanted = np.argsort(offsets, kind="stable"), np.argsort(starts, kind="stable")
    there = len(starts)
    if len(offsets) > there and offsets[order[there]] >= size and np.array_equal(offsets[order[:there]], starts[wanted]):
        raise Truncated(rec, there, size, f"where {name} has another record")
    if len(offsets) != len(starts):
        raise DataError(f"{name}: it names {len(offsets):,} records, and {rec} has {len(starts):,}. {remedy}")
    wrong = offsets[order] != starts[wanted]
    if wrong.any():
        first = int(wrong.argmax())
        key, begin = keys[order][first], offsets[order][first]
        raise DataError(f"{name}: record {key} should begin at byte {begin:,}, and none of {rec} does. {remedy}")
    keys, ids = keys[order], ids[wanted]
    moved = keys != ids
    if moved.any() and np.array_equal(np.sort(keys), np.sort(ids)):
        first = int(moved.argmax())
        at = offsets[order][first]
        raise DataError(f"{name}: at byte {at:,} it has record {keys[first]}, and {rec} has {ids[first]} there. {remedy}")


def read_lst(text: bytes, name: str) -> Iterator[LstLine]:
    """The lines of a .lst in its order. Raises DataError naming a line that is none, or whose label is no finite number."""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        words = [word.strip() for word in line.strip().split(b"\t")]
        try:
            if len(words) < 3:
                raise ValueError
            labels = tuple(float(word) for word in words[1:-1])
            if not all(map(math.isfinite, labels)):
                raise ValueError
            yield LstLine(int(words[0]), labels, words[-1])
        except ValueError:
            raise DataError(
                f"{name}: line {number:,} is {abbreviate(repr(line))}, not ID <tab> LABEL <tab> PATH."
            ) from None


# A float32 holds every whole number up to here.
_MAX_CLASS = 1 << 24


class RecordIOObjects(NamedTuple):
    """Objects of one photo, M of them (0 too), in the label's order."""

    boxes: np.ndarray  # (M, 4) float32 xyxy, fractions of width and height
    classes: np.ndarray  # (M,) int64, from 0
    extra: np.ndarray  # (M, B-5) float32, the further numbers (difficult, for instance)


def parse_detection_label(labels: np.ndarray, where: str) -> RecordIOObjects:
    """`labels` (W,) float32 of one record, read as boxes. Raises DataError, beginning with `where`, where it is no such label.

    An object whose class is below 0 is padding, as MXNet's iterators write it, and is left out.
    """
    if len(labels) < 2 or not np.isfinite(labels).all():
        raise DataError(f"{where}: {len(labels)} numbers are no detection label (header width, object width, objects).")
    if labels[0] != int(labels[0]) or labels[1] != int(labels[1]) or labels[0] < 2 or labels[1] < 5:
        raise DataError(
            f"{where}: its label begins {labels[0]:g}, {labels[1]:g}; a detection label begins with the width of its header "
            "(2 or more) and of an object (5 or more)."
        )
    header, width = int(labels[0]), int(labels[1])
    count, left = divmod(len(labels) - header, width)
    if count < 0 or left:
        result = f"its label has {len(labels)} numbers"
        raise DataError(f"{where}: {result}, which is not {header} of the header and {width} for each object.")
    objects = labels[header:].reshape(count, width)
    objects = objects[objects[:, 0] >= 0]
    classes = objects[:, 0]
    wrong = classes[(classes != np.floor(classes)) | (classes > _MAX_CLASS)]
    if len(wrong):
        raise DataError(f"{where}: an object's class is {wrong[0]:g}, not a whole number up to {_MAX_CLASS:,}.")
    return RecordIOObjects(objects[:, 1:5].astype(np.float32), classes.astype(np.int64), objects[:, 5:].astype(np.float32))
