"""GluonCV's resizing of photos and pasting of masks, on drawn pictures.

Letters: n masks   S side of a mask   H, W pixels of the photo
"""

from __future__ import annotations

import mxnet as mx
import numpy as np
from gluoncv.data.transforms.image import resize_short_within
from gluoncv.data.transforms.mask import fill
from gluoncv_geometry import drawn_boxes

SHORT, LONG = 800, 1333


def resizing(random: np.random.RandomState) -> dict[str, np.ndarray]:
    """-> sizes of photos and what 800 / 1333 makes of them, and the pixels of two pictures, one made smaller, one larger."""
    sizes = np.concatenate(
        (random.randint(60, 900, size=(60, 2)), [[480, 640], [427, 640], [640, 427], [500, 333], [375, 500]])
    )
    resized = [
        resize_short_within(mx.nd.zeros((h, w, 1), dtype="uint8"), SHORT, LONG, interp=1).shape[:2]
        for h, w in sizes.tolist()
    ]
    arrays = {"sizes": sizes, "resized": np.array(resized)}
    for name, (h, w), short in (("smaller", (75, 100), 40), ("larger", (36, 50), 61)):
        photo = random.randint(0, 256, size=(h // 3 + 1, w // 3 + 1, 3)).repeat(3, 0).repeat(3, 1)[:h, :w].astype(np.uint8)
        arrays[f"{name}_photo"] = photo
        arrays[name] = resize_short_within(mx.nd.array(photo, dtype="uint8"), short, LONG, interp=1).asnumpy()
    return arrays


def pasting(random: np.random.RandomState) -> dict[str, np.ndarray]:
    """-> masks (n, S, S), their boxes in a photo, and the bitmaps that `fill` makes of them: fast, as validate() calls it."""
    height, width, count = 120, 160, 14
    boxes = drawn_boxes(random, count, height, width, 5)
    boxes[0] = 10, 10, 18, 22  # smaller than the mask: Pillow's filter widens
    boxes[1] = 0, 0, width, height
    y, x = np.mgrid[:28, :28] / 27.0 - 0.5
    masks = np.empty((count, 28, 28), np.float32)
    for mask in masks:
        a, b, angle = random.uniform(0.25, 0.6, size=3)
        u, v = x * np.cos(6 * angle) + y * np.sin(6 * angle), y * np.cos(6 * angle) - x * np.sin(6 * angle)
        # Eighths of 1 / 255: the file is small.
        mask[:] = np.round(2040 / (1 + np.exp(12 * ((u / a) ** 2 + (v / b) ** 2 - 1)))) / 2040
    return {
        "size": np.array([height, width]),
        "boxes": boxes,
        "masks": masks,
        "bitmaps": np.packbits(fill(masks, boxes, (width, height))),
    }
