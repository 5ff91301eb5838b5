"""Objects in the JSON fields of WebDataset's samples -> `Annotations`, by way of COCO's JSON.

A sample's JSON has "annotations", each with category_id (and its name as "category"), bbox and what else COCO's have; and, where
known, the image_id, height and width. `paceline pack` writes them so. Photos that lack an id are numbered from 1.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.config.errors import DataError
from paceline.config.printable import short
from paceline.datasets.formats.annotations import Annotations
from paceline.datasets.formats.coco import coco_annotations
from paceline.store.containers.webdataset import OBJECTS


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
