"""Small data sets whose names and photos are as odd as people's, prepared, for the tests of pack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from paceline.data.index.box_split import open_boxes
from paceline.data.index.index import open_split
from paceline.data.index.manifest import Manifest
from paceline.data.prepare.class_source import prepare_folder


def photo(path: Path, size: tuple[int, int] = (40, 30), mode: str = "RGB", seed: int = 0, **options: Any) -> None:
    """A photo of soft noise, (width, height)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    small = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
    Image.fromarray(small).resize(size, Image.Resampling.BICUBIC).convert(mode).save(path, **options)


def class_set(root: Path, place: Path) -> Manifest:
    """cat and `sea lion`, 5 photos each in train and 2 in val: names with dots, a PNG, a gray one, a CMYK one, a turned one."""
    turned = Image.Exif()
    turned[0x0112] = 6
    for number, label in enumerate(("cat", "sea lion")):
        photo(root / "train" / label / "n1_10.JPEG", seed=number, format="JPEG")
        photo(root / "train" / label / "a.b.jpg", (25, 50), seed=10 + number)
        photo(root / "train" / label / "a_b.jpg", (64, 20), "L", seed=20 + number)
        photo(root / "train" / label / "c.png", (33, 33), seed=30 + number)
        photo(root / "train" / label / "d.jpg", (48, 32), "CMYK", seed=40 + number)
        photo(root / "val" / label / "v1.jpg", (60, 40), seed=50 + number, exif=turned.tobytes())
        photo(root / "val" / label / "v2.jpg", seed=60 + number)
    (root / "classes.json").write_text('{"cat": "tom cat", "sea lion": "Zalophus"}')
    return prepare_folder(root, out=place)


def photos_and_labels(manifest: Manifest, split: str) -> list[tuple[bytes, int]]:
    """All records of a split, in order."""
    index = open_split(manifest, split)
    return [(index.read(i), int(index.labels[i])) for i in range(len(index))]


def box_arrays(manifest: Manifest, split: str) -> dict[str, np.ndarray]:
    """Every array of a split's objects and masks, with the ids and the sizes of its images."""
    found = open_boxes(manifest, split, manifest.splits[split].boxes.exif or "ignore")  # type: ignore[union-attr]
    names = (
        "image_ids heights widths object_starts boxes classes crowd areas annotation_ids usable "
        "polygon_points polygon_starts object_polygons rle_counts object_rles"
    )
    return {name: np.asarray(getattr(found, name)) for name in names.split()}
