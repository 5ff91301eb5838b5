"""Polygons to bitmaps by pycocotools' rule, all of a photo at once, at the cost of the outlines and of small bitmaps.

The rule (maskApi.c, rleFrPoly): corners are rounded to a grid five times as fine as pixels, edges are walked on that grid one point at
a time, and where a walk steps over the middle of a pixel column it makes a crossing: from that row on, to the column's end, the pixels
are inverted. So columns are independent, and of the rows above only the number of crossings counts. Here the two grid points beside a
column's middle are computed directly instead of walking to them.

Letters: P corners of all outlines   Q outlines   k crossings
Source: pycocotools, common/maskApi.c (Dollar and Lin 2015); the tests compare bit by bit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from paceline.data.rle import concatenated_ranges

# Grid points along a pixel's side, and the one from which the step to the next crosses the column's middle.
FINE = 5
_BEFORE_MIDDLE = 2
# Pixels. Corners further away are moved to here: their products still fit into 64 bits.
FAR = 2.0**28


class Crossings(NamedTuple):
    """Where outlines cross the middles of pixel columns, each place once, and only those crossed an odd number of times.

    Sorted by outline, column and row. An outline is closed and crosses a column an even number of times, so crossings at even places
    of the list are where it begins in a column, those at odd places where it ends.
    """

    outlines: np.ndarray  # (k,) int64, 0..Q-1
    columns: np.ndarray  # (k,) int64, 0..width-1
    rows: np.ndarray  # (k,) int64, 0..height: the first row of the other side


def find_crossings(points: np.ndarray, lengths: np.ndarray, height: int, width: int) -> Crossings:
    """The crossings of closed outlines with the columns of an image of (height, width) pixels.

    points   (P, 2) float64, x and y in pixels, one outline's corners after the other's
    lengths  (Q,) int, corners of each outline, 1 or more
    """
    if not len(points):
        return Crossings(*np.zeros((3, 0), np.int64))
    # As C converts, towards 0.
    corners = np.trunc(FINE * np.clip(points, -FAR, FAR) + 0.5).astype(np.int64)
    stops = np.cumsum(lengths)
    following = np.arange(1, len(corners) + 1)
    following[stops - 1] = stops - lengths
    (x0, y0), (x1, y1) = corners.T, corners[following].T
    # Columns c whose middle lies between the ends: low <= 5c + 2 and 5c + 3 <= high; and inside the image.
    first = np.maximum(-((_BEFORE_MIDDLE - np.minimum(x0, x1)) // FINE), 0)
    last = np.minimum((np.maximum(x0, x1) - _BEFORE_MIDDLE - 1) // FINE, width - 1)
    counts = np.maximum(last - first + 1, 0)
    columns, edge = concatenated_ranges(first, first + counts)

    run, rise = x1 - x0, y1 - y0
    lying = np.abs(run) >= np.abs(rise)  # walked along x; the others along y. Always towards larger values
    before = columns * FINE + _BEFORE_MIDDLE
    fine_rows = np.empty_like(columns)
    flat = lying[edge]
    for walk, chosen in ((_walk_along_x, flat), (_walk_along_y, ~flat)):
        of = edge[chosen]
        fine_rows[chosen] = walk(before[chosen], x0[of], y0[of], run[of], rise[of])
    rows = np.clip((fine_rows + FINE - 1 - _BEFORE_MIDDLE) // FINE, 0, height)

    outlines = np.repeat(np.arange(len(lengths)), lengths)[edge]
    keys = _odd(np.sort((outlines * width + columns) * (height + 1) + rows))
    rest, rows = np.divmod(keys, height + 1)
    return Crossings(*np.divmod(rest, width), rows)


def mask_extents(result: Crossings, owners: np.ndarray, objects: int) -> np.ndarray:
    """-> (objects, 4) int64 left, top, right, bottom of each object's pixels, the last two exclusive; 0 0 0 0 for none.

    owners  (Q,) int64, the object of each outline, ascending
    """
    bounds = np.zeros((objects, 4), np.int64)
    starts = np.searchsorted(owners[result.outlines], np.arange(objects + 1))
    some = starts[1:] > starts[:-1]
    if some.any():
        at = starts[:-1][some]
        bounds[some, 0] = np.minimum.reduceat(result.columns, at)
        bounds[some, 1] = np.minimum.reduceat(result.rows, at)
        bounds[some, 2] = np.maximum.reduceat(result.columns, at) + 1
        bounds[some, 3] = np.maximum.reduceat(result.rows, at)
    return bounds


def fill_polygons(bitmaps: np.ndarray, columns: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    """Bitmaps of the pixels that at least one outline covers.

    bitmaps        (k,) int, the bitmap 0..n-1 in which each crossing of a Crossings lies
    columns, rows  (k,) int, where in it: 0..W-1, 0..H
    out            (n, H, W) uint8, written with 0 and 1
    """
    count, height, width = out.shape
    # One more row, for outlines that end below; columns first, because sums are fastest along the last axis.
    change = np.zeros((count, width, height + 1), np.int16)
    sign = np.ones(len(rows), np.int16)
    sign[1::2] = -1
    np.add.at(change.reshape(-1), (bitmaps * width + columns) * (height + 1) + rows, sign)
    covered = np.cumsum(change.reshape(-1), dtype=np.int16).reshape(change.shape)  # every column's sum is 0
    np.copyto(out, (covered[..., :height] > 0).transpose(0, 2, 1))


def _walk_along_x(before: np.ndarray, x: np.ndarray, y: np.ndarray, run: np.ndarray, rise: np.ndarray) -> np.ndarray:
    """The upper of an edge's two fine rows beside a middle, at fine columns `before` and one more.

    x, y  the edge's beginning; run, rise  the way to its end
    """
    slope = rise / run
    back = run < 0
    steps = before - np.where(back, x + run, x)
    y = np.where(back, y + rise, y)
    upper = np.minimum(slope * steps + y, slope * (steps + 1) + y)
    return np.trunc(upper + 0.5).astype(np.int64)


def _walk_along_y(before: np.ndarray, x: np.ndarray, y: np.ndarray, run: np.ndarray, rise: np.ndarray) -> np.ndarray:
    """The same for an edge whose rows are walked: the last one on this side of the middle."""
    slope = run / rise
    back = rise < 0
    x, y = np.where(back, x + run, x), np.where(back, y + rise, y)
    beyond = before + 1  # at least 3, so that rounding towards 0 is rounding down
    guess = np.ceil((beyond - 0.5 - x) / slope)
    right = slope > 0
    # The division may be off by its last digit: the walk's own arithmetic decides.
    early = ((x + slope * (guess - 1) + 0.5) >= beyond) == right
    late = ((x + slope * guess + 0.5) >= beyond) != right
    return (y + guess + late - early).astype(np.int64) - 1


def _odd(keys: np.ndarray) -> np.ndarray:
    """Of sorted keys, once each, those that occur an odd number of times."""
    if not len(keys):
        return keys
    new = np.flatnonzero(keys[1:] != keys[:-1]) + 1
    if len(new) == len(keys) - 1:
        return keys
    starts = np.concatenate(([0], new))
    counts = np.diff(starts, append=len(keys))
    return keys[starts[counts % 2 == 1]]
