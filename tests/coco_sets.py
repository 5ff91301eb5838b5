"""Small COCO-format sets of noise pictures, for the tests of boxes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

WIDTH, HEIGHT = 40, 30
Document = dict[str, Any]


def box(image: int, category: int, *bbox: float, **more: Any) -> Document:
    """One annotation; its id is given by `document`."""
    return {"image_id": image, "category_id": category, "bbox": list(bbox), "area": 1.0, "iscrowd": 0, **more}


def document(images: list[int], objects: list[Document], names: dict[int, str] | None = None) -> Document:
    """A COCO JSON of images with these ids, all of one size."""
    return {
        "images": [{"id": i, "file_name": f"{i}.jpg", "width": WIDTH, "height": HEIGHT} for i in images],
        "annotations": [{"id": 100 + place, **entry} for place, entry in enumerate(objects)],
        "categories": [{"id": i, "name": name} for i, name in (names or {7: "cat", 3: "dog"}).items()],
    }


def train_document() -> Document:
    """3 images, the last without objects; 4 objects, those of image 1 not in one piece."""
    return document(
        [1, 2, 5], [box(1, 7, 1, 2, 10, 12), box(2, 3, 0, 0, 5, 5), box(1, 3, 5.5, 6, 7, 8), box(2, 7, 1, 1, 3, 3)]
    )


def val_document() -> Document:
    return document([1, 2], [box(1, 3, 1, 1, 9, 9), box(2, 7, 2, 2, 9, 9)])


def make_set(root: Path) -> Path:
    """The official layout: train2017, val2017, annotations."""
    for split, record in (("train", train_document()), ("val", val_document())):
        write_json(root, split, record)
        for image in record["images"]:
            path = root / f"{split}2017" / image["file_name"]
            path.parent.mkdir(exist_ok=True)
            Image.effect_noise((WIDTH, HEIGHT), 60).convert("RGB").save(path)
    return root


def json_file(root: Path, split: str) -> Path:
    return root / "annotations" / f"instances_{split}2017.json"


def write_json(root: Path, split: str, record: Any) -> None:
    json_file(root, split).parent.mkdir(parents=True, exist_ok=True)
    json_file(root, split).write_text(json.dumps(record))


def edit(root: Path, change: Callable[[Document], Any], split: str = "train") -> Path:
    """Change one split's JSON."""
    record = json.loads(json_file(root, split).read_text())
    change(record)
    write_json(root, split, record)
    return root
