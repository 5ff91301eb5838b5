"""Masks that mark nothing of their object, found beside its box: they are taken as no mask at all.

All of them outside the photo, shrunk to a point, written as fractions where pixels are meant, or of another object: what is
learned from them is that the object has no pixel.

Letters: M objects. Masks are arrays as store/box_split.py's MASK_ARRAYS.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paceline.boxes.run_lengths import ranges
from paceline.input.outlines import crossings

# Pixels that a side of a box has inside its photo: of a smaller object, a good outline may miss every pixel's middle.
LEAST_SIDE = 2.0
# Pixels between a mask and its box that rounding explains.
ROUNDED = 1.0
# Square pixels: outlines that enclose less are drawn to see whether a pixel is met.
SURE_AREA = 4.0


def useless_masks(
    masks: Mapping[str, np.ndarray], boxes: np.ndarray, heights: np.ndarray, widths: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """-> (M,) bool: masks without a pixel of their photo; (M,) bool: others that lie beside their box.

    boxes            (M, 4) x, y, width, height, pixels; where one has no LEAST_SIDE inside the photo, its mask is not judged
    heights, widths  (M,) of each object's photo
    """
    size = np.stack([widths, heights], axis=1).astype(np.float64)
    extents, area = _outline_extents(masks)
    for row in np.flatnonzero(np.diff(masks["object_rles"])).tolist():
        extents[row] = _run_extent(masks["rle_counts"][slice(*masks["object_rles"][row : row + 2])], int(heights[row]))
    has = (np.diff(masks["object_polygons"]) > 0) | (np.diff(masks["object_rles"]) > 0)
    inside = np.minimum(extents[:, 2:], size) - np.maximum(extents[:, :2], 0)
    corners = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)
    judged = has & (np.minimum(corners[:, 2:], size) - np.maximum(corners[:, :2], 0) >= LEAST_SIDE).all(axis=1)
    empty = judged & (inside <= 0).any(axis=1)
    over = (extents[:, :2] < -ROUNDED).any(axis=1) | (extents[:, 2:] > size + ROUNDED).any(axis=1)
    # Not `<`: what overflowed is unsure too.
    unsure = judged & ~empty & (np.diff(masks["object_polygons"]) > 0) & (over | ~(area >= SURE_AREA))
    for row in np.flatnonzero(unsure).tolist():
        empty[row] = not _meets_a_pixel(masks, row, int(heights[row]), int(widths[row]))
    gap = np.maximum(extents[:, :2], corners[:, :2]) - np.minimum(extents[:, 2:], corners[:, 2:])
    return empty, judged & ~empty & (gap > ROUNDED).any(axis=1)


def without(masks: Mapping[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays with no mask for objects `rows`, (M,) bool."""
    polygons, runs = np.diff(masks["object_polygons"]), np.diff(masks["object_rles"])
    of_polygon, numbers = np.repeat(rows, polygons), np.diff(masks["polygon_starts"])
    return {
        "polygon_points": masks["polygon_points"][~np.repeat(of_polygon, numbers)],
        "polygon_starts": _starts(numbers[~of_polygon]),
        "object_polygons": _starts(np.where(rows, 0, polygons)),
        "rle_counts": masks["rle_counts"][~np.repeat(rows, runs)],
        "object_rles": _starts(np.where(rows, 0, runs)),
    }


def _starts(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _outline_extents(masks: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """-> (M, 4) left, top, right, bottom of each object's polygons; (M,) what they enclose, square pixels, overlaps twice."""
    points, starts = masks["polygon_points"].reshape(-1, 2), masks["polygon_starts"] // 2
    number = len(masks["object_polygons"]) - 1
    extents = np.tile([np.inf, np.inf, -np.inf, -np.inf], (number, 1))
    area = np.zeros(number)
    if not len(points):
        return extents, area
    has = np.diff(masks["object_polygons"]) > 0
    first = starts[masks["object_polygons"][:-1][has]]
    extents[has, :2] = np.minimum.reduceat(points, first)
    extents[has, 2:] = np.maximum.reduceat(points, first)
    following = np.arange(1, len(points) + 1)
    following[starts[1:] - 1] = starts[:-1]
    with np.errstate(over="ignore", invalid="ignore"):
        # Seen from each polygon's first corner: products of large coordinates would drown a small area.
        x, y = (points - np.repeat(points[starts[:-1]], np.diff(starts), axis=0)).T
        halves = np.abs(np.add.reduceat(x * y[following] - x[following] * y, starts[:-1])) / 2
        area[has] = np.add.reduceat(halves, masks["object_polygons"][:-1][has])
    return extents, area


def _run_extent(runs: np.ndarray, height: int) -> tuple[float, float, float, float]:
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


def _meets_a_pixel(masks: Mapping[str, np.ndarray], row: int, height: int, width: int) -> bool:
    polygons = ranges(masks["object_polygons"][[row]], masks["object_polygons"][[row + 1]])[0]
    starts, stops = masks["polygon_starts"][polygons], masks["polygon_starts"][polygons + 1]
    points = masks["polygon_points"][starts[0] : stops[-1]].reshape(-1, 2)
    return len(crossings(points, (stops - starts) // 2, height, width).columns) > 0
