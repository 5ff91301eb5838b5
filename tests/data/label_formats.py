"""Writes COCO annotations of the small real data sets as Pascal VOC and YOLO files, as other tools do."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from paceline.data.formats.annotations import Annotations


@dataclass(frozen=True)
class Truth:
    """One image as its COCO file has it: file, size, and objects (name, box, crowd, polygons)."""

    path: Path
    height: int
    width: int
    objects: list[tuple[str, list[float], int, Any]]


def read_coco(root: Path, split: str = "train", most: int = 12) -> list[Truth]:
    """The first `most` images of a shared data set, by file name."""
    record = json.loads((root / "annotations" / f"instances_{split}2017.json").read_text())
    names = {entry["id"]: entry["name"] for entry in record["categories"]}
    objects: dict[int, list] = {}
    for entry in record["annotations"]:
        row = (names[entry["category_id"]], entry["bbox"], entry["iscrowd"], entry["segmentation"])
        objects.setdefault(entry["image_id"], []).append(row)
    images = sorted(record["images"], key=lambda entry: entry["file_name"])[:most]
    return [
        Truth(root / f"{split}2017" / i["file_name"], i["height"], i["width"], objects.get(i["id"], [])) for i in images
    ]


def voc_xml(file_name: str, size: tuple[int, int], objects: Sequence[tuple[str, Sequence[float], int]]) -> str:
    """size  height, width;  objects: name, (xmin, ymin, xmax, ymax) as they shall stand, difficult."""
    rows = "".join(
        f"<object><name>{escape(name)}</name><pose>Left</pose><truncated>0</truncated><difficult>{hard}</difficult>"
        f"<bndbox><xmin>{e[0]}</xmin><ymin>{e[1]}</ymin><xmax>{e[2]}</xmax><ymax>{e[3]}</ymax></bndbox>"
        "<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part></object>\n"
        for name, e, hard in objects
    )
    return (
        f"<annotation>\n<folder>VOC2012</folder><filename>{escape(file_name)}</filename>\n"
        f"<size><width>{size[1]}</width><height>{size[0]}</height><depth>3</depth></size>\n{rows}</annotation>\n"
    )


def put(path: Path, text: str = "") -> Path:
    """Write a text file, making its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def link(target: Path, at: Path) -> None:
    """A link to a shared photo, making its folders."""
    at.parent.mkdir(parents=True, exist_ok=True)
    os.symlink(target, at)


def objects_of(annotations: Annotations, row: int) -> list[tuple[str, list[float], int]]:
    """Name, box and crowd flag of each object of an image, in order."""
    return [
        (annotations.names[int(annotations.categories[i])], annotations.boxes[i].tolist(), int(annotations.crowd[i]))
        for i in range(len(annotations.boxes))
        if annotations.object_rows[i] == row
    ]
