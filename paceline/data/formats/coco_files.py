"""Find a data set's COCO JSONs and photos, and read such a JSON: a file, or a member of a zip as cocodataset.org has it.

Layouts, found by themselves:
    ROOT/annotations/instances_{train2017,val2017}.json with ROOT/{train2017,val2017}/*      the official one
        (also other years or no year, without "instances_", and with ROOT/images/train2017)
    ROOT/{train,val}/_annotations.coco.json beside its images (or valid/, or validation/)    Roboflow's
"""

from __future__ import annotations

import gc
import json
import os
import re
import shlex
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline._utils.errors import DataError
from paceline._utils.names import list_matching
from paceline._utils.safe_read import open_plain, read_plain
from paceline._utils.text import join_names
from paceline.data.formats.class_folders import VAL_FOLDERS
from paceline.data.formats.label_tools import identify_json_tool
from paceline.data.index.manifest import FILE_NAME as MANIFEST

ROBOFLOW = "_annotations.coco.json"
_SPLIT_FILE = re.compile(r"(?:instances_)?(train|validation|valid|val)(.*)\.json")
# The largest that are used, Objects365's, have 6 GB.
MAX_BYTES = 8 << 30
# In a zip: annotations of COCO pack to a quarter, indented ones to a twentieth; nothing of so many bytes is a bomb.
MAX_RATIO, ALWAYS_BYTES = 30, 16 << 20


def find_coco(root: Path) -> dict[str, tuple[Path, Path]]:
    """-> split -> (JSON, folder of its images), in one of the layouts above; {} where there is none.

    Raises DataError where several sets are there, or the JSON is there and its folder of images is not.
    """
    official = _find_official(root)
    if official:
        return official
    pairs = {}
    for split, folders in (("train", ("train",)), ("val", VAL_FOLDERS)):
        here = [root / folder for folder in folders if (root / folder / ROBOFLOW).is_file()]
        if len(here) > 1:
            raise DataError(f"{root}: both {here[0].name}/ and {here[1].name}/ are there; which one is meant?")
        if here:
            pairs[split] = (here[0] / ROBOFLOW, here[0])
    return pairs if "train" in pairs else {}


def find_coco_split(root: Path, names: Sequence[str]) -> tuple[Path, Path] | None:
    """-> (JSON, folder of its images) of the first of `names` that is there in one of the layouts above.

    Also taken are a JSON directly in `root`, and the only JSON there is, whatever its name; None where there is none.
    Raises DataError where several could be meant, or the images are not there.
    """
    for folder in (*(root / name for name in names), root):
        if (folder / ROBOFLOW).is_file():
            return folder / ROBOFLOW, folder
    files = [file for path in (root / "annotations", root) for file in list_matching(path, "*.json")]
    files = [file for file in files if file.name not in (MANIFEST, "classes.json")]
    for name in names:
        named = [file for file in files if re.fullmatch(rf"(instances_)?{name}([-_.]?\d.*|[-_.].*)?", file.stem)]
        named = [file for file in named if file.stem.startswith("instances_")] or named
        named = [file for file in named if file.stem.endswith("2017")] or named
        if len(named) > 1:
            raise DataError(
                f"{root}: several could be meant ({join_names(file.name for file in named)}). "
                "Name the files:  --images DIR --annotations FILE"
            )
        if named:
            return named[0], _images_beside(root, named[0])
    if len(files) == 1 and not _SPLIT_FILE.fullmatch(files[0].name):
        return files[0], _images_beside(root, files[0])
    return None


def _images_beside(root: Path, file: Path) -> Path:
    """The folder of a JSON's images; `root` where no folder is called as they are."""
    name = file.stem.removeprefix("instances_")
    tried = (root / name, root / "images" / name, root / "images")
    return next((folder for folder in tried if folder.is_dir()), root)


def _find_official(root: Path) -> dict[str, tuple[Path, Path]]:
    by_suffix: dict[str, dict[str, Path]] = {}  # what follows "train" or "val" in the name -> split -> file
    for file in list_matching(root / "annotations", "*.json"):
        match = _SPLIT_FILE.fullmatch(file.name)
        if match:
            split = "train" if match[1] == "train" else "val"
            key = ("instances_" if file.name.startswith("instances_") else "") + match[2]
            by_suffix.setdefault(key, {}).setdefault(split, file)
    sets = [files for files in by_suffix.values() if "train" in files]
    sets = [files for files in sets if "val" in files] or sets
    # The official annotations come with those of several years; 2017 is the one that is trained on.
    if len(sets) > 1 and "instances_2017" in by_suffix:
        sets = [by_suffix["instances_2017"]]
    if len(sets) > 1:
        raise DataError(
            f"{root / 'annotations'}: several sets ({join_names(files['train'].name for files in sets)}); which one is meant? "
            "Name the files:  paceline prepare coco --images DIR --annotations FILE --val-images DIR --val-annotations FILE"
        )
    return {split: (file, _images_of(root, file)) for split, file in sets[0].items()} if sets else {}


def _images_of(root: Path, file: Path) -> Path:
    name = file.stem.removeprefix("instances_")
    tried = [root / name, root / "images" / name]
    for folder in tried:
        if folder.is_dir():
            return folder
    raise DataError(
        f"{file}: its images are neither in {tried[0]} nor in {tried[1]}. Move them there, or name their folder:  "
        f"paceline prepare coco --images DIR --annotations {shlex.quote(str(file))} ..."
    )


def load_json(path: Path, split: str) -> tuple[Path, dict[str, Any]]:
    """-> the file, of a zip with the name in it below the zip's, and what it holds.

    split  "train" or "val", which of a zip's JSONs is meant
    Raises DataError where it is none, or cannot be read.
    """
    try:
        if path.suffix == ".zip":
            path, data = _zipped(path, split)
        else:
            data = read_plain(path, MAX_BYTES)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file. Check the path (--annotations).") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}). A COCO JSON file is wanted.") from None
    # Millions of small objects are made and none is garbage: walking through them again and again doubles the time.
    collects = gc.isenabled()
    gc.disable()
    try:
        record = json.loads(data)
    except (ValueError, RecursionError) as error:
        if isinstance(error, UnicodeDecodeError) and error.encoding == "utf-8":
            raise DataError(
                f"{path}: its bytes are not UTF-8 text (0x{data[error.start]:02x} at {error.start:,}). Save it as UTF-8; if it is "
                f"Latin-1:  iconv -f latin1 -t utf-8 {shlex.quote(str(path))} > utf8.json"
            ) from None
        reason = error if isinstance(error, ValueError) else "nested too deeply"
        raise DataError(f"{path}: not JSON ({reason}). Download or export it again.") from None
    finally:
        if collects:
            gc.enable()
    if tool := identify_json_tool(record):
        raise DataError(f"{path}: this is {tool[0]}. {tool[1]}")
    if not isinstance(record, dict):
        raise DataError(
            f"{path}: not a COCO annotation file: it holds a {type(record).__name__}, not an object with images, "
            "annotations and categories. (A list may be detections; those are no annotations.)"
        )
    return path, record


def _zipped(path: Path, split: str) -> tuple[Path, bytes]:
    """The only JSON in a zip that fits the split, and its name below the zip's. Raises OSError, DataError."""
    with os.fdopen(open_plain(path), "rb") as file:
        try:
            archive = zipfile.ZipFile(file)
            names = [name for name in archive.namelist() if name.endswith(".json")]
            fitting = [name for name in names if re.fullmatch(rf"instances_{split}\d*\.json", os.path.basename(name))]
            if len(fitting or names) != 1:
                raise DataError(
                    f"{path}: it holds {join_names(names)}; which one is meant? Unpack it and name the JSON (--annotations)."
                )
            name = (fitting or names)[0]
            unpacked, packed = archive.getinfo(name).file_size, os.fstat(file.fileno()).st_size
            if unpacked > max(ALWAYS_BYTES, MAX_RATIO * packed):
                raise DataError(
                    f"{path}: its {packed:,} bytes would unpack to {unpacked:,}, which annotations do not; it is not unpacked. "
                    "Where you trust it, unpack it and name the JSON (--annotations)."
                )
            with archive.open(name) as member:
                data = member.read(MAX_BYTES + 1)
        # zipfile raises NotImplementedError for a compression that it does not know, RuntimeError for an encrypted member.
        except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
            raise DataError(f"{path}: a zip that cannot be read ({error}). Download it again.") from None
    if len(data) > MAX_BYTES:
        raise DataError(f"{path}: its JSON has more than {MAX_BYTES:,} bytes.")
    return path / name, data
