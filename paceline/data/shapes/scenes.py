"""One rendered picture: which shapes stand where, what of each is seen, its pixels and its annotations.

Letters: H and W pixels of the picture, S shapes.
Picture `number` of a split is a function of (seed, kind, split, number, side) alone: its randomness is a Philox stream
(Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") whose key and counter are these numbers.

Boxes and areas are those of what is seen, as in COCO: an object that others hide too much is not drawn at all.
The bands of sizes are written for side 256, where they meet COCO's small (area < 32^2 px) and large (area > 96^2 px).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from paceline.data.shapes import outlines
from paceline.data.shapes.paint import finish_image, paint_background, paint_object, visible_region

Kind = Literal["boxes", "classes"]
# Pictures for classification show things the right way up, as photos do, give or take half a radian: a network of a few
# minutes' training learns eight upright shapes, and a linear classifier still does not (tests/data/test_shapes.py).
SUBJECT_TILT = 0.5
KINDS: tuple[Kind, ...] = ("boxes", "classes")
SPLITS = ("train", "val")

# Of pictures with boxes one in 20 has no object, about one in 16 a crowd: by number, so that small sets have them too.
EMPTY_EVERY, EMPTY_AT = 20, 7
CROWD_EVERY, CROWD_AT = 16, 3

# (height, width) as parts of `side`
ASPECTS = ((1.0, 1.0), (1.0, 1.25), (1.25, 1.0), (0.875, 1.125), (1.125, 0.875))
# (probability, shortest and longest square root of the area) at side 256
SIZE_BANDS = ((0.36, 11.0, 29.0), (0.32, 36.0, 85.0), (0.32, 104.0, 135.0))

# An object is left out where less of it than this is seen, or fewer pixels than that.
SEEN_PART, SEEN_PX2 = 0.4, 50
# A covered pixel belongs to the object; 128 of 255 is half.
COVERED = 128


@dataclass(frozen=True)
class DrawnObject:
    """An object before it is drawn: its class (0..7), its outline, and whether it is one of a crowd."""

    label: int
    loops: outlines.Outline
    crowd: bool = False

    @cached_property
    def stamp(self) -> outlines.Stamp:
        """Its coverage of pixels, those outside the picture too."""
        return outlines.rasterize_coverage(self.loops)

    @cached_property
    def whole(self) -> np.ndarray:
        """Which pixels of `stamp` are the shape's."""
        return self.stamp.coverage >= COVERED


@dataclass(frozen=True)
class DrawnImage:
    """A finished picture.

    pixels  (H, W, 3) uint8 RGB
    owners  (H, W) int16: 0 the background, s + 1 the shape s of `shapes`
    shapes  what was drawn, lowest first
    """

    pixels: np.ndarray
    owners: np.ndarray
    shapes: list[DrawnObject]


def draw_picture(kind: Kind, *, seed: int, split: int, number: int, side: int) -> DrawnImage:
    """Picture `number` (0 and up) of split 0 (train) or 1 (val), about `side` pixels high and wide.

    A picture of kind "classes" shows class `number % 8` largest.
    """
    # The generator counts up the low words of the counter; split and number in the high words keep the streams apart.
    bits = np.random.Philox(key=[seed, KINDS.index(kind)], counter=[0, 0, split, number])
    rng = np.random.Generator(bits)
    if kind == "boxes":
        height, width = (round(part * side) for part in ASPECTS[rng.integers(len(ASPECTS))])
        shapes = [] if number % EMPTY_EVERY == EMPTY_AT else _scatter(rng, height, width, side / 256)
        if shapes and number % CROWD_EVERY == CROWD_AT:
            shapes += _crowd(rng, height, width, side / 256)
    else:
        height = width = side
        shapes = _one_among_others(rng, side, number % len(outlines.CLASSES))
    shapes, owners = _visible(shapes, height, width)
    canvas, avoid = paint_background(rng, height, width)
    shadow = rng.uniform(0.2, 0.6) if rng.random() < 0.6 else 0.0
    for shape in shapes:
        color = paint_object(canvas, rng, shape.loops, shape.stamp, avoid, shadow)
        avoid = [*avoid[:2], color]  # the ground, and the shape drawn before: they often touch
    return DrawnImage(finish_image(canvas, rng), owners, shapes)


def _outline(rng: np.random.Generator, label: int, area: float, *, most_tilt: float = math.pi) -> outlines.Outline:
    """A shape of class `label`, turned by at most `most_tilt` radians either way."""
    stretch = math.exp(rng.uniform(-0.13, 0.13))
    return outlines.make_outline(label, area=area, angle=rng.uniform(-most_tilt, most_tilt), stretch=stretch)


def _put(rng: np.random.Generator, loops: outlines.Outline, height: int, width: int, overhang: float) -> outlines.Outline:
    """Slide the outline to a random place with at most `overhang` of its box's width and height outside the picture."""
    x1, y1, x2, y2 = outlines.outline_box(loops)
    beyond_x, beyond_y = overhang * (x2 - x1), overhang * (y2 - y1)
    x = rng.uniform(-beyond_x, max(-beyond_x, width - (x2 - x1) + beyond_x)) - x1
    y = rng.uniform(-beyond_y, max(-beyond_y, height - (y2 - y1) + beyond_y)) - y1
    return outlines.move_outline(loops, x, y)


def _overlap(left: outlines.Outline, right: outlines.Outline) -> tuple[float, float]:
    """Of two outlines' boxes: intersection over union, and intersection over the smaller one."""
    ax1, ay1, ax2, ay2 = outlines.outline_box(left)
    bx1, by1, bx2, by2 = outlines.outline_box(right)
    both = max(0.0, min(ax2, bx2) - max(ax1, bx1)) * max(0.0, min(ay2, by2) - max(ay1, by1))
    a, b = (ax2 - ax1) * (ay2 - ay1), (bx2 - bx1) * (by2 - by1)
    return both / (a + b - both), both / min(a, b)


def _scatter(rng: np.random.Generator, height: int, width: int, scale: float) -> list[DrawnObject]:
    """Shapes of all sizes, some in pairs that overlap on purpose, lowest first: mostly the large below the small."""
    shapes: list[DrawnObject] = []
    chances = np.cumsum([chance for chance, _, _ in SIZE_BANDS])
    bands = np.searchsorted(chances, rng.random(int(rng.integers(3, 9))) * chances[-1])
    for band in sorted(bands, reverse=True):  # the largest first, while there is room
        label = int(rng.integers(len(outlines.CLASSES)))
        partner = shapes[rng.integers(len(shapes))] if shapes and rng.random() < 0.35 else None
        if partner is not None:
            loops = _beside(rng, label, partner, shapes, height, width)
        else:
            _, low, high = SIZE_BANDS[band]
            loops = _apart(rng, label, (rng.uniform(low, high) * scale) ** 2, shapes, height, width)
        if loops is not None:
            shapes.append(DrawnObject(label, loops))
    depth = [outlines.outline_area(shape.loops) * math.exp(rng.normal(0, 0.7)) for shape in shapes]
    return [shapes[k] for k in np.argsort(depth)[::-1]]


def _apart(
    rng: np.random.Generator, label: int, area: float, shapes: list[DrawnObject], height: int, width: int
) -> outlines.Outline | None:
    """An outline that stays clear of the others, or lies over a much larger one; None where no place was found."""
    for _ in range(16):
        overhang = 0.3 if rng.random() < 0.15 else 0.0
        loops = _put(rng, _outline(rng, label, area), height, width, overhang)
        on_top = rng.random() < 0.3
        if all(
            _overlap(loops, other.loops)[1] < 0.12 or (on_top and area < 0.1 * outlines.outline_area(other.loops))
            for other in shapes
        ):
            return loops
    return None


def _beside(
    rng: np.random.Generator, label: int, partner: DrawnObject, shapes: list[DrawnObject], height: int, width: int
) -> outlines.Outline | None:
    """An outline of about the partner's size whose box overlaps the partner's; None where no place was found."""
    area = outlines.outline_area(partner.loops) * math.exp(rng.uniform(-0.5, 0.5))
    x1, y1, x2, y2 = outlines.outline_box(partner.loops)
    for _ in range(16):
        loops = _outline(rng, label, area)
        direction, distance = rng.uniform(0, 2 * math.pi), rng.uniform(0.35, 0.75) * math.sqrt((x2 - x1) * (y2 - y1))
        x, y = (x1 + x2) / 2 + distance * math.cos(direction), (y1 + y2) / 2 + distance * math.sin(direction)
        loops = outlines.move_outline(loops, x, y)
        left, top, right, bottom = outlines.outline_box(loops)
        if left < 0 or top < 0 or right > width or bottom > height:
            continue
        if not 0.14 < _overlap(loops, partner.loops)[0] < 0.45:
            continue
        if all(other is partner or _overlap(loops, other.loops)[0] < 0.2 for other in shapes):
            return loops
    return None


def _crowd(rng: np.random.Generator, height: int, width: int, scale: float) -> list[DrawnObject]:
    """Many tiny shapes of one class in a round region, each clear of the next, to be laid over everything else."""
    label, radius = int(rng.integers(len(outlines.CLASSES))), rng.uniform(30, 48) * scale
    middle_x, middle_y = rng.uniform(radius, width - radius), rng.uniform(radius, height - radius)
    spots: list[tuple[float, float]] = []
    members = []
    for _ in range(80):
        away, direction = radius * math.sqrt(rng.random()), rng.uniform(0, 2 * math.pi)
        x, y = middle_x + away * math.cos(direction), middle_y + away * math.sin(direction)
        if all(math.hypot(x - ox, y - oy) > 12 * scale for ox, oy in spots):
            spots.append((x, y))
            loops = _outline(rng, label, (rng.uniform(7.5, 11) * scale) ** 2)
            members.append(DrawnObject(label, outlines.move_outline(loops, x, y), crowd=True))
    return members


def _one_among_others(rng: np.random.Generator, side: int, label: int) -> list[DrawnObject]:
    """One large shape of class `label` and one to three small ones of other classes, most of them below it."""
    size = side * rng.uniform(0.5, 0.7)
    subject = DrawnObject(label, _put(rng, _outline(rng, label, size**2, most_tilt=SUBJECT_TILT), side, side, 0.04))
    below, above = [], []
    for _ in range(int(rng.integers(1, 4))):
        other = (label + int(rng.integers(1, len(outlines.CLASSES)))) % len(outlines.CLASSES)
        area = (size * rng.uniform(0.15, 0.28)) ** 2
        shape = DrawnObject(other, _put(rng, _outline(rng, other, area, most_tilt=SUBJECT_TILT), side, side, 0.2))
        (above if rng.random() < 0.25 and area < 0.1 * size**2 else below).append(shape)
    return [*below, subject, *above]


def _visible(shapes: list[DrawnObject], height: int, width: int) -> tuple[list[DrawnObject], np.ndarray]:
    """The shapes of which enough is seen, and the map of their pixels (`DrawnImage.owners`); decided from the top down."""
    owners = np.zeros((height, width), np.int16)
    kept: list[DrawnObject] = []
    for shape in reversed(shapes):
        where, part = visible_region(shape.stamp, height, width)
        seen = shape.whole[part] & (owners[where] == 0)
        least = 1 if shape.crowd else SEEN_PX2
        if np.count_nonzero(seen) >= max(least, SEEN_PART * np.count_nonzero(shape.whole)):
            kept.append(shape)
            owners[where][seen] = len(kept)
    owners = np.where(owners > 0, len(kept) + 1 - owners, 0).astype(np.int16)
    return kept[::-1], owners


def annotate(picture: DrawnImage) -> list[dict]:
    """The picture's annotations as in COCO's JSON, less ids. One for each shape, lowest first; the members of a crowd share one."""
    shapes, owners = picture.shapes, picture.owners
    annotations = []
    for owner, shape in enumerate(shapes, start=1):
        if shape.crowd:
            continue
        mask = owners == owner
        is_whole = np.count_nonzero(mask) == np.count_nonzero(shape.whole)
        polygons = list(shape.loops) if is_whole else outlines.trace_polygons(mask)
        # A whole outline may still pass the picture's border by a part of a pixel.
        polygons = [np.round(np.clip(polygon, 0, mask.shape[::-1]), 2) for polygon in polygons]
        x1, y1, x2, y2 = outlines.outline_box(polygons)
        segmentation = [polygon.ravel().tolist() for polygon in polygons]
        annotations.append(_annotation(shape.label, segmentation, (x1, y1, x2, y2), outlines.outline_area(polygons), 0))
    members = [owner for owner, shape in enumerate(shapes, start=1) if shape.crowd]
    if members:
        label, mask = shapes[members[0] - 1].label, np.isin(owners, members)
        rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
        box = (float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1))
        segmentation = {"counts": outlines.run_lengths(mask), "size": list(mask.shape)}
        annotations.append(_annotation(label, segmentation, box, float(np.count_nonzero(mask)), 1))
    return annotations


def _annotation(label: int, segmentation: list | dict, box: tuple[float, ...], area: float, crowd: int) -> dict:
    x1, y1, x2, y2 = box
    bbox = [round(x1, 2), round(y1, 2), round(x2 - x1, 2), round(y2 - y1, 2)]
    labeled = {"category_id": label + 1, "segmentation": segmentation, "bbox": bbox}
    return {**labeled, "area": round(area, 2), "iscrowd": crowd}
