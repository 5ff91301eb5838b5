"""Masks on a picture of the check page: the part of each object's mask that the picture shows, filled and outlined.

Letters: h, w pixels of the photo   H, W pixels of the picture
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from PIL import Image, ImageDraw

from paceline.data.index import Index

FILL = 0.4  # share of the colour in a filled pixel
# Objects of one class differ in hue, in degrees.
TURNS = (0, 24, -24, 48, -48)

Region = tuple[float, float, float, float]  # left, top, right, bottom in pixels of the photo


def paint_masks(
    picture: Image.Image, index: Index, image: int, region: Region, objects: Sequence[int], hues: Sequence[float]
) -> Image.Image:
    """A copy of the picture with the masks of some objects of photo number `image`, in order, later ones on top.

    picture  RGB, shows `region` of the photo
    hues     degrees, of each object's class
    """
    pixels = np.array(picture, np.float32)
    seen: dict[float, int] = {}
    for row, hue in zip(objects, hues):
        mask = _mask(index, image, row, region, picture.size)
        if mask is None:
            continue
        number = seen[hue] = seen.get(hue, -1) + 1
        red, green, blue = colorsys.hls_to_rgb((hue + TURNS[number % len(TURNS)]) % 360 / 360, 0.55, 0.9)
        colour = np.array([red, green, blue], np.float32) * 255
        inner = mask.copy()
        inner[1:-1, 1:-1] &= mask[:-2, 1:-1] & mask[2:, 1:-1] & mask[1:-1, :-2] & mask[1:-1, 2:]
        pixels[inner] += FILL * (colour - pixels[inner])
        pixels[mask & ~inner] = colour
    return Image.fromarray(pixels.round().astype(np.uint8))


def _mask(index: Index, image: int, row: int, region: Region, size: tuple[int, int]) -> np.ndarray | None:
    """(H, W) bool; None where the object has no mask."""
    extra = index.extra
    if "object_polygons" not in extra:
        return None
    scale = size[0] / (region[2] - region[0]), size[1] / (region[3] - region[1])
    first, last = extra["object_polygons"][row : row + 2].tolist()
    if last > first:
        canvas = Image.new("1", size)
        starts = extra["polygon_starts"][first : last + 1]
        for start, stop in pairwise(starts.tolist()):
            points = np.asarray(extra["polygon_points"][start:stop]).reshape(-1, 2)
            # Far outside the picture is outside: coordinates from other people's files may be of any size.
            placed = np.clip((points - region[:2]) * scale, -1e6, 1e6)
            ImageDraw.Draw(canvas).polygon([(x, y) for x, y in placed.tolist()], fill=1)
        return np.array(canvas)
    first, last = extra["object_rles"][row : row + 2].tolist()
    if last == first:
        return None
    height, width = int(index.heights[image]), int(index.widths[image])
    runs = np.asarray(extra["rle_counts"][first:last])
    whole = np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(width, height).T
    # Of each pixel of the picture, the photo's pixel below its middle.
    x = np.floor(region[0] + (np.arange(size[0]) + 0.5) / scale[0]).astype(np.int64)
    y = np.floor(region[1] + (np.arange(size[1]) + 0.5) / scale[1]).astype(np.int64)
    inside = ((y >= 0) & (y < height))[:, None] & ((x >= 0) & (x < width))
    return inside & whole[np.clip(y, 0, height - 1)[:, None], np.clip(x, 0, width - 1)]
