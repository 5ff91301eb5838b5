"""From photos with a list of objects each to the arrays of `Annotations`: what the VOC and the YOLO reader share.

Letters: N images, M objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from paceline.config.errors import DataError
from paceline.prepare.annotations import Annotations

# An error names so many broken files itself.
NAMED_IN_ERROR = 5

Box = tuple[float, float, float, float]


@dataclass
class PhotoLabels:
    """One photo and its objects, in the order of its label file.

    file_name      relative to the folder of images
    height, width  pixels; 0 where nobody says
    boxes          x, y, width, height in pixels
    polygons       x0 y0 x1 y1 ... in pixels, None for an object that has only a box
    """

    file_name: str
    height: int
    width: int
    categories: list[int] = field(default_factory=list)
    boxes: list[Box] = field(default_factory=list)
    crowd: list[int] = field(default_factory=list)
    polygons: list[list[float] | None] = field(default_factory=list)

    def add(self, category: int, box: Box, *, crowd: bool = False, polygon: list[float] | None = None) -> None:
        """Append one object."""
        self.categories.append(category)
        self.boxes.append(box)
        self.crowd.append(int(crowd))
        self.polygons.append(polygon)


def as_annotations(
    source: Path,
    images_folder: Path,
    photos: Sequence[PhotoLabels],
    names: dict[int, str],
    *,
    first_image_id: int = 1,
    first_annotation_id: int = 1,
) -> Annotations:
    """One split's arrays. Images and objects are numbered in order, as these formats give them no ids.

    The area of an object is its polygon's, or its box's.
    """
    objects = sum(len(photo.boxes) for photo in photos)
    boxes = np.array([box for photo in photos for box in photo.boxes], np.float64).reshape(objects, 4)
    polygons = [polygon for photo in photos for polygon in photo.polygons]
    areas = boxes[:, 2] * boxes[:, 3]
    for row, polygon in enumerate(polygons):
        if polygon is not None:
            areas[row] = polygon_area(polygon)
    return Annotations(
        source=source,
        images_folder=images_folder,
        file_names=[photo.file_name for photo in photos],
        image_ids=np.arange(first_image_id, first_image_id + len(photos), dtype=np.int64),
        heights=np.array([photo.height for photo in photos], np.int32),
        widths=np.array([photo.width for photo in photos], np.int32),
        object_rows=np.repeat(np.arange(len(photos), dtype=np.int64), [len(photo.boxes) for photo in photos]),
        boxes=boxes,
        categories=np.array([category for photo in photos for category in photo.categories], np.int64),
        crowd=np.array([crowd for photo in photos for crowd in photo.crowd], np.uint8),
        areas=areas,
        annotation_ids=np.arange(first_annotation_id, first_annotation_id + objects, dtype=np.int64),
        segmentations=[None if polygon is None else [polygon] for polygon in polygons],
        names=names,
    )


def polygon_area(polygon: Sequence[float]) -> float:
    """Area inside x0 y0 x1 y1 ..., in square pixels, by the shoelace formula; 0 or more in either direction of turn."""
    x, y = np.asarray(polygon[0::2]), np.asarray(polygon[1::2])
    return float(abs(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1))) / 2)


def refuse_broken(problems: Sequence[str]) -> None:
    """Raises DataError naming the first few of `problems` (each "file: reason"), where there are any."""
    if problems:
        more = len(problems) - NAMED_IN_ERROR
        others = f"\nand {more:,} more like these" if more > 0 else ""
        raise DataError(
            "\n".join(problems[:NAMED_IN_ERROR]) + f"{others}\nCorrect or remove what is named, then prepare again."
        )
