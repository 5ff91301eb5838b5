"""The eight shape classes as polygons, how much of each pixel a polygon covers, and back: from the pixels of an object to polygons
without holes, or to COCO's run lengths.

Letters: P points of one loop or polygon, h and w pixels of a patch, H and W of the picture.
An outline is a tuple of loops, each (P, 2) float64 xy in pixels, y down; the pixel in column 0 spans x from 0 to 1.
No loop has a hole, as in COCO: the ring is two half rings that share their cut.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from PIL import Image, ImageDraw

CLASSES = ("circle", "square", "triangle", "star", "cross", "ring", "crescent", "heart")

Outline = tuple[np.ndarray, ...]

# Edges of a polygon fall on a grid this many times finer than pixels; finer still where a pixel is much of the shape.
FINE, FINE_SMALL, SMALL_PX = 4, 8, 40
# A corner nearer than this to the line through its neighbors is left out: pixels resolve no less than half a pixel.
TOLERANCE_PX = 0.5
# A part of an object with fewer pixels is a crumb left over by what lies above it, and gets no polygon.
CRUMB_PX2 = 6

# Steps along the edges of pixels, clockwise as seen (y down): right, down, left, up.
_STEP_X, _STEP_Y = (1, 0, -1, 0), (0, 1, 0, -1)


@dataclass(frozen=True)
class Stamp:
    """A patch to be laid on a picture: its top left pixel (perhaps outside the picture) and (h, w) uint8 coverage."""

    left: int
    top: int
    coverage: np.ndarray


def _arc(radius: float, start: float, stop: float, points: int) -> np.ndarray:
    angles = np.linspace(start, stop, points)
    # Rounded, so that the ring's halves meet in the very same points (the sine of a full turn is not quite 0).
    return np.round(radius * np.stack([np.cos(angles), np.sin(angles)], axis=1), 12)


def _loops(name: str) -> list[np.ndarray]:
    turn = 2 * math.pi
    match name:
        case "circle":
            return [_arc(1.0, 0.0, turn, 49)[:-1]]
        case "square":
            return [np.array([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])]
        case "triangle":
            return [_arc(1.0, 0.0, turn, 4)[:-1]]
        case "star":
            return [_arc(1.0, 0.0, turn, 11)[:-1] * np.tile([1.0, 0.45], 5)[:, None]]
        case "cross":
            arm = 0.34
            quarter = np.array([[arm, arm], [arm, 1.0], [-arm, 1.0]])
            return [np.concatenate([quarter @ _turned(-turn / 4 * k) for k in range(4)])]
        case "ring":
            halves = ((0.0, turn / 2), (turn / 2, turn))
            return [np.concatenate([_arc(1.0, a, b, 25), _arc(0.55, b, a, 25)]) for a, b in halves]
        case "crescent":
            # A disc less a smaller disc whose center is moved by `shift`; the two circles meet at x = `meet`.
            bite, shift = 0.85, 0.5
            meet = (1 - bite**2 + shift**2) / (2 * shift)
            outer, inner = math.acos(meet), math.acos((meet - shift) / bite)
            back = _arc(bite, turn - inner, inner, 22)[1:-1] + np.array([shift, 0.0])
            return [np.concatenate([_arc(1.0, outer, turn - outer, 32), back])]
        case "heart":
            t = np.linspace(0.0, turn, 45)[:-1]
            down = 5 * np.cos(2 * t) + 2 * np.cos(3 * t) + np.cos(4 * t) - 13 * np.cos(t)
            return [np.stack([16 * np.sin(t) ** 3, down], axis=1)]
    raise AssertionError(name)


def _turned(angle: float) -> np.ndarray:
    return np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])


@cache
def _unit_outline(name: str) -> Outline:
    """The class's outline with area 1 and the middle of its box at the origin."""
    loops = _loops(name)
    points = np.concatenate(loops)
    middle = (points.min(axis=0) + points.max(axis=0)) / 2
    return tuple((loop - middle) / math.sqrt(outline_area(loops)) for loop in loops)


def _signed_area(loop: np.ndarray) -> float:
    x, y = loop.T
    return float(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2


def outline_area(loops: Outline | list[np.ndarray]) -> float:
    """Area of an outline, px^2: the shoelace formula, whichever way a loop runs."""
    return sum(abs(_signed_area(loop)) for loop in loops)


def make_outline(label: int, *, area: float, angle: float, stretch: float) -> Outline:
    """The outline of class `label` (0..7) with `area` px^2, its box's middle at the origin; stretched there (width by
    `stretch`, height by 1 / `stretch`), then rotated by `angle` radians.
    """
    matrix = np.diag([stretch, 1 / stretch]) @ _turned(angle) * math.sqrt(area)
    return tuple(loop @ matrix for loop in _unit_outline(CLASSES[label]))


def move_outline(loops: Outline, x: float, y: float) -> Outline:
    """The outline `x` pixels to the right and `y` down."""
    return tuple(loop + np.array([x, y]) for loop in loops)


def outline_box(loops: Outline | list[np.ndarray]) -> tuple[float, float, float, float]:
    """(x1, y1, x2, y2) around an outline."""
    points = np.concatenate(loops)
    (x1, y1), (x2, y2) = points.min(axis=0).tolist(), points.max(axis=0).tolist()
    return x1, y1, x2, y2


def rasterize_coverage(loops: Outline, *, edge: float = 0.0) -> Stamp:
    """How much of each pixel the outline covers, 0..255; with `edge` > 0 only its border, that many pixels inwards."""
    x1, y1, x2, y2 = outline_box(loops)
    left, top = math.floor(x1) - 1, math.floor(y1) - 1
    width, height = math.ceil(x2) + 1 - left, math.ceil(y2) + 1 - top
    fine = FINE_SMALL if max(width, height) < SMALL_PX else FINE
    canvas = Image.new("L", (width * fine, height * fine))
    draw = ImageDraw.Draw(canvas)
    # Pillow names fine pixels by their middle, hence the half.
    paths = [np.rint((loop - [left, top]) * fine - 0.5).astype(int).tolist() for loop in loops]
    for path in paths:
        draw.polygon([tuple(point) for point in path], fill=255)
    if edge > 0:
        border = _draw_border(paths, canvas.size, edge * fine)
        canvas = Image.composite(border, Image.new("L", canvas.size), canvas)
    return Stamp(left, top, np.asarray(canvas.reduce(fine)))


def _draw_border(paths: list[list[list[int]]], size: tuple[int, int], reach: float) -> Image.Image:
    """Everything within `reach` of the paths, less the cuts, which two loops walk in opposite directions."""
    canvas = Image.new("L", size)
    draw = ImageDraw.Draw(canvas)
    sides = [(x0, y0, x1, y1) for path in paths for (x0, y0), (x1, y1) in zip(path, path[1:] + path[:1])]
    known = set(sides)
    for x0, y0, x1, y1 in sides:
        if (x1, y1, x0, y0) not in known:
            draw.line((x0, y0, x1, y1), fill=255, width=max(1, round(2 * reach)))
            draw.ellipse((x0 - reach, y0 - reach, x0 + reach, y0 + reach), fill=255)
    return canvas


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
    # Corner -> directions in which an edge leaves it; two where pixels touch by a corner.
    leaving: dict[int, list[int]] = {}
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
    # Crossings last: from one a loop may close early.
    for start in sorted(leaving, key=lambda corner: len(leaving[corner])):
        while leaving[start]:
            corner, direction, middles = start, leaving[start][0], []
            while leaving[corner]:
                ways = leaving[corner]
                # Where two parts touch by a corner, the right turn stays on the same pixel.
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


def visible_region(stamp: Stamp, height: int, width: int) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """Where a stamp and an (H, W) picture meet: (rows, columns) of the picture, and (rows, columns) of the stamp."""
    rows, columns = stamp.coverage.shape
    top, left = max(stamp.top, 0), max(stamp.left, 0)
    bottom, right = max(top, min(stamp.top + rows, height)), max(left, min(stamp.left + columns, width))
    part = slice(top - stamp.top, bottom - stamp.top), slice(left - stamp.left, right - stamp.left)
    return (slice(top, bottom), slice(left, right)), part
