"""A training sample as the mosaic of `paceline preview` shows it: `Workload.picture`.

Each takes (pixels (H, W, 3) uint8, label, class names) and gives a picture with the caption below it.
Letters: n objects   H, W pixels of the network's input
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat

import numpy as np
from PIL import Image

from paceline.batch import InstanceObjects, Objects
from paceline.pages.marks import Mark, largest_first, marks_picture
from paceline.pages.masks import placed_pixels

# Pixels of a picture: photos at most this large, objects and their names on this much.
LARGEST, OBJECTS_SIDE = 224, 320


def photo_sample(pixels: np.ndarray, label: int, classes: Sequence[str]) -> tuple[Image.Image, str]:
    """A photo with its class below."""
    picture = Image.fromarray(pixels)
    picture.thumbnail((LARGEST, LARGEST), Image.Resampling.LANCZOS)
    return picture, classes[label]


def boxes_sample(pixels: np.ndarray, label: Objects, classes: Sequence[str]) -> tuple[Image.Image, str]:
    """Boxes in fractions of the pixels, and their number below."""
    height, width = pixels.shape[:2]
    return _objects(pixels, label.boxes * np.array([width, height, width, height]), label.classes, classes)


def instances_sample(pixels: np.ndarray, label: InstanceObjects, classes: Sequence[str]) -> tuple[Image.Image, str]:
    """Boxes and masks in pixels, and the number of objects below; a canvas has a ring of one pixel (paceline.batch)."""
    height, width = pixels.shape[:2]
    masks = [
        placed_pixels(canvas[1:-1, 1:-1], frame, height, width)
        for canvas, frame in zip(label.canvases, label.frames.tolist())
    ]
    return _objects(pixels, label.boxes, label.classes, classes, masks)


def _objects(
    pixels: np.ndarray,
    edges: np.ndarray,
    labels: np.ndarray,
    classes: Sequence[str],
    masks: Iterable[np.ndarray | None] = repeat(None),
) -> tuple[Image.Image, str]:
    """edges: (n, 4) left, top, right, bottom in pixels; masks: (H, W) each."""
    marks = [
        Mark((left, top, right - left, bottom - top), label, classes[int(label) - 1], mask=mask)
        for (left, top, right, bottom), label, mask in zip(edges.tolist(), labels.tolist(), masks)
    ]
    picture = marks_picture(pixels, largest_first(marks), width=OBJECTS_SIDE, height=OBJECTS_SIDE)
    return picture, f"{len(marks)} object{'' if len(marks) == 1 else 's'}"
