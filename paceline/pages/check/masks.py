"""An object's mask as a tile of the check page shows it, from what the data set has of it: polygons or run lengths.

Letters: h, w pixels of the photo   H, W pixels of the tile
"""

from __future__ import annotations

from itertools import pairwise
from typing import TypeAlias

import numpy as np
from PIL import Image, ImageDraw

from paceline.pages.masks import placed_pixels
from paceline.store.index import Index

Region: TypeAlias = "tuple[float, float, float, float]"  # left, top, right, bottom in pixels of the photo


def region_mask(index: Index, image: int, row: int, region: Region, size: tuple[int, int]) -> np.ndarray | None:
    """The part of the mask of object `row` that lies in a region of photo number `image`, (H, W) bool; None without a mask.

    size  W, H of the tile that shows the region
    """
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
    frame = -region[0] * scale[0], -region[1] * scale[1], *scale
    return placed_pixels(whole, frame, size[1], size[0])
