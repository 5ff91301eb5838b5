"""Exports of labeling tools that are not read, recognized by their content, and which export to choose in their place.

Used only where no layout of ours was found: some small files of a folder are read, each to a bound.
Sources: the tools' own descriptions of their formats (CVAT "CVAT for images 1.1", Label Studio "Export annotations", LabelMe's
JSON, VGG Image Annotator 2, Apple's Create ML, Darknet's .data files, TensorFlow's and Roboflow's CSV of boxes).
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paceline._utils.names import list_matching
from paceline._utils.safe_read import open_plain_sized
from paceline._utils.text import abbreviate

# Of each file its beginning is enough; JSON is read whole up to MAX_JSON_BYTES: a task list of some thousand photos has less.
BEGINNING = 1 << 14
MAX_JSON_BYTES = 64 << 20
MAX_ENTRIES, MAX_FOLDERS = 20_000, 20  # that are looked at
MAX_FILES = 8  # of each kind that are opened
KINDS = (".data", ".names", "classes.txt", ".xml", ".json", ".csv")
COCO_LISTS = ("images", "annotations", "categories")
# Columns of TensorFlow's and Roboflow's tables, of others, and of VGG Image Annotator's.
CSV_CORNERS = ({"xmin", "ymin", "xmax", "ymax"}, {"x1", "y1", "x2", "y2"}, {"region_shape_attributes"})

COCO_FLAGS = "paceline prepare coco --images-dir IMAGES --annotations EXPORT.json --val-fraction 0.2 --output-dir SET"
LABEL_STUDIO = f"In Label Studio, choose Export > COCO, and pass the files:  {COCO_FLAGS}"


def suggest_export(root: Path, *, coco: bool = True) -> str:
    """'FILE is TOOL's, which is not read. What to export in its place', for a folder that no reader knows; "" where none is known.

    coco  name COCO JSONs too, with the command that takes them
    """
    for path in _candidates(root):
        known = _known(path, coco)
        if known:
            return f"{path} is {known[0]}. {known[1]}"
    return ""


CVAT = (
    "CVAT XML, which is not supported",
    "In CVAT, choose Export task dataset > COCO 1.0 (boxes and polygons) or Pascal VOC 1.1, and unpack the export.",
)


def _candidates(root: Path) -> Iterator[Path]:
    """Files of KINDS in `root` and the first folders in it, the most conclusive kinds first."""
    files: dict[str, list[Path]] = {kind: [] for kind in KINDS}
    folders = [root]
    for folder in folders:
        for entry in list_matching(folder)[:MAX_ENTRIES]:
            kind = entry.name if entry.name in KINDS else entry.suffix.lower()
            if kind in KINDS:
                files[kind].append(entry)
            elif folder is root and len(folders) < MAX_FOLDERS and not entry.suffix and entry.is_dir():
                folders.append(entry)
    for of_kind in files.values():
        yield from of_kind[:MAX_FILES]


def _known(path: Path, coco: bool) -> tuple[str, str] | None:
    """What a file is, and what to do; None for an unknown one."""
    suffix = path.suffix.lower()
    text = _text(path, MAX_JSON_BYTES if suffix == ".json" else BEGINNING)
    if not text:
        return None
    if suffix == ".xml":
        return CVAT if re.match(r"\s*(<\?xml[^>]*>\s*)?(<!--.*?-->\s*)?<annotations\b", text, re.DOTALL) else None
    if suffix == ".json":
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if isinstance(content, dict) and all(isinstance(content.get(name), list) for name in COCO_LISTS):
            what = "a COCO JSON with an unusual file name"
            return (what, _named_command(path, content["images"])) if coco else None
        return identify_json_tool(content)
    if suffix == ".csv":
        return _known_csv(text)
    return _known_yolo(path, text)


def identify_json_tool(content: Any) -> tuple[str, str] | None:
    """Whose JSON this is, and what to do; None where it is none of the known ones."""
    first = content[0] if isinstance(content, list) and content else None
    if isinstance(content, dict):
        if "shapes" in content and ("imagePath" in content or "imageData" in content):
            advice = "Convert all files to one COCO JSON (pip install labelme2coco, labelme2coco FOLDER), and pass it:  "
            return "LabelMe JSON, which is not supported", advice + COCO_FLAGS
        # An annotations-only export: {KEY: {"filename": ..., "regions": ...}}.
        value = next(iter(content.values()), None)
        is_via = isinstance(value, dict) and {"filename", "regions"} <= value.keys()
        if "_via_img_metadata" in content or is_via:
            advice = f"In VIA, choose Annotation > Export Annotations (COCO format), then run:  {COCO_FLAGS}"
            return "VGG Image Annotator JSON, which is not supported", advice
    if isinstance(first, dict):
        if "annotation_id" in first or ("data" in first and ("annotations" in first or "completions" in first)):
            return "Label Studio JSON, which is not supported", LABEL_STUDIO
        if "image" in first and isinstance(first.get("annotations"), list):
            return ("Create ML JSON, which is not supported", f"Export COCO from its tool, then run:  {COCO_FLAGS}")
    return None


def _named_command(path: Path, images: list[Any]) -> str:
    """How to name a COCO JSON and the folder that its first photo lies in."""
    first = images[0].get("file_name") if images and isinstance(images[0], dict) else None
    above = path.parent
    near = [above, above / "images", above.parent, above.parent / "images"]
    near = [folder for folder in near if isinstance(first, str) and "\0" not in first and (folder / first).is_file()]
    photos, file = shlex.quote(str(near[0])) if near else "PHOTOS", shlex.quote(str(path))
    return f"Pass it with its images:  paceline prepare coco --images-dir {photos} --annotations {file} --val-fraction 0.2"


def _known_csv(text: str) -> tuple[str, str] | None:
    try:
        header = next(csv.reader(io.StringIO(text)), [])
    except csv.Error:
        return None
    names = {name.strip().lower() for name in header}
    if not any(corners <= names for corners in CSV_CORNERS):
        return None
    advice = f"Export COCO from the tool that wrote the file (Roboflow: Download > COCO), then run:  {COCO_FLAGS}"
    return "a CSV table of boxes, which is not supported", advice


def _known_yolo(path: Path, text: str) -> tuple[str, str] | None:
    """Darknet's obj.data or obj.names, or classes.txt of Label Studio and labelImg: YOLO labels without a data.yaml."""
    if path.suffix == ".data":
        if not re.search(r"^\s*names\s*=", text, re.MULTILINE):
            return None
        advice = "In CVAT, choose Export task dataset > COCO 1.0. In other tools, choose COCO or Ultralytics YOLO."
        return "Darknet's list of files, which is not supported", advice
    names = [line.strip() for line in text.splitlines() if line.strip()]
    if not names:
        return None
    photos = "images" if (path.parent / "images").is_dir() else "."
    command = f"paceline prepare yolo {shlex.quote(str(path.parent))} --val-fraction 0.2"
    return (
        "a class list of YOLO labels, but data.yaml, which has the path of the images, is missing",
        (
            f"Write a data.yaml with these two lines next to it, then run  {command}\n  train: {photos}\n  names: "
            f"{json.dumps([abbreviate(name, 100) for name in names])}"
        ),
    )


def _text(path: Path, most: int) -> str:
    """The beginning of a plain file, or for a larger JSON nothing; "" where it is not text, or cannot be opened."""
    try:
        descriptor, size = open_plain_sized(path)
        with os.fdopen(descriptor, "rb") as file:
            if size > most and path.suffix.lower() == ".json":
                return ""
            return file.read(most).decode("utf-8-sig", "ignore")
    except OSError:
        return ""
