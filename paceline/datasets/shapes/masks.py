"""From the pixels of an object to its annotation: polygons without holes, or COCO's run lengths.

Letters: H and W pixels of the picture, P points of one polygon.
"""

from __future__ import annotations

import numpy as np

# A corner nearer than this to the line through its neighbours is left out: half a pixel is what the pixels hide anyway.
TOLERANCE_PX = 0.5
# A part of an object with fewer pixels is a crumb left over by what lies above it, and gets no polygon.
CRUMB_PX2 = 6

# Steps along the edges of pixels, clockwise as seen (y down): right, down, left, up.
_STEP_X, _STEP_Y = (1, 0, -1, 0), (0, 1, 0, -1)


def trace_polygons(mask: np.ndarray) -> list[np.ndarray]:
    """Polygons around the True pixels.

    mask    (H, W) bool
    return  list of (P, 2) float64 xy in pixels, P >= 3; one for each part (pixels that touch by an edge) but the crumbs
            beside a larger part. A part with a hole comes in pieces, cut through the hole, as COCO's polygons know no
            holes. An empty mask gives an empty list.
    """
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if rows.size == 0:
        return []
    top, left = int(rows[0]), int(columns[0])
    loops = _loops_without_holes(mask[top : rows[-1] + 1, left : columns[-1] + 1])
    areas = [abs(_signed_area(loop)) for loop in loops]
    least = min(CRUMB_PX2, max(areas))
    return [_simplified(loop) + np.array([left, top]) for loop, area in zip(loops, areas) if area >= least]


def run_lengths(mask: np.ndarray) -> list[int]:
    """COCO's uncompressed run-length counts of an (H, W) bool mask: column after column, zeros first."""
    flat = np.concatenate([[False], mask.ravel(order="F")])
    changes = np.flatnonzero(flat[1:] != flat[:-1])
    return np.diff(np.concatenate([[0], changes, [mask.size]])).tolist()


def _loops_without_holes(mask: np.ndarray) -> list[np.ndarray]:
    loops = _boundary_loops(mask)
    hole = next((loop for loop in loops if _signed_area(loop) < 0), None)
    if hole is None:
        return loops
    # Between two of the hole's columns, or beside its only one: either way no half encloses what was enclosed.
    cut = int(hole[:, 0].min() + hole[:, 0].max() + 1) // 2
    halves = []
    for columns in (slice(None, cut), slice(cut, None)):
        half = np.zeros_like(mask)
        half[:, columns] = mask[:, columns]
        halves += _loops_without_holes(half)
    return halves


def _boundary_loops(mask: np.ndarray) -> list[np.ndarray]:
    """Closed paths through the middles of the pixel edges between True and False, the True pixels at the right hand:
    clockwise around a part, counter-clockwise around a hole. The middles of a slanted edge lie on its line, the corners
    would not.
    """
    height, width = mask.shape
    padded = np.zeros((height + 2, width + 2), np.int8)
    padded[1:-1, 1:-1] = mask
    across, along = np.diff(padded, axis=0)[:, 1:-1], np.diff(padded, axis=1)[1:-1]
    stride = width + 1
    leaving: dict[
        int, list[int]
    ] = {}  # corner -> directions in which an edge leaves it; two where pixels touch by a corner
    for edges, sign, direction, x, y in (
        (across, 1, 0, 0, 0),  # a top edge runs right from its left end
        (along, -1, 1, 0, 0),  # a right edge runs down from its upper end
        (across, -1, 2, 1, 0),  # a bottom edge runs left from its right end
        (along, 1, 3, 0, 1),  # a left edge runs up from its lower end
    ):
        row, column = np.nonzero(edges == sign)
        for corner in ((row + y) * stride + column + x).tolist():
            leaving.setdefault(corner, []).append(direction)
    loops = []
    starts = [corner for corner, ways in leaving.items() if len(ways) == 1]
    starts += [
        corner for corner, ways in leaving.items() if len(ways) == 2
    ]  # last: from a crossing a loop may close early
    for start in starts:
        while leaving[start]:
            corner, direction, middles = start, leaving[start][0], []
            while leaving[corner]:
                ways = leaving[corner]
                # Where two parts touch by a corner, the right turn stays on the pixel that we came along.
                turned = (direction + 1) % 4
                direction = turned if len(ways) == 2 and turned in ways else ways[0]
                ways.remove(direction)
                y, x = divmod(corner, stride)
                middles.append((x + _STEP_X[direction] / 2, y + _STEP_Y[direction] / 2))
                corner += _STEP_X[direction] + _STEP_Y[direction] * stride
                if corner == start:
                    break
            loops.append(np.array(middles))
    return loops


def _signed_area(loop: np.ndarray) -> float:
    x, y = loop.T
    return float(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2


def _simplified(loop: np.ndarray) -> np.ndarray:
    """Douglas and Peucker 1973 on a closed path, from two points that are far apart."""
    # As complex numbers: a point's distance from a line is then one product.
    closed = np.concatenate([loop, loop[:1]]) @ [1, 1j]
    far = int(np.argmax(np.abs(closed - closed[0])))
    keep = {0, far}
    spans = [(0, far), (far, len(loop))]
    while spans:
        first, last = spans.pop()
        if last - first < 2:
            continue
        base = complex(closed[last] - closed[first])
        away = np.abs(((closed[first + 1 : last] - closed[first]) * (base.conjugate() / abs(base))).imag)
        worst = int(away.argmax())
        if away[worst] > TOLERANCE_PX:
            middle = first + 1 + worst
            keep.add(middle)
            spans += [(first, middle), (middle, last)]
    # A sliver narrower than the tolerance has no two sides left; it stays as it is.
    return loop[sorted(keep)] if len(keep) >= 3 else loop
