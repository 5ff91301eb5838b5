"""A training sample as the mosaic of `paceline preview` shows it: `Workload.picture`.

Each takes (pixels (H, W, 3) uint8, label, class names) and gives a picture with the caption below it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

from paceline.batch.detection import Objects
from paceline.batch.instances import InstanceObjects
from paceline.report.draw_boxes import instances_picture, objects_picture

# Pixels of a picture: photos at most this large, objects and their names on this much.
LARGEST, OBJECTS_SIDE = 224, 320


def photo_sample(pixels: np.ndarray, label: int, classes: Sequence[str]) -> tuple[Image.Image, str]:
    """A photo with its class below."""
    picture = Image.fromarray(pixels)
    picture.thumbnail((LARGEST, LARGEST), Image.Resampling.LANCZOS)
    return picture, classes[label]


def boxes_sample(pixels: np.ndarray, label: Objects, classes: Sequence[str]) -> tuple[Image.Image, str]:
    """Boxes in fractions of the pixels, and their number below."""
    return objects_picture(pixels, label, classes, side=OBJECTS_SIDE), _number(label.classes)


def instances_sample(pixels: np.ndarray, label: InstanceObjects, classes: Sequence[str]) -> tuple[Image.Image, str]:
    """Boxes and masks in pixels, and the number of objects below."""
    return instances_picture(pixels, label, classes, side=OBJECTS_SIDE), _number(label.classes)


def _number(objects: np.ndarray) -> str:
    return f"{len(objects)} object{'' if len(objects) == 1 else 's'}"
