"""Instance masks on a picture: a translucent fill, and a thin contour that separates an instance from its neighbors.

A mask covers the whole photo, whatever its resolution: (h, w) bool or 0/1, or COCO's run-length encoding
{"size": [h, w], "counts": compressed, str or bytes}. It is drawn at the picture's scale; what is too small to fill half
a pixel there is drawn all the same.
Letters: h, w pixels of a mask   H, W pixels of the picture
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from PIL import Image

from paceline.data.rle import Mask, mask_pixels

Color: TypeAlias = tuple[int, int, int]

# Share of the color in a filled pixel: the photo stays readable below it.
FILL = 0.42
# Instances of one class differ in hue, degrees on the color circle; the first has the class's own color.
HUES = (0, 32, -32, 64, -64)
_BRIGHT = 0.5  # share of white in a contour, which lies on its own fill
_HALO = 0.55  # how far the photo is darkened right outside a contour


def resample_mask(mask: np.ndarray, frame: Sequence[float], height: int, width: int) -> np.ndarray:
    """A mask on a picture: each pixel takes the mask's pixel that its center lies in.

    mask    (h, w) bool or 0/1
    frame   x and y of the mask's left upper corner in the picture, then the width and height of one of its pixels there
    return  (height, width), the mask's type; 0 where the mask does not lie
    """
    x, y, across, down = frame
    columns = np.floor((np.arange(width) + 0.5 - x) / across).astype(np.int64)
    rows = np.floor((np.arange(height) + 0.5 - y) / down).astype(np.int64)
    last = mask.shape[0] - 1, mask.shape[1] - 1
    inside = ((rows >= 0) & (rows <= last[0]))[:, None] & ((columns >= 0) & (columns <= last[1]))
    return inside * mask[np.clip(rows, 0, last[0])[:, None], np.clip(columns, 0, last[1])]


def instance_color(color: Color, number: int) -> Color:
    """The color of a class's instance `number`, 0, 1, 2, ...: neighbors differ in hue."""
    hue, light, strength = colorsys.rgb_to_hls(*(value / 255 for value in color))
    turned = colorsys.hls_to_rgb((hue + HUES[number % len(HUES)] / 360) % 1.0, light, strength)
    red, green, blue = (round(255 * value) for value in turned)
    return red, green, blue


def draw_masks(picture: Image.Image, masks: Sequence[tuple[Mask, Color]], *, line: int) -> Image.Image:
    """A copy of the picture with the masks drawn; where instances overlap, the smaller one lies on top.

    masks  with a color each
    line   width of a contour, pixels
    """
    width, height = picture.size
    pieces = [
        (piece, np.array(color, np.float32))
        for mask, color in masks
        if (piece := _scaled(mask_pixels(mask), height, width, line))
    ]
    pieces.sort(key=lambda piece: -float(piece[0][1].sum()))
    pixels = np.asarray(picture, np.float32).copy()
    clear = np.ones((height, width, 1), np.float32)  # share of each pixel that no instance on top has taken
    for (location, cover), color in reversed(pieces):
        share = cover[..., None] * clear[location]
        pixels[location] += FILL * share * (color - pixels[location])
        clear[location] -= share
    for (location, cover), color in pieces:
        solid = cover >= 0.5
        inner, outer = solid & ~_shrunk(solid, line), ~solid & ~_shrunk(~solid, 1)
        pixels[location][outer] *= 1 - _HALO
        pixels[location][inner] = color + _BRIGHT * (255 - color)
    return Image.fromarray(pixels.round().astype(np.uint8))


def _scaled(mask: np.ndarray, height: int, width: int, margin: int) -> tuple[tuple[slice, slice], np.ndarray] | None:
    """Where in the picture a mask lies, with a margin, and the share of each pixel there that it covers, float32, 0..1.

    A mask that nowhere covers half a pixel is made stronger until it does. None for an empty mask.
    """
    (top, bottom, down), (left, right, across) = (
        _reach(np.asarray(mask.any(axis=1 - axis)), size, margin) for axis, size in enumerate((height, width))
    )
    if top == bottom:
        return None
    # The part of the mask that is read, whole pixels of it, and the region of that part which the rectangle covers.
    x, y = int(left / across), int(top / down)
    part = mask[y : math.ceil(bottom / down), x : math.ceil(right / across)].astype(np.float32)
    source = left / across - x, top / down - y, right / across - x, bottom / down - y
    source = (*source[:2], min(source[2], part.shape[1]), min(source[3], part.shape[0]))
    law = Image.Resampling.BOX if down < 1 else Image.Resampling.BILINEAR
    cover = np.asarray(Image.fromarray(part).resize((right - left, bottom - top), law, box=source)).clip(0, 1)
    peak = float(cover.max())
    return (slice(top, bottom), slice(left, right)), cover if peak >= 0.5 else cover * (0.5 / peak)


def _reach(filled: np.ndarray, size: int, margin: int) -> tuple[int, int, float]:
    """First pixel of the picture's side (`size` pixels) that a mask and its margin touch, one past the last, and the scale.

    filled  (h,) bool, whether the mask has a pixel in each row (or column); without any, the first two are 0
    """
    scale = size / len(filled)
    there = np.flatnonzero(filled)
    if not len(there):
        return 0, 0, scale
    return max(0, int(there[0] * scale) - margin - 1), min(size, int((there[-1] + 1) * scale) + margin + 2), scale


def _shrunk(solid: np.ndarray, by: int) -> np.ndarray:
    """(H, W) bool without the pixels that have one outside `solid` above, below, left or right of them, `by` times.

    Beyond the border everything counts as solid: no contour runs along the photo's edge.
    """
    for _ in range(by):
        around = np.pad(solid, 1, constant_values=True)
        solid = solid & around[:-2, 1:-1] & around[2:, 1:-1] & around[1:-1, :-2] & around[1:-1, 2:]
    return solid
