"""A mask as annotations give it -> polygons or run lengths in one form, and the box around it.

Polygons are lists of numbers, x1 y1 x2 y2 ..., as COCO has them. Points are read too: [[x1, y1], [x2, y2], ...], a list of such lists,
and one list of numbers. The number of corners decides nothing.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np

from paceline._utils.text import abbreviate, join_names
from paceline.data import rle

# A number of more characters does not fit into 64 bits.
MAX_DIGITS = 12
# x and y of three points: less encloses nothing, and pycocotools takes four numbers for a box.
MIN_NUMBERS = 6
EXPECTED = 'expected polygons, [[x1, y1, x2, y2, ...], ...], or run lengths, {"size": [height, width], "counts": ...}'

Box = tuple[float, float, float, float]
Segmentation = dict[str, Any] | list[Any] | None


def to_rle_or_polygons(explicit: Any) -> Segmentation:
    """-> run lengths, polygons (each a list of an even number of values, which are not looked at), or None for no mask.

    Raises ValueError with the reason if it is neither.
    """
    if explicit is None or (isinstance(explicit, dict) and "counts" in explicit):
        return explicit
    if not isinstance(explicit, list | tuple):
        what = f"neither polygons nor run lengths but {abbreviate(explicit, 40)!r}"
        what = f"an object with {join_names(map(abbreviate, explicit))}" if isinstance(explicit, dict) else what
        raise ValueError(f"its segmentation is {what}; {EXPECTED}")
    if any(isinstance(part, dict) for part in explicit):
        if len(explicit) == 1 and isinstance(explicit[0], dict) and "counts" in explicit[0]:
            return explicit[0]
        keys = join_names(map(abbreviate, next(part for part in explicit if isinstance(part, dict))))
        raise ValueError(f"its segmentation is a list of {len(explicit):,} objects with {keys}; {EXPECTED}")
    lists = [isinstance(part, list | tuple) for part in explicit]
    if not any(lists):
        polygons = [list(explicit)] if explicit else []
    elif not all(lists):
        raise ValueError(f"its segmentation mixes numbers and lists; {EXPECTED}")
    elif all(map(_is_point, explicit)):
        polygons = [list(chain.from_iterable(explicit))]
    else:
        polygons = [_flat(part) for part in explicit]
    if odd := next((polygon for polygon in polygons if len(polygon) % 2), None):
        raise ValueError(f"its segmentation has an odd number of values, {len(odd):,}, in one of its lists; {EXPECTED}")
    return polygons


def _is_point(part: Any) -> bool:
    return len(part) == 2 and not any(isinstance(value, list | tuple) for value in part)


def _flat(part: Any) -> Any:
    """A polygon's values, given one by one or as points."""
    if not part or not isinstance(part[0], list | tuple):
        return part
    if not all(isinstance(point, list | tuple) and _is_point(point) for point in part):
        raise ValueError(f"its segmentation has a polygon that is not made of points of two numbers; {EXPECTED}")
    return list(chain.from_iterable(part))


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
    if np.diff(ends, prepend=-1).max() > MAX_DIGITS:
        raise ValueError("a number with too many digits")
    return rle.decompress(rle.RLE.of([text]))[0]


def decode_runs(overrides: dict[str, Any], height: int, width: int) -> np.ndarray:
    """(n,) uint32, the runs of a mask of an image of that size. Raises ValueError with the reason if they are not its."""
    counts, size = overrides.get("counts"), overrides.get("size")
    if not isinstance(size, list | tuple) or list(size) != [height, width]:
        raise ValueError(f"its RLE mask has size {abbreviate(size, 40)}, the image has [{height}, {width}]")
    try:
        if isinstance(counts, str | bytes):
            runs = decompress(counts.encode("ascii") if isinstance(counts, str) else counts)
        else:
            if type(counts) is not list or not set(map(type, counts)) <= {int}:
                raise ValueError("its runs are not a list of whole numbers")
            runs = np.array(counts, np.int64)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"its RLE mask cannot be read ({error})") from None
    if (runs < 0).any():
        raise ValueError(f"its RLE mask has a run of {runs.min():,} pixels")
    if (runs > height * width).any() or runs.sum() != height * width:
        raise ValueError(f"its RLE mask covers {runs.sum():,} pixels, the image has {height * width:,}")
    return runs.astype(np.uint32)


def run_extent(runs: np.ndarray, height: int) -> Box:
    """left, top, right, bottom of the pixels that run lengths mark, column by column."""
    stops = np.cumsum(runs.astype(np.int64))
    marked = runs[1::2] > 0
    last = stops[1::2][marked] - 1
    first = last + 1 - runs[1::2][marked]
    if not len(first):
        return np.inf, np.inf, -np.inf, -np.inf
    left, right = first // height, last // height
    top, bottom = np.where(left < right, 0, first % height), np.where(left < right, height - 1, last % height)
    return left.min(), top.min(), right.max() + 1, bottom.max() + 1


def segmentation_box(explicit: Any) -> Box | None:
    """x, y, width, height: the bounds of a segmentation's polygons, or of the pixels of its run lengths; None if it marks nothing.

    Raises ValueError, TypeError, or OverflowError with the reason if it cannot be read.
    """
    mask = to_rle_or_polygons(explicit)
    if isinstance(mask, dict):
        size = mask.get("size")
        if not isinstance(size, list | tuple) or len(size) != 2 or not set(map(type, size)) <= {int} or min(size) < 1:
            raise ValueError(f"its RLE mask has size {abbreviate(size, 40)}, expected [height, width]")
        left, top, right, bottom = map(float, run_extent(decode_runs(mask, *size), size[0]))
    else:
        polygons = [np.array(polygon, np.float64) for polygon in mask or () if len(polygon) >= MIN_NUMBERS]
        finite = [polygon.reshape(-1, 2) for polygon in polygons if np.isfinite(polygon).all()]
        if not finite:
            return None
        points = np.concatenate(finite)
        left, top, right, bottom = *points.min(axis=0).tolist(), *points.max(axis=0).tolist()
    return (left, top, right - left, bottom - top) if right > left and bottom > top else None
