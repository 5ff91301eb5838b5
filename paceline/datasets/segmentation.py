"""Masks of every kind that COCO's JSON knows -> flat arrays of polygon points and of runs.

Letters: M objects   P polygon coordinates   Q polygons   R runs
An object has polygons, or an RLE (run-length encoding), or neither. Runs count the image's pixels column by column,
background first. The compressed form is a string: each run a number of 5 bits a character, lowest first, from character
48 on; bit 5 says that more follow; the sign is the last character's bit 4; from the fourth run on, it is the difference
to the run two before. Source: Lin et al. 2014; the form of the string: rleToString in pycocotools' maskApi.c.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from paceline.boxes import run_lengths
from paceline.config.printable import short

# A number of more characters does not fit into 64 bits.
MOST_DIGITS = 12
# x and y of three points: less encloses nothing, and pycocotools takes four numbers for a box.
LEAST_NUMBERS = 6

Blame = Callable[[int, str], Exception]


def mask_arrays(
    segmentations: Sequence[Any], heights: np.ndarray, widths: np.ndarray, blame: Blame
) -> tuple[dict[str, np.ndarray], int, int]:
    """-> the arrays of store/box_split.py MASK_ARRAYS, and how many polygons were left out: too short; not finite.

    segmentations  (M) None | polygons | {"counts": list, str or bytes, "size": [height, width]}
    heights        (M,) pixels, of the image that each object is in
    widths         (M,)
    blame          makes the error for object row, reason
    Raises what `blame` makes: numbers that are none, runs that do not fill the image.
    """
    polygons, per_object, runs, left_out, not_finite = [], [], [], 0, 0
    for row, given in enumerate(segmentations):
        kept: list[Any] = []
        run = _NO_RUNS
        if isinstance(given, dict):
            run = _runs(given, int(heights[row]), int(widths[row]), row, blame)
        elif isinstance(given, list):
            kept = [polygon for polygon in given if isinstance(polygon, list | tuple) and len(polygon) >= LEAST_NUMBERS]
            kept = [polygon for polygon in kept if len(polygon) % 2 == 0]
            left_out += len(given) - len(kept)
            if given and not isinstance(given[0], list | tuple):
                raise blame(row, "its segmentation is a list of numbers, where a list of polygons is wanted")
        elif given is not None:
            raise blame(row, f"its segmentation is neither polygons nor run-lengths but {short(given, 40)!r}")
        polygons += kept
        per_object.append(len(kept))
        runs.append(run)
    lengths = np.array([len(polygon) for polygon in polygons], np.int64)
    objects = np.repeat(np.arange(len(segmentations)), per_object)
    points = _points(polygons, int(lengths.sum()), objects, blame)
    if not np.isfinite(points).all():
        broken = np.unique(np.repeat(np.arange(len(polygons)), lengths)[~np.isfinite(points)])
        points = points[~np.isin(np.repeat(np.arange(len(polygons)), lengths), broken)]
        lengths, objects = np.delete(lengths, broken), np.delete(objects, broken)
        not_finite = len(broken)
    arrays = {
        "polygon_points": points,
        "polygon_starts": starts_of(lengths),
        "object_polygons": starts_of(np.bincount(objects, minlength=len(segmentations))),
        "rle_counts": np.concatenate([_NO_RUNS, *runs]),
        "object_rles": starts_of(np.array([len(run) for run in runs], np.int64)),
    }
    return arrays, left_out, not_finite


def starts_of(counts: np.ndarray) -> np.ndarray:
    """(n,) counts -> (n+1,) int64: rows of entry i are starts[i]:starts[i + 1]."""
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def decompress(text: bytes) -> np.ndarray:
    """The runs in a compressed RLE string, (n,) int64. Raises ValueError where a character or the end does not fit."""
    parts = np.frombuffer(text, np.uint8).astype(np.int64) - 48
    if not len(parts):
        return parts
    if parts.min() < 0 or parts.max() > 63:
        raise ValueError("a character that no run-length string has")
    last = parts & 32 == 0
    if not last[-1]:
        raise ValueError("it ends within a number")
    ends = np.flatnonzero(last)
    if np.diff(ends, prepend=-1).max() > MOST_DIGITS:
        raise ValueError("a number with too many digits")
    return run_lengths.decompress(run_lengths.RunLengths.of([text]))[0]


_NO_RUNS = np.zeros(0, np.uint32)


def _runs(given: dict[str, Any], height: int, width: int, row: int, blame: Blame) -> np.ndarray:
    counts, size = given.get("counts"), given.get("size")
    if not isinstance(size, list | tuple) or list(size) != [height, width]:
        raise blame(row, f"its RLE mask has size {short(size, 40)}, the image has [{height}, {width}]")
    try:
        if isinstance(counts, str | bytes):
            runs = decompress(counts.encode("ascii") if isinstance(counts, str) else counts)
        else:
            if type(counts) is not list or not set(map(type, counts)) <= {int}:
                raise ValueError("its runs are no list of whole numbers")
            runs = np.array(counts, np.int64)
    except (ValueError, TypeError, OverflowError) as error:
        raise blame(row, f"its RLE mask cannot be read ({error})") from None
    if (runs < 0).any():
        raise blame(row, f"its RLE mask has a run of {runs.min():,} pixels")
    if (runs > height * width).any() or runs.sum() != height * width:
        raise blame(row, f"its RLE mask covers {runs.sum():,} pixels, the image has {height * width:,}")
    return runs.astype(np.uint32)


def _points(polygons: list[Any], total: int, objects: np.ndarray, blame: Blame) -> np.ndarray:
    try:
        # Unlike numpy, array takes no text for a number.
        points = array("d", chain.from_iterable(polygons))
    except (TypeError, OverflowError):
        for row, polygon in zip(objects, polygons):
            for value in polygon:
                if not isinstance(value, int | float):
                    reason = f"its segmentation holds {short(value)!r}, which is no number"
                    raise blame(int(row), reason) from None
                if isinstance(value, int) and abs(value) > sys.float_info.max:
                    raise blame(int(row), "its segmentation holds a number beyond all that can be calculated") from None
        raise
    return np.frombuffer(points, np.float64) if total else np.zeros(0)
