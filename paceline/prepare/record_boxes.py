"""Boxes as record files have them, fractions of each photo's size -> `Annotations`.

Letters: N photos, M objects of one photo.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from paceline.config.errors import DataError
from paceline.prepare.annotations import Annotations


class PhotoBoxes(NamedTuple):
    """The objects of one photo."""

    height: int  # pixels
    width: int
    boxes: np.ndarray  # (M, 4) xyxy, fractions of width and height
    classes: np.ndarray  # (M,) int64, the data's own ids
    crowd: np.ndarray  # (M,) bool
    areas: np.ndarray | None = None  # (M,) square pixels; None: the boxes' own
    masks: Sequence[bytes] | None = None  # M PNGs of the photo's size; None: no masks


def annotations_of(
    source: Path,
    names: Sequence[bytes],
    found: Sequence[PhotoBoxes],
    called: Mapping[int, str],
    ids: Sequence[str] = (),
) -> Annotations:
    """N photos with their objects.

    source  the first file, for messages
    names   N, what lists call the photos
    called  class id -> name, where names are known; "class ID" for the others
    ids     N photo ids, used where all are different whole numbers; otherwise photos count from 1
    Raises DataError where a mask cannot be decoded or has another size than its photo.
    """
    counts = [len(photo.classes) for photo in found]
    whole = ids and len(set(ids)) == len(ids) and all(one.isdecimal() and len(one) < 19 for one in ids)
    boxes = [_pixels(photo) for photo in found]
    areas = [
        box[:, 2] * box[:, 3] if photo.areas is None else photo.areas.astype(np.float64)
        for photo, box in zip(found, boxes)
    ]
    categories = _joined([photo.classes for photo in found], np.int64)
    segmentations: list[Any] = []
    for name, photo in zip(names, found):
        segmentations += _run_lengths(photo, os.fsdecode(name))
    return Annotations(
        source=source,
        images_folder=source.parent,
        file_names=[os.fsdecode(name) for name in names],
        image_ids=np.array([int(one) for one in ids] if whole else np.arange(1, len(found) + 1), np.int64),
        heights=np.array([photo.height for photo in found], np.int32),
        widths=np.array([photo.width for photo in found], np.int32),
        object_rows=np.repeat(np.arange(len(found), dtype=np.int64), counts),
        boxes=np.concatenate(boxes) if boxes else np.zeros((0, 4)),
        categories=categories,
        crowd=_joined([photo.crowd for photo in found], np.uint8),
        areas=_joined(areas, np.float64),
        annotation_ids=np.arange(1, len(categories) + 1, dtype=np.int64),
        segmentations=segmentations,
        names={number: called.get(number, f"class {number}") for number in sorted(set(categories.tolist()))},
    )


def _pixels(photo: PhotoBoxes) -> np.ndarray:
    """(M, 4) float64 x, y, width, height in pixels."""
    corners = photo.boxes.astype(np.float64).reshape(-1, 4) * (photo.width, photo.height, photo.width, photo.height)
    return np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1)


def _run_lengths(photo: PhotoBoxes, name: str) -> list[Any]:
    """COCO's run lengths of each mask, None where there are none."""
    if photo.masks is None:
        return [None] * len(photo.classes)
    found = []
    for data in photo.masks:
        try:
            with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
                if image.size != (photo.width, photo.height):
                    raise DataError(
                        f"{name}: a mask of {image.size[0]} x {image.size[1]} pixels, the photo has {photo.width} x {photo.height}."
                    )
                inside = np.asarray(image.convert("L")).astype(bool).ravel(order="F")
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise DataError(f"{name}: a mask that is no PNG ({error}).") from None
        edges = np.flatnonzero(np.diff(inside, prepend=False)).tolist()
        # Runs begin with those outside, which may be none.
        counts = np.diff([0, *edges, inside.size]).tolist()
        found.append({"counts": counts, "size": [photo.height, photo.width]})
    return found


def _joined(parts: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate(parts).astype(dtype) if parts else np.zeros(0, dtype)
