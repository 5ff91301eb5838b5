"""Colors and textures of the rendered pictures: backgrounds, fills, shadows, grain.

Letters: H and W pixels of the picture, h and w pixels of a patch of it.
A canvas is (3, H, W) float32 RGB 0..255: plane by plane, which NumPy walks several times faster than pixel by pixel.
A color is (3,) of the same; a pattern is (h, w) float32 0..1: how far a pixel is from the first color to the second.
"""

from __future__ import annotations

import colorsys
import math
from typing import Literal

import numpy as np
from PIL import Image, ImageFilter

from paceline.data.shapes.outlines import Outline, Stamp, outline_area, rasterize_coverage

Pattern = Literal["flat", "linear", "radial", "stripes", "checks", "dots", "noise"]

BACKGROUNDS: tuple[Pattern, ...] = ("linear", "radial", "stripes", "stripes", "checks", "checks", "noise", "noise", "noise")
FILLS: tuple[Pattern, ...] = ("flat", "flat", "linear", "radial", "stripes", "checks", "dots", "noise")
# Below this width a texture is no longer seen, only mud.
TEXTURED_PX = 24

# RGB distance (0..442) that tells an object from what lies under it, also in gray and after JPEG.
CONTRAST = 110.0


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


def visible_region(stamp: Stamp, height: int, width: int) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """Where a stamp and an (H, W) picture meet: (rows, columns) of the picture, and (rows, columns) of the stamp."""
    rows, columns = stamp.coverage.shape
    top, left = max(stamp.top, 0), max(stamp.left, 0)
    bottom, right = max(top, min(stamp.top + rows, height)), max(left, min(stamp.left + columns, width))
    part = slice(top - stamp.top, bottom - stamp.top), slice(left - stamp.left, right - stamp.left)
    return (slice(top, bottom), slice(left, right)), part


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
