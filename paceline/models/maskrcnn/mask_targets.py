"""An object's mask on a small canvas: cut out of the mask at the input's resolution, or coarser where it is too large.

No bitmap of a whole photo is ever made. Polygons are moved to the input's coordinates first and rasterized there
(data/transforms/polygon_fill.py), all of a photo's at once; run-length encoded masks are read pixel by pixel, by the
nearest-neighbor law with which torch's interpolate resizes them in torchvision's detectors.

Letters: n objects   C canvas side; a canvas has C + 2 rows and columns, the outer ones a ring around the object's C x C
    P, Q, R points, polygons and runs as in data/index/box_split.py
Units: photo pixels for polygons and runs, and for boxes and the window, which lie in the turned photo; input pixels (the window's
resized region, after the flip) for frames.
"""

from __future__ import annotations

import numpy as np

from paceline.data.index.box_split import BoxSplit
from paceline.data.rle import concatenated_ranges
from paceline.data.transforms.crop import CropWindow
from paceline.data.transforms.exif import TURNS, UPRIGHT, rotate_points
from paceline.data.transforms.polygon_fill import fill_polygons, find_crossings, mask_extents


def make_canvases(
    masks: BoxSplit,
    rows: np.ndarray,
    boxes: np.ndarray,
    *,
    photo: tuple[int, int],
    turn: int = UPRIGHT,
    window: CropWindow,
    flip: bool,
    side: int,
) -> tuple[np.ndarray, np.ndarray]:
    """-> canvases (n, C+2, C+2) uint8, 0 or 1, and frames (n, 4) float32: x, y, pixel width, height; see InstanceBatch.

    An object's mask is the union of its polygons; where it has none, its runs; where it has neither, its box.

    rows    (n,) int64, the objects' rows in the arrays; boxes (n, 4) float64 left, top, right, bottom
    photo   height and width of the photo that polygons and runs are of
    turn    an orientation, by which it was turned before the window was taken
    window  the region that is used and the size it is resized to; the skips are 0
    side    C
    """
    canvases = np.zeros((len(rows), side + 2, side + 2), np.uint8)
    frames = np.zeros((len(rows), 4), np.float32)
    has_polygons = masks.object_polygons[rows + 1] > masks.object_polygons[rows]
    has_runs = ~has_polygons & (masks.object_rles[rows + 1] > masks.object_rles[rows])
    if has_polygons.any():
        points, lengths, owners = _outlines(masks, rows[has_polygons])
        points = rotate_points(points, turn, *photo)
        chosen = np.flatnonzero(has_polygons)
        _draw(points, lengths, owners, chosen, boxes, window, flip, canvases, frames)
    if (only_boxes := ~has_polygons & ~has_runs).any():
        chosen = np.flatnonzero(only_boxes)
        points = boxes[chosen][:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 2)
        _draw(points, np.full(len(chosen), 4), np.arange(len(chosen)), chosen, boxes, window, flip, canvases, frames)
    for location in np.flatnonzero(has_runs).tolist():
        row = int(rows[location])
        runs = masks.rle_counts[masks.object_rles[row] : masks.object_rles[row + 1]]
        canvases[location], frames[location] = _of_runs(runs, photo, turn, boxes[location], window, flip, side)
    return canvases, frames


def _outlines(masks: BoxSplit, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All polygons of these objects: points (P, 2), lengths (Q,), the object 0..n-1 of each (Q,)."""
    polygons, owners = concatenated_ranges(masks.object_polygons[rows], masks.object_polygons[rows + 1])
    starts, stops = masks.polygon_starts[polygons] // 2, masks.polygon_starts[polygons + 1] // 2
    points = masks.polygon_points.reshape(-1, 2)[concatenated_ranges(starts, stops)[0]]
    some = stops > starts
    return points, (stops - starts)[some], owners[some]


def _to_input(points: np.ndarray, window: CropWindow, flip: bool) -> np.ndarray:
    """(P, 2) x, y of the photo -> (P, 2) of the input."""
    scale = (window.resized_width / window.width, window.resized_height / window.height)
    moved = (points - (window.left, window.top)) * scale
    if flip:
        moved[:, 0] = window.resized_width - moved[:, 0]
    return moved


def _draw(
    points: np.ndarray,
    lengths: np.ndarray,
    owners: np.ndarray,
    chosen: np.ndarray,
    boxes: np.ndarray,
    window: CropWindow,
    flip: bool,
    canvases: np.ndarray,
    frames: np.ndarray,
) -> None:
    """Canvases and frames of the `chosen` objects, whose outlines these are; owners count among the chosen."""
    height, width, side = window.resized_height, window.resized_width, canvases.shape[-1] - 2
    points = _to_input(points, window, flip)
    result = find_crossings(points, lengths, height, width)
    bounds = mask_extents(result, owners, len(chosen))
    # left, top, and the pitch along x and y.
    grids = np.column_stack((bounds[:, :2], np.maximum(1.0, (bounds[:, 2:] - bounds[:, :2]) / side)))
    coarse: np.ndarray = grids[:, 2:].max(axis=1) > 1
    if (~coarse).any():
        of = owners[result.outlines]
        here = ~coarse[of]
        of = of[here]
        columns, rows = result.columns[here] - bounds[of, 0] + 1, result.rows[here] - bounds[of, 1] + 1
        drawn = np.empty((int((~coarse).sum()), side + 2, side + 2), np.uint8)
        fill_polygons((np.cumsum(~coarse) - 1)[of], columns, rows, drawn)
        canvases[chosen[~coarse]] = drawn
    if coarse.any():
        here = coarse[owners]
        of = np.repeat(owners, lengths)
        points = (points - grids[of, :2]) / grids[of, 2:] + 1
        result = find_crossings(points[coarse[of]], lengths[here], side + 2, side + 2)
        drawn = np.empty((int(coarse.sum()), side + 2, side + 2), np.uint8)
        fill_polygons((np.cumsum(coarse) - 1)[owners[here][result.outlines]], result.columns, result.rows, drawn)
        canvases[chosen[coarse]] = drawn
    # Beyond the photo's border the nearest pixel inside is repeated: an empty one unless the object touches the border.
    ends = np.ceil((bounds[:, 2:] - bounds[:, :2]) / grids[:, 2:] - 1e-6).astype(np.int64) + 1
    touching = (bounds[:, :2] == 0) | (bounds[:, 2:] == (width, height))
    for at in np.flatnonzero(touching.any(axis=1) & (bounds[:, 2] > 0)).tolist():
        left, top, right, bottom = bounds[at]
        _repeat_border(
            canvases[chosen[at]],
            int(top == 0),
            int(left == 0),
            ends[at, 1] if bottom == height else side + 2,
            ends[at, 0] if right == width else side + 2,
        )
    frames[chosen] = grids
    for at in np.flatnonzero(bounds[:, 2] == 0).tolist():
        frames[chosen[at]] = _nowhere(boxes[chosen[at]], window, flip)


def _of_runs(
    runs: np.ndarray, photo: tuple[int, int], turn: int, box: np.ndarray, window: CropWindow, flip: bool, side: int
) -> tuple[np.ndarray, np.ndarray]:
    ends = np.cumsum(runs, dtype=np.int64)
    # The source row and column of every row and column of the input, in the turned photo,
    rows = window.top + nearest_indices(window.height, window.resized_height)
    columns = window.left + nearest_indices(window.width, window.resized_width)
    if flip:
        columns = columns[::-1]
    # and in the photo that the runs are of; where that lies on its side, all below is of the input on its side.
    from_right, from_below, swapped = TURNS[turn]
    height, width = photo[::-1] if swapped else photo
    rows = height - 1 - rows if from_below else rows
    columns = width - 1 - columns if from_right else columns
    if swapped:
        rows, columns = columns, rows
    bounds = _bounds_of_runs(ends, photo[0], rows, columns)
    if bounds is None:
        return np.zeros((side + 2, side + 2), np.uint8), _nowhere(box, window, flip)
    left, top, right, bottom = bounds
    pitch_x, pitch_y = max(1.0, (right - left) / side), max(1.0, (bottom - top) / side)
    # Coarser pixels take the value at their centers. Beyond the photo's border the nearest pixel inside is repeated.
    centers = np.arange(side + 2) - 0.5
    at_x = np.clip(np.floor(left + centers * pitch_x), 0, len(columns) - 1).astype(np.int64)
    at_y = np.clip(np.floor(top + centers * pitch_y), 0, len(rows) - 1).astype(np.int64)
    locations = columns[at_x][:, None] * photo[0] + rows[at_y]
    canvas = (np.searchsorted(ends, locations, side="right") & 1).astype(np.uint8)
    if swapped:
        return canvas, np.array((top, left, pitch_y, pitch_x), np.float32)
    return canvas.T, np.array((left, top, pitch_x, pitch_y), np.float32)


def _bounds_of_runs(
    ends: np.ndarray, photo_height: int, rows: np.ndarray, columns: np.ndarray
) -> tuple[int, int, int, int] | None:
    """(left, top, right, bottom) in the input around all rows and columns that may hold some of the mask, or None."""
    starts, stops = ends[0::2][: len(ends) // 2], ends[1::2]
    kept = stops > starts
    starts, stops = starts[kept], stops[kept] - 1
    if not len(starts):
        return None
    top, bottom = 0, photo_height - 1
    if (starts // photo_height == stops // photo_height).all():  # else some run fills a column to its end
        top, bottom = int((starts % photo_height).min()), int((stops % photo_height).max())
    in_x = np.flatnonzero((columns >= starts[0] // photo_height) & (columns <= stops[-1] // photo_height))
    in_y = np.flatnonzero((rows >= top) & (rows <= bottom))
    if not len(in_x) or not len(in_y):
        return None
    return int(in_x[0]), int(in_y[0]), int(in_x[-1]) + 1, int(in_y[-1]) + 1


def nearest_indices(source: int, target: int) -> np.ndarray:
    """(target,) int64 in 0..source-1: the source of each of `target` pixels in torch's interpolate, mode nearest."""
    scale = np.float32(source) / np.float32(target)
    return np.minimum(np.floor(np.arange(target, dtype=np.float32) * scale).astype(np.int64), source - 1)


def _repeat_border(canvas: np.ndarray, top: int, left: int, bottom: int, right: int) -> None:
    """Fill what is outside rows top..bottom-1 and columns left..right-1 with the nearest pixel inside, in place."""
    canvas[:, :left] = canvas[:, left : left + 1]
    canvas[:, right:] = canvas[:, right - 1 : right]
    canvas[:top] = canvas[top]
    canvas[bottom:] = canvas[bottom - 1]


def _nowhere(box: np.ndarray, window: CropWindow, flip: bool) -> np.ndarray:
    """The frame of a mask without a pixel, at its box's corner."""
    corners = _to_input(box.reshape(2, 2), window, flip)
    left, top = np.clip(np.floor(corners.min(axis=0)), 0, (window.resized_width - 1, window.resized_height - 1))
    return np.array((left, top, 1, 1), np.float32)
