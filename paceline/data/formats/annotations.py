"""What any source of boxes yields: one split's images and objects, as annotated; and how readers of photos one by one build it.

Letters: N images, M objects. Nothing here is sorted, cleaned or renumbered yet; data/prepare/box_source.py does that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from paceline._utils.errors import DataError
from paceline._utils.safe_read import describe_read_error, read_plain_text

# Broken files that an error names itself.
NAMED_IN_ERROR = 5

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Annotations:
    """One split as its source has it. Rows are those of `file_names`."""

    source: Path  # the file or folder that was read, for messages
    images_folder: Path
    file_names: list[str]  # N paths relative to images_folder
    image_ids: np.ndarray  # (N,) int64
    heights: np.ndarray  # (N,) int32 pixels; 0 where the source names none
    widths: np.ndarray  # (N,) int32
    object_rows: np.ndarray  # (M,) int64 row of the object's image
    boxes: np.ndarray  # (M, 4) float64 x, y, width, height in pixels, as annotated
    categories: np.ndarray  # (M,) int64 the source's ids
    crowd: np.ndarray  # (M,) uint8
    areas: np.ndarray  # (M,) float64 square pixels; NaN where the source names none: the mask's, or the box's
    annotation_ids: np.ndarray  # (M,) int64
    segmentations: list[Any]  # (M) None, or what formats/segmentations.py reads
    names: dict[int, str]  # category id -> name, in the source's order
    orphans: str = ""  # which objects are left out, as their image is not listed, in words; "" for none

    def chosen(self, rows: np.ndarray) -> Annotations:
        """Those images alone, with their objects; file names, ids and class names stay what they are.

        rows  (n,) integers 0..N-1, ascending
        """
        new_row = np.full(len(self.file_names), -1, np.int64)
        new_row[rows] = np.arange(len(rows))
        objects = np.flatnonzero((self.object_rows >= 0) & (new_row[self.object_rows] >= 0))
        of_images = {name: getattr(self, name)[rows] for name in ("image_ids", "heights", "widths")}
        of_objects = ("boxes", "categories", "crowd", "areas", "annotation_ids")
        return replace(
            self,
            file_names=[self.file_names[row] for row in rows],
            object_rows=new_row[self.object_rows[objects]],
            segmentations=[self.segmentations[i] for i in objects],
            **of_images,
            **{name: getattr(self, name)[objects] for name in of_objects},
        )


@dataclass
class ImageLabels:
    """One photo and its objects, in the order of its label file."""

    file_name: str  # relative to the folder of images
    height: int  # pixels; 0 where unknown
    width: int
    categories: list[int] = field(default_factory=list)
    boxes: list[Box] = field(default_factory=list)  # x, y, width, height in pixels
    crowd: list[int] = field(default_factory=list)
    areas: list[float] = field(default_factory=list)  # square pixels
    segmentations: list[Any] = field(default_factory=list)  # as COCO's JSON has them, None for a box alone

    def add(self, category: int, box: Box, *, crowd: bool = False, polygon: list[float] | None = None) -> None:
        """Append one object: x0 y0 x1 y1 ... of its polygon, in pixels, where it has one. Its area is the polygon's, or the box's."""
        self.categories.append(category)
        self.boxes.append(box)
        self.crowd.append(int(crowd))
        self.areas.append(box[2] * box[3] if polygon is None else polygon_area(polygon))
        self.segmentations.append(None if polygon is None else [polygon])


def make_annotations(
    source: Path,
    images_folder: Path,
    photos: Sequence[ImageLabels],
    names: dict[int, str],
    *,
    image_ids: Sequence[int] = (),
    after: Annotations | None = None,
) -> Annotations:
    """One split's arrays.

    Objects are numbered in order, from 1 or behind those of the split `after`, as these formats give them no ids; so are images
    where no `image_ids` are given.
    """

    def joined(name: str, dtype: type) -> np.ndarray:
        return np.array([one for photo in photos for one in getattr(photo, name)], dtype)

    counts = [len(photo.boxes) for photo in photos]
    images, objects = (0, 0) if after is None else (len(after.file_names), len(after.boxes))
    return Annotations(
        source=source,
        images_folder=images_folder,
        file_names=[photo.file_name for photo in photos],
        image_ids=np.array(image_ids or range(images + 1, images + len(photos) + 1), np.int64),
        heights=np.array([photo.height for photo in photos], np.int32),
        widths=np.array([photo.width for photo in photos], np.int32),
        object_rows=np.repeat(np.arange(len(photos), dtype=np.int64), counts),
        boxes=joined("boxes", np.float64).reshape(-1, 4),
        categories=joined("categories", np.int64),
        crowd=joined("crowd", np.uint8),
        areas=joined("areas", np.float64),
        annotation_ids=np.arange(objects + 1, objects + sum(counts) + 1, dtype=np.int64),
        segmentations=[one for photo in photos for one in photo.segmentations],
        names=names,
    )


def polygon_area(polygon: Sequence[float]) -> float:
    """Area inside x0 y0 x1 y1 ..., in square pixels, by the shoelace formula; 0 or more in either direction of turn."""
    x, y = np.asarray(polygon[0::2]), np.asarray(polygon[1::2])
    return float(abs(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1))) / 2)


def read_list(path: Path, most: int, remedy: str) -> list[str]:
    """The lines of a text file of at most `most` bytes, stripped, without empty ones. Raises DataError, which ends with `remedy`."""
    try:
        lines = [line.strip() for line in read_plain_text(path, most).splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({describe_read_error(error)}). {remedy}") from None
    if any("\0" in line for line in lines):
        raise DataError(f"{path}: holds NUL characters. {remedy}")
    return lines


def raise_problems(problems: Sequence[str]) -> None:
    """Raises DataError naming the first few of `problems` (each "file: reason"), where there are any."""
    if problems:
        more = len(problems) - NAMED_IN_ERROR
        others = f"\nand {more:,} more like these" if more > 0 else ""
        raise DataError(
            "\n".join(problems[:NAMED_IN_ERROR]) + f"{others}\nCorrect or remove what is named, then prepare again."
        )
