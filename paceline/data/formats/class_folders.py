"""The files of a class-folder data set, found by name; everything that can be wrong with their layout; readable class names.

    ROOT/train/CLASS/*.jpg
    ROOT/val/CLASS/*.jpg        (or valid/, or validation/; each in any case, and training/)
or, where a validation split is to be set apart (`--val-fraction`), ROOT/train/CLASS/*.jpg or ROOT/CLASS/*.jpg alone.
A class is a folder; its label is its position in the sorted list of folders, as in torchvision's ImageFolder.
"""

from __future__ import annotations

import json
import os
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from paceline._utils.errors import DataError
from paceline._utils.names import FolderNames, format_suffixes, list_folder
from paceline._utils.safe_read import read_plain
from paceline._utils.text import format_count, join_names, tidy_name
from paceline.data.formats.file_matching import normalize_name
from paceline.data.index.manifest import Manifest, prepare_command

Name = TypeVar("Name", str, bytes)
MAX_BYTES = 64 << 20  # of a file of class names
TRAIN_FOLDER = "train"
TRAIN_FOLDERS = (TRAIN_FOLDER, "training")
VAL_FOLDERS = ("val", "valid", "validation")

LAYOUT = "Expected ROOT/train/CLASS/*.jpg and ROOT/val/CLASS/*.jpg, with one folder per class."


@dataclass(frozen=True)
class SplitListing:
    """Image files of one split: names[k] are those of classes[k], in order (bytes); classes are folder names."""

    folder: Path
    classes: list[str]
    names: list[list[bytes]]
    mtimes: list[int]  # nanoseconds, of each class folder, taken before it was listed
    ignored: int
    others: Counter[str] = field(default_factory=Counter)  # of these, the visible files by their suffix

    @property
    def images(self) -> int:
        return sum(len(names) for names in self.names)

    def relative_names(self, root: Path) -> list[bytes]:
        """The files in order, relative to `root`."""
        folders = [os.fsencode(os.path.relpath(self.folder / label, root)) for label in self.classes]
        return [folder + b"/" + name for folder, names in zip(folders, self.names) for name in names]


@dataclass(frozen=True)
class ClassFolderListing:
    """Both splits of one root."""

    root: Path
    splits: dict[str, SplitListing]  # "train" and "val"; one alone where val is set apart from train, or only scored on

    @property
    def images(self) -> int:
        return sum(split.images for split in self.splits.values())


def list_unsplit(root: Path, out: Path | None = None) -> ClassFolderListing:
    """List ROOT/train, or ROOT itself where there is no train/: all photos are the split "train". Opens no file.

    Raises DataError as list_class_folders does, and where there is a validation split already.
    """
    top = list_folder(root)
    folders = [os.fsdecode(name) for name in top.folders]
    train, val = (split_folders(root, folders, names) for names in (TRAIN_FOLDERS, VAL_FOLDERS))
    if train and val:
        raise DataError(f"{root}: already has validation images in {val[0]}/. Remove --val-fraction.")
    if not train and (top.images or not _has_classes(root, folders)):
        raise DataError(_no_train_reason(root, folders, top, out))
    return ClassFolderListing(root, {"train": list_split(root / train[0] if train else root)})


def list_class_folders(root: Path, out: Path | None = None) -> ClassFolderListing:
    """List ROOT/train and ROOT/val. Opens no file.

    Raises DataError, naming the folder and what to do, where root is missing or empty, holds images without classes,
    has no train or no val, or where a class folder holds folders or nothing.
    """
    top = list_folder(root)
    folders = [os.fsdecode(name) for name in top.folders]
    train, val = (split_folders(root, folders, names) for names in (TRAIN_FOLDERS, VAL_FOLDERS))
    if not train:
        raise DataError(_no_train_reason(root, folders, top, out))
    if not val:
        raise DataError(
            f"{root}: validation images are required, but val/, valid/, and validation/ were not found. To use 20% of each "
            f"class for validation, without moving or copying an image:\n  {_split_command(root, out)}"
        )
    for same in (train, val):
        if len(same) > 1:
            raise DataError(f"{root}: has both {same[0]}/ and {same[1]}/. Rename or remove one of them.")
    return ClassFolderListing(root, {"train": list_split(root / train[0]), "val": list_split(root / val[0])})


def describe_class_folders(root: Path) -> str:
    """Return which class folders `root` has, '10 folders of images in train/'; "" if it has none. Opens no file."""
    folders = [os.fsdecode(name) for name in list_folder(root).folders]
    train = next(iter(split_folders(root, folders, TRAIN_FOLDERS)), "")
    inside = [os.fsdecode(name) for name in list_folder(root / train).folders] if train else folders
    return f"{len(inside):,} folders of images in {train or '.'}/" if _has_classes(root / train, inside) else ""


def split_folders(root: Path, folders: Sequence[str], names: Sequence[str]) -> list[str]:
    """Those of `folders` that are called one of `names`, or else are called so in another case and hold folders, no photos.

    A class may be called Train or training, and then holds photos.
    """
    exact = [name for name in names if name in folders and name != TRAIN_FOLDERS[1]]
    if exact:
        return exact
    near = ((name, list_folder(root / name)) for name in folders if name.lower() in names)
    return [name for name, inside in near if inside.folders and not inside.images]


def check_classes(listing: ClassFolderListing) -> None:
    """Raises DataError where train has fewer than two classes, or val's classes are not train's (both sides named)."""
    train = listing.splits["train"]
    val = listing.splits.get("val", train)
    if len(train.classes) < 2:
        raise DataError(
            f"{train.folder}: only one class ({train.classes[0]}); a classifier needs at least two. Add class folders."
        )
    if train.classes != val.classes:
        only_train = sorted(set(train.classes) - set(val.classes))
        only_val = sorted(set(val.classes) - set(train.classes))
        ours, theirs = (sorted(names, key=normalize_name) for names in (only_train, only_val))
        if list(map(normalize_name, ours)) == list(map(normalize_name, theirs)):
            paths = [(val.folder / wrong, val.folder / right) for wrong, right in zip(theirs, ours)]
            moves = "\n".join("  " + shlex.join(["mv", *map(str, pair)]) for pair in paths)
            raise DataError(
                f"{listing.root}: {format_count(len(ours), 'class')} of {val.folder.name}/ and train/ differ only in the "
                f"Unicode form or in spaces ({val.folder.name}/: {join_names(map(ascii, theirs))}; train/: "
                f"{join_names(map(ascii, ours))}). Rename the folders:\n{moves}"
            )
        raise DataError(
            f"{listing.root}: the classes of {val.folder.name}/ and {train.folder.name}/ differ. Only in "
            f"{train.folder.name}/: {join_names(map(repr, only_train))}. Only in {val.folder.name}/: "
            f"{join_names(map(repr, only_val))}. Use the same class folders with the same spelling in both."
        )


def list_split(folder: Path) -> SplitListing:
    """FOLDER/CLASS/*.jpg. Opens no file. Raises DataError as `list_class_folders` does."""
    top = list_folder(folder)
    if top.images:
        raise DataError(
            f"{folder}: has {len(top.images):,} images directly in it ({os.fsdecode(top.images[0])}), so their class is "
            f"unknown. Move each image into {folder}/CLASS/."
        )
    if not top.folders:
        raise DataError(f"{folder}: no class folders found. {LAYOUT}")
    names, mtimes, ignored, others = [], [], top.ignored, Counter(top.others)
    for entry in top.folders:
        path = folder / os.fsdecode(entry)
        mtimes.append(path.stat().st_mtime_ns)
        inside = list_folder(path)
        if inside.folders:
            raise DataError(
                f"{path}: must have only images, but has {len(inside.folders):,} folders "
                f"({join_names(map(os.fsdecode, inside.folders), 3)}). Move their images into {path}, or move them away."
            )
        if not inside.images:
            others_text = f" ({text})" if (text := format_suffixes(inside.others)) else ""
            raise DataError(f"{path}: no images in this class folder{others_text}. Add some, or remove it from all splits.")
        names.append(inside.images)
        ignored += inside.ignored
        others += inside.others
    return SplitListing(folder, [os.fsdecode(entry) for entry in top.folders], names, mtimes, ignored, others)


def _no_train_reason(root: Path, folders: list[str], top: FolderNames, out: Path | None) -> str:
    if top.images:
        return (
            f"{root}: has {len(top.images):,} images directly in it ({os.fsdecode(top.images[0])}) and no train/, so "
            f"their classes are unknown. {LAYOUT}"
        )
    if not folders:
        result = f"only {text}" if (text := format_suffixes(top.others)) else "the folder is empty"
        return f"{root}: {result}. {LAYOUT}"
    for name in folders:
        if (root / name / TRAIN_FOLDER).is_dir():
            return f"{root}: train/ not found, but {root / name} has one. Use  --data {root / name}"
    if root.name in (TRAIN_FOLDER, *VAL_FOLDERS) and (root.parent / TRAIN_FOLDER).is_dir():
        return f"{root}: this is one split of a dataset. Use the folder above it:  --data {root.parent}"
    if _has_classes(root, folders):
        return (
            f"{root}: train/ and val/ not found, only folders with images ({join_names(folders)}). If these are the "
            "classes, use 20% of each class for validation, without moving or copying an image:\n  "
            f"{_split_command(root, out)}"
        )
    others = sum((list_folder(root / name).others for name in folders[:3]), Counter[str]())
    inside = f" The first of them has {text}." if (text := format_suffixes(others)) else ""
    return f"{root}: train/ not found, only {join_names(folders)}.{inside} {LAYOUT}"


def _has_classes(root: Path, folders: list[str]) -> bool:
    """Whether the first folders hold photos themselves, and are no splits."""
    no_split = len(folders) > 1 and not set(folders) & {*VAL_FOLDERS, "test"}
    return no_split and all(list_folder(root / name).images for name in folders[:3])


def _split_command(root: Path, out: Path | None) -> str:
    return f"{prepare_command(root, out=out)} --val-fraction 0.2"


def read_class_names(root: Path, classes: tuple[str, ...]) -> tuple[str, ...] | None:
    """Readable names of `classes` ("tench" for n01440764), where ROOT has them for every class, else None.

    From classes.json, {folder: name} or {"classes": {folder: name}}, or from LOC_synset_mapping.txt, whose lines are
    "folder name, synonym, ...". Raises DataError where classes.json is not JSON.
    """
    path = root / "classes.json"
    if not path.is_file():
        path = root / "LOC_synset_mapping.txt"
    if not path.is_file():
        return None
    try:
        data = read_plain(path, MAX_BYTES)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}). Remove it, or make it readable. It only has class names."
        ) from None
    if path.suffix == ".json":
        try:
            record = json.loads(data)
        except (ValueError, RecursionError) as error:
            why = "Correct or rename it: it only gives classes readable names."
            raise DataError(f"{path}: not valid JSON ({error}). {why}") from None
        table = record.get("classes", record) if isinstance(record, dict) else {}
        names = table if isinstance(table, dict) else {}
    else:
        lines = data.decode("utf-8", "replace").splitlines()
        names = {line.split(" ", 1)[0]: line.split(" ", 1)[-1].split(",")[0].strip() for line in lines}
    readable = [names.get(label) for label in classes]
    if not all(isinstance(name, str) for name in readable):
        return None
    try:
        return tuple(tidy_name(str(name)) for name in readable)
    except ValueError as error:
        raise DataError(f"{path}: one of its names is not valid: {error}. Correct it.") from None


def class_names_changed(manifest: Manifest) -> str | None:
    """None where the readable names in a manifest of class folders are those of its data set now, else one line."""
    if manifest.kind != "class-folder" or manifest.in_containers:
        return None  # names of boxes are in the annotations, which are compared as files; of containers, in the manifest
    now = read_class_names(manifest.root_path, manifest.classes)
    return None if now == manifest.class_names else f"{manifest.root_path}: its readable class names changed"


def tidy_class_name(explicit: object, title: str, end: str = ".", *, tag: str = "name") -> str:
    """A class's name on one line. Raises DataError, "TITLE has no TAG.", where it is none."""
    reason = f"has no {tag}"
    try:
        if isinstance(explicit, str):
            return tidy_name(explicit)
    except ValueError as error:
        reason += f" that can be used: {error}" if str(explicit).strip() else ""
    raise DataError(f"{title} {reason}{end}")


def find_duplicate(names: Iterable[Name]) -> Name | None:
    """The first name that occurred before, or None."""
    seen: set[Name] = set()
    return next((name for name in names if name in seen or seen.add(name)), None)
