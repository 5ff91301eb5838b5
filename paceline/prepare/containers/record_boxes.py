"""Boxes as record files have them, fractions of each photo's size -> `Annotations`.

Letters: N photos, M objects of one photo.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from paceline.config.errors import DataError
from paceline.data.header import open_picture
from paceline.prepare.formats.annotations import Annotations, PhotoLabels, as_annotations
from paceline.prepare.shapes.masks import run_lengths


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
    ids: Sequence[str] = (),
) -> Annotations:
    """N photos with their objects.

    source  the first file, for messages
    names   N, what lists call the photos
    ids     N photo ids, used where all are different whole numbers; otherwise photos count from 1
    Raises DataError where a mask cannot be decoded or has another size than its photo.
    """
    whole = ids and len(set(ids)) == len(ids) and all(one.isdecimal() and len(one) < 19 for one in ids)
    photos = []
    for name, photo in zip(names, found):
        corners = photo.boxes.astype(np.float64).reshape(-1, 4) * ([photo.width, photo.height] * 2)
        boxes = np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1)
        areas = boxes[:, 2] * boxes[:, 3] if photo.areas is None else photo.areas.astype(np.float64)
        labels = PhotoLabels(os.fsdecode(name), photo.height, photo.width)
        labels.categories, labels.boxes, labels.crowd = photo.classes.tolist(), boxes.tolist(), photo.crowd.tolist()
        labels.areas, labels.segmentations = areas.tolist(), _run_lengths(photo, labels.file_name)
        photos.append(labels)
    return as_annotations(
        source,
        source.parent,
        photos,
        {number: f"class {number}" for number in sorted({one for photo in photos for one in photo.categories})},
        image_ids=list(map(int, ids)) if whole else (),
    )


def _run_lengths(photo: PhotoBoxes, name: str) -> list[Any]:
    """COCO's run lengths of each mask, None where there are none."""
    if photo.masks is None:
        return [None] * len(photo.classes)
    found = []
    for data in photo.masks:
        try:
            with open_picture(data, ("PNG",)) as image:
                if image.size != (photo.width, photo.height):
                    raise DataError(
                        f"{name}: a mask of {image.size[0]} x {image.size[1]} pixels, the photo has {photo.width} x {photo.height}."
                    )
                inside = np.asarray(image.convert("L")).astype(bool)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise DataError(f"{name}: a mask that is no PNG ({error}).") from None
        found.append({"counts": run_lengths(inside), "size": [photo.height, photo.width]})
    return found
