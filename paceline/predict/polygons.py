"""A mask's outlines as polygons, for tools in which people move their corners.

A polygon has no holes, and a mask of several parts is several polygons. Points lie between pixels: a mask of the pixels 2 to 4 of
a row reaches from 2 to 5. The contour that contourpy (which matplotlib draws with) finds cuts corners of pixels in half.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# Pixels that an outline may lie beside the contour for the sake of fewer corners.
TOLERANCE = 0.5
# Parts below this share of the mask's largest are specks, which nobody wants to correct.
LEAST_PART = 0.02


def polygons_of(mask: np.ndarray) -> list[np.ndarray]:
    """mask: (h, w) bool -> the outline of each part, (p, 2) x and y in pixels, p >= 3, largest first; [] of an empty mask."""
    from contourpy import FillType, contour_generator

    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not len(rows):
        return []
    top, left = rows[0], columns[0]
    inside = np.pad(mask[top : rows[-1] + 1, left : columns[-1] + 1], 1).astype(np.float32)
    # OuterOffset: of each part its outer line first, then those of its holes.
    filled: Any = contour_generator(z=inside, fill_type=FillType.OuterOffset).filled(0.5, 2.0)
    parts, offsets = filled
    outlines = [points[: ends[1] - 1] for points, ends in zip(parts, offsets)]  # the last point is the first
    moved = np.array([left - 0.5, top - 0.5])
    outlines = [outline.astype(np.float64) + moved for outline in outlines]
    sizes = [_area(outline) for outline in outlines]
    order = sorted(range(len(sizes)), key=lambda part: -sizes[part])
    return [_simpler(outlines[part]) for part in order if sizes[part] >= LEAST_PART * sizes[order[0]]]


def _area(points: np.ndarray) -> float:
    x, y = points.T
    return 0.5 * abs(float(x @ np.roll(y, 1) - y @ np.roll(x, 1)))


def _simpler(points: np.ndarray) -> np.ndarray:
    """The corners without which a line would lie further than TOLERANCE beside them (Douglas and Peucker 1973)."""
    far = int(np.argmax(((points - points[0]) ** 2).sum(1)))
    closed = np.concatenate((points, points[:1]))
    kept, waiting = {0, far}, [(0, far), (far, len(points))]
    while waiting:
        first, last = waiting.pop()
        if last - first < 2:
            continue
        way, between = closed[last] - closed[first], closed[first + 1 : last] - closed[first]
        beside = np.abs(way[0] * between[:, 1] - way[1] * between[:, 0]) / max(float(np.hypot(*way)), 1e-9)
        worst = first + 1 + int(np.argmax(beside))
        if beside[worst - first - 1] > TOLERANCE:
            kept.add(worst)
            waiting += [(first, worst), (worst, last)]
    return points if len(kept) < 3 else points[sorted(kept)]
