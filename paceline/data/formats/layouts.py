"""Where a data set of boxes comes from: which layout a folder has, and the reader of each.

A layout is a row of READERS: its name, how a folder is recognized, and how it is read. Those of COCO:
    ROOT/annotations/instances_{train2017,val2017}.json with ROOT/{train2017,val2017}/*      the official one
        (also other years or no year, without "instances_", and with ROOT/images/train2017)
    ROOT/{train,val}/_annotations.coco.json beside its images (or valid/, or validation/)    Roboflow's
"""

from __future__ import annotations

import glob
import os
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from paceline._utils.errors import DataError
from paceline._utils.names import list_matching
from paceline._utils.text import join_names
from paceline.data.formats.annotations import Annotations
from paceline.data.formats.class_folders import VAL_FOLDERS
from paceline.data.formats.coco import read_coco
from paceline.data.formats.label_tools import suggest_export
from paceline.data.formats.voc import find_voc, read_voc
from paceline.data.formats.yolo import find_yolo, read_yolo, yolo_splits
from paceline.data.index.manifest import FILE_NAME as MANIFEST
from paceline.data.index.staleness import is_inside

Layout = Literal["coco", "voc", "yolo"]
ROBOFLOW = "_annotations.coco.json"
_SPLIT_FILE = re.compile(r"(?:instances_)?(train|validation|valid|val)(.*)\.json")

WANTED = (
    "Expected annotations/instances_train2017.json with train2017/ (and the same for val2017), "
    "train/_annotations.coco.json and valid/_annotations.coco.json, Pascal VOC's Annotations/*.xml, or a YOLO "
    "data.yaml.\nOr pass the files:  paceline prepare coco --images-dir DIR --annotations FILE --val-images-dir DIR "
    "--val-annotations FILE"
)


@dataclass(frozen=True)
class DetectionLayout:
    """A data set of boxes as its files have it."""

    layout: Layout
    root: Path
    splits: dict[str, Annotations]  # "train", and "val" where there is one
    notes: list[str]
    files: dict[str, tuple[str, ...]]  # split -> glob patterns of its annotations, relative to `root` or absolute


def find_layouts(root: Path) -> dict[Layout, str]:
    """Return each layout that `root` has, and the file that shows it. Raises DataError if the files contradict each other."""
    return {layout: sign for layout, (find, _) in READERS.items() if (sign := find(root))}


def read_source(root: Path, layout: Layout | None = None) -> DetectionLayout:
    """Read the annotations of a folder.

    layout  None: whichever it has
    Raises DataError where it has none, or its files contradict themselves.
    """
    if not root.is_dir():
        what = "this is a file, but a folder is required" if root.exists() else "folder not found"
        raise DataError(f"{root}: {what}. Check the path (--data).")
    chosen = layout or next(iter(find_layouts(root)), None)
    if chosen is None:
        inner = [entry for entry in list_matching(root) if entry.is_dir() and find_layouts(entry)]
        if inner:
            raise DataError(f"{root}: no annotations found, but {inner[0]} has some. Use  --data {inner[0]}")
        raise DataError(f"{root}: no annotations of boxes found. {suggest_export(root) or WANTED}")
    if not READERS[chosen][0](root):
        for other in find_layouts(root):
            command = f"paceline prepare {other} {shlex.quote(str(root))}"
            raise DataError(f"{root}: the annotations have another layout. Use  {command}")
        if advice := suggest_export(root):
            raise DataError(f"{root}: no annotations of this layout found. {advice}")
    return READERS[chosen][1](root)


def read_one_split(root: Path, names: Sequence[str]) -> DetectionLayout:
    """The first split of `root` that has one of these names, as "val" and alone.

    Raises DataError where there is none, or its files contradict themselves.
    """
    wanted = " nor ".join(names)
    if (pair := find_coco_split(root, names)) is not None:
        return read_jsons({"val": pair}, root)
    if find_yolo(root):
        key = next((name for name in names if name in yolo_splits(root)), None)
        if key is None:
            raise DataError(f"{root}: data.yaml has no {wanted}. Choose another split with --split.")
        return _read_yolo(root, key)
    if find_voc(root) or any(find_voc(root / name) for name in names if (root / name).is_dir()):
        return _read_voc(root, names)
    if advice := suggest_export(root, coco=False):
        raise DataError(f"{root}: no annotations of {wanted} found. {advice}")
    raise DataError(
        f"{root}: no annotations of {wanted} found. Expected a COCO JSON such as annotations/instances_{names[0]}.json or "
        f"{names[0]}/_annotations.coco.json, Pascal VOC's XML files, or a YOLO data.yaml.\nOr pass the files:  "
        "--images-dir DIR --annotations FILE"
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


def _find_train_json(root: Path) -> str:
    pairs = find_coco(root)
    return str(pairs["train"][0].relative_to(root)) if pairs else ""


def _read_coco_folder(root: Path) -> DetectionLayout:
    pairs = find_coco(root)
    if not pairs:
        held = join_names(path.name for path in list_matching(root / "annotations", "*.json"))
        raise DataError(f"{root}: no COCO annotations of train found (annotations/ has {held}). {WANTED}")
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
            raise DataError(f"{root}: has both {here[0].name}/ and {here[1].name}/. Rename or remove one of them.")
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
                f"{root}: multiple files match ({join_names(file.name for file in named)}). Pass the files:  "
                "--images-dir DIR --annotations FILE"
            )
        if named:
            return named[0], _images_beside(root, named[0])
    if len(files) == 1 and not _SPLIT_FILE.fullmatch(files[0].name):
        return files[0], _images_beside(root, files[0])
    return None


def _images_of(root: Path, file: Path) -> list[Path]:
    """The folders that are there and are called as a JSON's images are."""
    name = file.stem.removeprefix("instances_")
    return [folder for folder in (root / name, root / "images" / name) if folder.is_dir()]


def _images_beside(root: Path, file: Path) -> Path:
    """The folder of a JSON's images; `root` where no folder is called as they are."""
    return next(iter(_images_of(root, file)), root / "images" if (root / "images").is_dir() else root)


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
            f"{root / 'annotations'}: multiple sets found ({join_names(files['train'].name for files in sets)}). Pass "
            "the files of one set:  paceline prepare coco --images-dir DIR --annotations FILE --val-images-dir DIR "
            "--val-annotations FILE"
        )
    pairs = {}
    for split, file in sets[0].items() if sets else ():
        folders, name = _images_of(root, file), file.stem.removeprefix("instances_")
        if not folders:
            raise DataError(
                f"{file}: its images are neither in {root / name} nor in {root / 'images' / name}. Move them there, or "
                f"pass their folder:  paceline prepare coco --images-dir DIR --annotations {shlex.quote(str(file))} ..."
            )
        pairs[split] = (file, folders[0])
    return pairs


READERS: dict[Layout, tuple[Callable[[Path], str], Callable[[Path], DetectionLayout]]] = {
    "coco": (_find_train_json, _read_coco_folder),
    "yolo": (find_yolo, _read_yolo),
    "voc": (find_voc, _read_voc),
}
