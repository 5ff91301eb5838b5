"""Where a data set of boxes comes from: which layout a folder has, and the reader of each.

A layout is a row of READERS: its name, how a folder is recognized, and how it is read.
"""

from __future__ import annotations

import glob
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from paceline._utils.errors import DataError
from paceline._utils.names import list_matching
from paceline._utils.text import join_names
from paceline.data.formats.annotations import Annotations
from paceline.data.formats.coco import read_coco
from paceline.data.formats.coco_files import find_coco, find_coco_split
from paceline.data.formats.label_tools import suggest_export
from paceline.data.formats.voc import is_voc, read_voc
from paceline.data.formats.yolo import is_yolo, read_yolo, yolo_splits
from paceline.data.index.staleness import is_inside

Layout = Literal["coco", "voc", "yolo"]

WANTED = (
    "Wanted: annotations/instances_train2017.json with train2017/ and the same for val2017, or train/_annotations.coco.json "
    "and valid/_annotations.coco.json, or Pascal VOC's Annotations/*.xml, or a YOLO data.yaml.\n"
    "Or name the files:  paceline prepare coco --images DIR --annotations FILE --val-images DIR --val-annotations FILE"
)


@dataclass(frozen=True)
class DetectionLayout:
    """A data set of boxes as its files have it."""

    layout: Layout
    root: Path
    splits: dict[str, Annotations]  # "train", and "val" where there is one
    notes: list[str]
    files: dict[str, tuple[str, ...]]  # split -> glob patterns of its annotations, relative to `root` or absolute


def detect_layout(root: Path) -> Layout | None:
    """Which of the layouts `root` has; None for none of them. Raises DataError where it is ambiguous."""
    return next((layout for layout, (is_it, _) in READERS.items() if is_it(root)), None)


def read_source(root: Path, layout: Layout | None = None) -> DetectionLayout:
    """Read the annotations of a folder.

    layout  None: whichever it has
    Raises DataError where it has none, or its files contradict themselves.
    """
    if not root.is_dir():
        what = "this is a file, a folder is needed" if root.exists() else "no such folder"
        raise DataError(f"{root}: {what}. Check the path (--data).")
    chosen = layout or detect_layout(root)
    if chosen is None:
        inner = [entry for entry in list_matching(root) if entry.is_dir() and detect_layout(entry) is not None]
        if inner:
            raise DataError(f"{root}: no annotations in it, but there are some in {inner[0]}. Use  --data {inner[0]}")
        raise DataError(f"{root}: no annotations of boxes found in it. {suggest_export(root) or WANTED}")
    if not READERS[chosen][0](root):
        if (other := detect_layout(root)) is not None:
            command = f"paceline prepare {other} {shlex.quote(str(root))}"
            raise DataError(f"{root}: its annotations are of another layout:  {command}")
        if advice := suggest_export(root):
            raise DataError(f"{root}: no annotations of that layout found in it. {advice}")
    return READERS[chosen][1](root)


def read_files(images: Path, annotations: Path, val_images: Path | None, val_annotations: Path | None) -> DetectionLayout:
    """Read COCO JSONs that were named one by one. Raises DataError as `read_coco` does."""
    pairs = {"train": (annotations, images)}
    if val_annotations is not None:
        pairs["val"] = (val_annotations, val_images or images)
    for _, folder in pairs.values():
        if not folder.is_dir():
            what = "this is a file, the folder of the images is needed" if folder.exists() else "no such folder"
            raise DataError(f"{folder}: {what}. Check the path (--images, --val-images).")
    return read_jsons(pairs)


def read_one_split(root: Path, names: Sequence[str]) -> DetectionLayout:
    """The first split of `root` that has one of these names, as "val" and alone.

    Raises DataError where there is none, or its files contradict themselves.
    """
    wanted = " nor ".join(names)
    if (pair := find_coco_split(root, names)) is not None:
        return read_jsons({"val": pair}, root)
    if is_yolo(root):
        key = next((name for name in names if name in yolo_splits(root)), None)
        if key is None:
            raise DataError(f"{root}: data.yaml names no {wanted}. Name another with --split.")
        return _read_yolo(root, key)
    if is_voc(root) or any(is_voc(root / name) for name in names if (root / name).is_dir()):
        return _read_voc(root, names)
    if advice := suggest_export(root, coco=False):
        raise DataError(f"{root}: no annotations of {wanted} found in it. {advice}")
    raise DataError(
        f"{root}: no annotations of {wanted} found in it. Wanted: a COCO JSON such as annotations/instances_{names[0]}.json or "
        f"{names[0]}/_annotations.coco.json, Pascal VOC's XML files, or a YOLO data.yaml.\n"
        "Or name the files:  --images DIR --annotations FILE"
    )


def read_jsons(pairs: dict[str, tuple[Path, Path]], root: Path | None = None) -> DetectionLayout:
    """Read COCO JSONs. Raises DataError as `read_coco` does.

    pairs  split -> (JSON, folder of its images)
    root   of the data set; None: the folder above all of them
    """
    root = root or Path(os.path.commonpath([path for pair in pairs.values() for path in pair]))
    splits, notes = {}, []
    for split, (file, images) in pairs.items():
        splits[split], more = read_coco(file, images)
        notes += more
    return DetectionLayout(
        "coco", root, splits, notes, {split: (escape_glob(root, file),) for split, (file, _) in pairs.items()}
    )


def _read_coco_folder(root: Path) -> DetectionLayout:
    pairs = find_coco(root)
    if not pairs:
        held = join_names(path.name for path in list_matching(root / "annotations", "*.json"))
        raise DataError(f"{root}: no COCO annotations of train found in it (annotations/ holds {held}). {WANTED}")
    return read_jsons(pairs, root)


def _read_voc(root: Path, only: Sequence[str] = ()) -> DetectionLayout:
    splits, notes = read_voc(root, only)
    return DetectionLayout("voc", root, splits, notes, dict.fromkeys(splits, ("**/*.xml", "**/ImageSets/Main/*.txt")))


def _read_yolo(root: Path, only: str = "") -> DetectionLayout:
    splits, notes = read_yolo(root, only)
    patterns = {"**/*.txt", "*.yaml", "*.yml"}
    for split in splits.values():
        parts = split.images_folder.parts
        if "images" in parts and not is_inside(split.images_folder, root):
            at = len(parts) - 1 - parts[::-1].index("images")
            patterns.add(escape_glob(root, Path(*parts[:at], "labels", *parts[at + 1 :])) + "/**/*.txt")
    return DetectionLayout("yolo", root, splits, notes, dict.fromkeys(splits, tuple(sorted(patterns))))


def escape_glob(root: Path, path: Path) -> str:
    """A glob pattern of that path alone, relative to `root` where it lies in it."""
    return glob.escape(os.path.relpath(path, root) if is_inside(path, root) else str(path))


READERS: dict[Layout, tuple[Callable[[Path], bool], Callable[[Path], DetectionLayout]]] = {
    "coco": (lambda root: bool(find_coco(root)), _read_coco_folder),
    "yolo": (is_yolo, _read_yolo),
    "voc": (is_voc, _read_voc),
}
