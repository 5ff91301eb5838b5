"""Find the kind of a data set, the word after `paceline prepare`, by what a folder or a file holds.

Only names are read, and in addition a data.yaml and the first sample of a tar. No image is decoded.
A folder's own layout comes first: archives next to unpacked folders are not counted.
"""

from __future__ import annotations

import glob
import os
from pathlib import Path

from paceline._utils.names import is_image_name, list_matching, walk_visible
from paceline.data.containers.archives import is_webdataset
from paceline.data.containers.label_exports import container_kind
from paceline.data.containers.split_files import find_files, unpack_compressed
from paceline.data.formats.class_folders import describe_class_folders
from paceline.data.formats.layouts import find_layouts

COCO_ZIPS = ("train2017.zip", "val2017.zip", "annotations_trainval2017.zip")


def find_kinds(location: str) -> dict[str, tuple[str, list[str]]]:
    """Return every kind that fits a folder, a file, a pattern of files, or a URL.

    Returns:
        dict: kind -> what shows it, such as annotations/instances_train2017.json, and the words that name the data after the kind.

    Raises:
        DataError: if a tar cannot be found or opened, a folder cannot be listed, or its layout contradicts itself.
    """
    root, found = Path(location).expanduser(), {}
    if not root.is_dir():
        return _file_kind(
            str(min(list_matching(root.parent, root.name), default=location)), os.path.basename(location), [location]
        )
    signs = {**find_layouts(root), "folder": describe_class_folders(root)}
    if (
        not any(signs.values())
        and (root / "images").is_dir()
        and any(name.endswith(".txt") for *_, files in walk_visible(root / "labels") for name in files)
    ):
        signs["yolo"] = "labels/*.txt next to images/"
    if any(signs.values()):
        return {kind: (sign, [location]) for kind, sign in signs.items() if sign}
    if all((root / name).is_file() for name in COCO_ZIPS):
        return {"coco": (COCO_ZIPS[0], ["--zip-dir", location])}
    # The names of containers say which split they are.
    for first in {path.suffix: path for path in list_matching(root, "*train*") if container_kind(path.name)}.values():
        train, val = (os.path.join(glob.escape(location), f"*{split}*{first.suffix}") for split in ("train", "val"))
        words = ["--train", train, *(["--val", val] if list_matching(root, os.path.basename(val)) else [])]
        found |= _file_kind(str(first), os.path.basename(train), words)
    return found


def _file_kind(first: str, sign: str, words: list[str]) -> dict[str, tuple[str, list[str]]]:
    """Return the kind of a file, of several the first, by its suffix, and of a tar by its first sample."""
    kind = container_kind(first) or ("photos" if is_image_name(os.fsencode(first)) else "")
    if kind == "tar" and is_webdataset(unpack_compressed(find_files("train", [first]))):
        kind, sign = "webdataset", f"an image and its label in {sign}"
    return {kind: (sign, words)} if kind else {}
