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
from paceline.config.printable import one_line, short
from paceline.datasets.formats.annotations import Annotations, PhotoLabels, as_annotations
from paceline.datasets.formats.class_names import tidy_class_name
from paceline.datasets.formats.coco import coco_annotations
from paceline.datasets.shapes.masks import run_lengths
from paceline.store.containers.webdataset import OBJECTS
from paceline.store.header import open_picture


class PhotoBoxes(NamedTuple):
    """The objects of one photo."""

    height: int  # pixels
    width: int
    boxes: np.ndarray  # (M, 4) xyxy, fractions of width and height
    classes: np.ndarray  # (M,) int64, the data's own ids
    crowd: np.ndarray  # (M,) bool
    areas: np.ndarray | None = None  # (M,) square pixels; None: the boxes' own
    masks: Sequence[bytes] | None = None  # M PNGs of the photo's size; None: no masks
    names: Sequence[bytes] = ()  # M names of the classes; empty: they have numbers alone


def annotations_of(
    source: Path, names: Sequence[bytes], found: Sequence[PhotoBoxes], ids: Sequence[str] = ()
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
        source, source.parent, photos, _class_names(source, found), image_ids=list(map(int, ids)) if whole else ()
    )


def _class_names(source: Path, found: Sequence[PhotoBoxes]) -> dict[int, str]:
    """Number -> name, in order. Raises DataError where the photos call one number differently, or a name is unfit."""
    called: dict[int, bytes] = {}
    for photo in found:
        for number, name in zip(photo.classes.tolist(), photo.names):
            if name and called.setdefault(number, name) != name:
                raise DataError(
                    f"{source}: class {number} is called {one_line(os.fsdecode(called[number]))} and {one_line(os.fsdecode(name))}. "
                    "These files were written with different lists of classes."
                )
    return {
        number: tidy_class_name(os.fsdecode(called[number]), lambda why: DataError(f"{source}: a class {why}."))
        if number in called
        else unnamed(number)
        for number in sorted({number for photo in found for number in photo.classes.tolist()})
    }


def unnamed(number: int) -> str:
    """What a class is called that has a number alone."""
    return f"class {number}"


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


# Objects in the JSON fields of WebDataset's samples -> `Annotations`, by way of COCO's JSON.
#
# A sample's JSON has "annotations", each with category_id (and its name as "category"), bbox and what else COCO's have; and, where
# known, the image_id, height and width. `paceline pack` writes them so. Photos that lack an id are numbered from 1.


def sample_annotations(
    source: Path, names: Sequence[bytes], labels: Sequence[dict[str, Any]]
) -> tuple[Annotations, list[str]]:
    """-> annotations of N photos in their order, and notes on what they leave out.

    source  the first file, for messages
    names   N, what lists call the photos
    labels  N JSON objects with a list of "annotations"
    Raises DataError where one contradicts itself, or two call one category differently.
    """
    numbered = all(isinstance(label.get("image_id"), int) for label in labels)
    images, objects = [], []
    called: dict[int, str] = {}
    for place, (name, label) in enumerate(zip(names, labels)):
        number = label["image_id"] if numbered else place + 1
        size = {key: label.get(key) for key in ("height", "width")}
        images.append({"id": number, "file_name": os.fsdecode(name), **size})
        for entry in label[OBJECTS]:
            if not isinstance(entry, dict):
                raise DataError(f"{source}: {os.fsdecode(name)} has {short(entry)!r} among its objects, which is none.")
            objects.append({**entry, "image_id": number})
            _remember(called, entry, f"{source}: {os.fsdecode(name)}")
    categories = [{"id": number, "name": called[number]} for number in sorted(called)]
    # Photos without objects alone have no category either; their classes are those of the other split, or of --classes.
    categories = categories or [{"id": 0, "name": "class 0"}]
    record = {"images": images, "annotations": objects, "categories": categories}
    return coco_annotations(source, record, source.parent)


def _remember(called: dict[int, str], entry: dict[str, Any], where: str) -> None:
    number, name = entry.get("category_id"), entry.get("category")
    if not isinstance(number, int):
        raise DataError(f"{where} has an object without a whole number as category_id.")
    name = name if isinstance(name, str) else called.get(number, f"class {number}")
    if called.setdefault(number, name) != name:
        raise DataError(
            f"{where} calls category {number} {short(name)!r}, others {short(called[number])!r}. Pack it again."
        )
