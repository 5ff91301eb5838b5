"""One rendered picture: which shapes stand where, what of each is seen, and its pixels.

Letters: H and W pixels of the picture, S shapes.
Picture `number` of a split is a function of (seed, kind, split, number, side) alone: its randomness is a Philox stream
(Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") whose key and counter are these numbers.

A canvas is (3, H, W) float32 RGB 0..255: plane by plane, which NumPy walks several times faster than pixel by pixel. A color is (3,)
of the same; a pattern is (h, w) float32 0..1 of a patch: how far each pixel is from the first color to the second.

Boxes and areas are those of what is seen, as in COCO: an object that others hide too much is not drawn at all.
The bands of sizes are written for side 256, where they meet COCO's small (area < 32^2 px) and large (area > 96^2 px).
"""

from __future__ import annotations

import colorsys
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from PIL import Image, ImageFilter

from paceline.data.shapes.outlines import (
    CLASSES,
    Outline,
    Stamp,
    make_outline,
    move_outline,
    outline_area,
    outline_box,
    rasterize_coverage,
    visible_region,
)

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

Pattern = Literal["flat", "linear", "radial", "stripes", "checks", "dots", "noise"]
BACKGROUNDS: tuple[Pattern, ...] = ("linear", "radial", "stripes", "stripes", "checks", "checks", "noise", "noise", "noise")
FILLS: tuple[Pattern, ...] = ("flat", "flat", "linear", "radial", "stripes", "checks", "dots", "noise")
# Below this width a texture is no longer seen, only mud.
TEXTURED_PX = 24

# RGB distance (0..442) that tells an object from what lies under it, also in gray and after JPEG.
CONTRAST = 110.0


@dataclass(frozen=True)
class DrawnObject:
    """An object before it is drawn: its class (0..7), its outline, and whether it is one of a crowd."""

    label: int
    loops: Outline
    crowd: bool = False

    @cached_property
    def stamp(self) -> Stamp:
        """Its coverage of pixels, those outside the picture too."""
        return rasterize_coverage(self.loops)

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
        shapes = _one_among_others(rng, side, number % len(CLASSES))
    shapes, owners = _visible(shapes, height, width)
    canvas, avoid = paint_background(rng, height, width)
    shadow = rng.uniform(0.2, 0.6) if rng.random() < 0.6 else 0.0
    for shape in shapes:
        color = paint_object(canvas, rng, shape.loops, shape.stamp, avoid, shadow)
        avoid = [*avoid[:2], color]  # the ground, and the shape drawn before: they often touch
    return DrawnImage(finish_image(canvas, rng), owners, shapes)


def _outline(rng: np.random.Generator, label: int, area: float, *, most_tilt: float = math.pi) -> Outline:
    """A shape of class `label`, turned by at most `most_tilt` radians either way."""
    stretch = math.exp(rng.uniform(-0.13, 0.13))
    return make_outline(label, area=area, angle=rng.uniform(-most_tilt, most_tilt), stretch=stretch)


def _put(rng: np.random.Generator, loops: Outline, height: int, width: int, overhang: float) -> Outline:
    """Slide the outline to a random place with at most `overhang` of its box's width and height outside the picture."""
    x1, y1, x2, y2 = outline_box(loops)
    beyond_x, beyond_y = overhang * (x2 - x1), overhang * (y2 - y1)
    x = rng.uniform(-beyond_x, max(-beyond_x, width - (x2 - x1) + beyond_x)) - x1
    y = rng.uniform(-beyond_y, max(-beyond_y, height - (y2 - y1) + beyond_y)) - y1
    return move_outline(loops, x, y)


def _overlap(left: Outline, right: Outline) -> tuple[float, float]:
    """Of two outlines' boxes: intersection over union, and intersection over the smaller one."""
    ax1, ay1, ax2, ay2 = outline_box(left)
    bx1, by1, bx2, by2 = outline_box(right)
    both = max(0.0, min(ax2, bx2) - max(ax1, bx1)) * max(0.0, min(ay2, by2) - max(ay1, by1))
    a, b = (ax2 - ax1) * (ay2 - ay1), (bx2 - bx1) * (by2 - by1)
    return both / (a + b - both), both / min(a, b)


def _scatter(rng: np.random.Generator, height: int, width: int, scale: float) -> list[DrawnObject]:
    """Shapes of all sizes, some in pairs that overlap on purpose, lowest first: mostly the large below the small."""
    shapes: list[DrawnObject] = []
    chances = np.cumsum([chance for chance, _, _ in SIZE_BANDS])
    bands = np.searchsorted(chances, rng.random(int(rng.integers(3, 9))) * chances[-1])
    for band in sorted(bands, reverse=True):  # the largest first, while there is room
        label = int(rng.integers(len(CLASSES)))
        partner = shapes[rng.integers(len(shapes))] if shapes and rng.random() < 0.35 else None
        if partner is not None:
            loops = _beside(rng, label, partner, shapes, height, width)
        else:
            _, low, high = SIZE_BANDS[band]
            loops = _apart(rng, label, (rng.uniform(low, high) * scale) ** 2, shapes, height, width)
        if loops is not None:
            shapes.append(DrawnObject(label, loops))
    depth = [outline_area(shape.loops) * math.exp(rng.normal(0, 0.7)) for shape in shapes]
    return [shapes[k] for k in np.argsort(depth)[::-1]]


def _apart(
    rng: np.random.Generator, label: int, area: float, shapes: list[DrawnObject], height: int, width: int
) -> Outline | None:
    """An outline that stays clear of the others, or lies over a much larger one; None where no place was found."""
    for _ in range(16):
        overhang = 0.3 if rng.random() < 0.15 else 0.0
        loops = _put(rng, _outline(rng, label, area), height, width, overhang)
        on_top = rng.random() < 0.3
        if all(
            _overlap(loops, other.loops)[1] < 0.12 or (on_top and area < 0.1 * outline_area(other.loops))
            for other in shapes
        ):
            return loops
    return None


def _beside(
    rng: np.random.Generator, label: int, partner: DrawnObject, shapes: list[DrawnObject], height: int, width: int
) -> Outline | None:
    """An outline of about the partner's size whose box overlaps the partner's; None where no place was found."""
    area = outline_area(partner.loops) * math.exp(rng.uniform(-0.5, 0.5))
    x1, y1, x2, y2 = outline_box(partner.loops)
    for _ in range(16):
        loops = _outline(rng, label, area)
        direction, distance = rng.uniform(0, 2 * math.pi), rng.uniform(0.35, 0.75) * math.sqrt((x2 - x1) * (y2 - y1))
        x, y = (x1 + x2) / 2 + distance * math.cos(direction), (y1 + y2) / 2 + distance * math.sin(direction)
        loops = move_outline(loops, x, y)
        left, top, right, bottom = outline_box(loops)
        if left < 0 or top < 0 or right > width or bottom > height:
            continue
        if not 0.14 < _overlap(loops, partner.loops)[0] < 0.45:
            continue
        if all(other is partner or _overlap(loops, other.loops)[0] < 0.2 for other in shapes):
            return loops
    return None


def _crowd(rng: np.random.Generator, height: int, width: int, scale: float) -> list[DrawnObject]:
    """Many tiny shapes of one class in a round region, each clear of the next, to be laid over everything else."""
    label, radius = int(rng.integers(len(CLASSES))), rng.uniform(30, 48) * scale
    middle_x, middle_y = rng.uniform(radius, width - radius), rng.uniform(radius, height - radius)
    spots: list[tuple[float, float]] = []
    members = []
    for _ in range(80):
        away, direction = radius * math.sqrt(rng.random()), rng.uniform(0, 2 * math.pi)
        x, y = middle_x + away * math.cos(direction), middle_y + away * math.sin(direction)
        if all(math.hypot(x - ox, y - oy) > 12 * scale for ox, oy in spots):
            spots.append((x, y))
            loops = _outline(rng, label, (rng.uniform(7.5, 11) * scale) ** 2)
            members.append(DrawnObject(label, move_outline(loops, x, y), crowd=True))
    return members


def _one_among_others(rng: np.random.Generator, side: int, label: int) -> list[DrawnObject]:
    """One large shape of class `label` and one to three small ones of other classes, most of them below it."""
    size = side * rng.uniform(0.5, 0.7)
    subject = DrawnObject(label, _put(rng, _outline(rng, label, size**2, most_tilt=SUBJECT_TILT), side, side, 0.04))
    below, above = [], []
    for _ in range(int(rng.integers(1, 4))):
        other = (label + int(rng.integers(1, len(CLASSES)))) % len(CLASSES)
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


def paint_background(rng: np.random.Generator, height: int, width: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """A textured ground of muted colors: a new canvas, and its two colors."""
    hue, depth = rng.random(), rng.uniform(0.08, 0.45)
    light = rng.uniform(0.35, 0.97)
    other = light + rng.uniform(0.08, 0.28) * (1 if light < 0.6 else -1)
    first = _hsv(hue, depth, light)
    second = _hsv(hue + rng.normal(0, 0.06), depth * rng.uniform(0.6, 1.4), other)
    kind = BACKGROUNDS[rng.integers(len(BACKGROUNDS))]
    period = math.exp(rng.uniform(math.log(7), math.log(0.4 * min(height, width))))
    ground = _blend(first, second, _pattern(rng, kind, height, width, period))
    # Uneven light over all of it, as on a photo.
    ground *= 0.84 + 0.3 * _noise(rng, height, width, max(height, width) / 2)
    return ground, [first, second]


def paint_object(
    canvas: np.ndarray, rng: np.random.Generator, loops: Outline, stamp: Stamp, avoid: list[np.ndarray], shadow: float
) -> np.ndarray:
    """Lay one shape on the canvas, in place, in a color far from all of `avoid`, and return that color.

    stamp   the outline's own, as `rasterize_coverage(loops)` gives it
    shadow  the shadow's strength 0..1; it falls to the lower right, by a length that grows with the shape
    """
    size = math.sqrt(outline_area(loops))
    first = _apart_from(rng, avoid)
    kind = FILLS[rng.integers(len(FILLS))] if size >= TEXTURED_PX else ("flat", "linear")[rng.integers(2)]
    if shadow > 0:
        _lay_shadow(canvas, stamp, reach=max(1.0, 0.05 * size), strength=shadow)
    if kind == "flat":
        _lay(canvas, stamp, first[:, None, None])
    else:
        second = first * rng.uniform(0.55, 0.8) if rng.random() < 0.5 else first + (255 - first) * rng.uniform(0.3, 0.6)
        height, width = stamp.coverage.shape
        _lay(canvas, stamp, _blend(first, second, _pattern(rng, kind, height, width, size * rng.uniform(0.18, 0.4))))
    if rng.random() < 0.35:
        edge_color = first * 0.35 if first.mean() > 110 else first + (255 - first) * 0.75
        _lay(canvas, rasterize_coverage(loops, edge=max(1.2, size * rng.uniform(0.03, 0.08))), edge_color[:, None, None])
    return first


def finish_image(canvas: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The finished picture as (H, W, 3) uint8, with a sensor's noise."""
    height, width = canvas.shape[1:]
    grain = rng.standard_normal((height, width), dtype=np.float32) * np.float32(rng.uniform(0.5, 5.0))
    planes = np.clip(canvas + grain, 0, 255).astype(np.uint8)
    return np.ascontiguousarray(planes.transpose(1, 2, 0))


def _lay(canvas: np.ndarray, stamp: Stamp, fill: np.ndarray) -> None:
    """Mix `fill`, (3, 1, 1) or (3, h, w) for the stamp's h and w, into the canvas by the stamp's coverage."""
    (rows, columns), part = visible_region(stamp, *canvas.shape[1:])
    if fill.shape[1:] != (1, 1):
        fill = fill[:, part[0], part[1]]
    under = canvas[:, rows, columns]
    under += (fill - under) * (stamp.coverage[part].astype(np.float32) / 255)


def _lay_shadow(canvas: np.ndarray, stamp: Stamp, *, reach: float, strength: float) -> None:
    margin = math.ceil(2 * reach)
    blurred = Image.fromarray(np.pad(stamp.coverage, margin)).filter(ImageFilter.GaussianBlur(reach))
    offset = round(reach)
    dark = Stamp(stamp.left - margin + offset, stamp.top - margin + offset, np.asarray(blurred))
    (rows, columns), part = visible_region(dark, *canvas.shape[1:])
    canvas[:, rows, columns] *= 1 - dark.coverage[part].astype(np.float32) * np.float32(strength / 255)


def _hsv(hue: float, saturation: float, value: float) -> np.ndarray:
    return np.array(colorsys.hsv_to_rgb(hue % 1.0, min(saturation, 1.0), min(value, 1.0)), np.float32) * 255


def _apart_from(rng: np.random.Generator, avoid: list[np.ndarray]) -> np.ndarray:
    """The first of a few random colors that stands out from `avoid`, or the one that does so best."""
    best, best_distance = np.zeros(3, np.float32), -1.0
    for _ in range(12):
        if rng.random() < 0.12:
            color = _hsv(rng.random(), 0.06, rng.choice([0.12, 0.5, 0.97]))
        else:
            color = _hsv(rng.random(), rng.uniform(0.5, 0.95), rng.uniform(0.5, 1.0))
        distance = min((float(np.linalg.norm(color - other)) for other in avoid), default=CONTRAST)
        if distance > best_distance:
            best, best_distance = color, distance
        if best_distance >= CONTRAST:
            break
    return best


def _blend(first: np.ndarray, second: np.ndarray, pattern: np.ndarray) -> np.ndarray:
    return first[:, None, None] + (second - first)[:, None, None] * pattern


def _pattern(rng: np.random.Generator, kind: Pattern, height: int, width: int, period: float) -> np.ndarray:
    """A texture over a patch; `period` in pixels is the size of its parts. "flat" has no pattern."""
    if kind == "noise":
        coarse, fine = _noise(rng, height, width, period), _noise(rng, height, width, max(2.0, period / 4))
        return 0.65 * coarse + 0.35 * fine
    angle = rng.uniform(0, 2 * math.pi)
    x = np.arange(width, dtype=np.float32)[None, :] - np.float32(rng.uniform(0, width))
    y = np.arange(height, dtype=np.float32)[:, None] - np.float32(rng.uniform(0, height))
    if kind == "radial":
        away = np.sqrt(x * x + y * y)
        return away / away.max()
    cos, sin = np.float32(math.cos(angle)), np.float32(math.sin(angle))
    u, v = cos * x + sin * y, cos * y - sin * x
    if kind == "linear":
        return (u - u.min()) / max(float(np.ptp(u)), 1.0)
    turn = np.float32(2 * math.pi / period)
    sharpness = np.float32(math.exp(rng.uniform(0, 2.5)))
    if kind == "stripes":
        wave = np.sin(turn * u)
    elif kind == "checks":
        wave = np.sin(turn / 2 * u) * np.sin(turn / 2 * v)
    else:
        wave = np.cos(turn * u) + np.cos(turn * v) - np.float32(0.7)
    return np.clip(0.5 + 0.5 * sharpness * wave, 0, 1)


def _noise(rng: np.random.Generator, height: int, width: int, period: float) -> np.ndarray:
    """Smooth noise 0..1: a coarse random grid, enlarged."""
    grid = rng.random((max(2, round(height / period) + 1), max(2, round(width / period) + 1)), dtype=np.float32)
    large = Image.fromarray(grid).resize((width, height), Image.Resampling.BICUBIC)
    return np.clip(np.asarray(large), 0, 1)
