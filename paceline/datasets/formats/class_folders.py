"""The files of a class-folder data set, found by name, and everything that can be wrong with their layout.

    ROOT/train/CLASS/*.jpg
    ROOT/val/CLASS/*.jpg        (or valid/, or validation/)
or, where a validation split is to be set apart (`--val-fraction`), ROOT/train/CLASS/*.jpg or ROOT/CLASS/*.jpg alone.
A class is a folder; its label is its position in the sorted list of folders, as in torchvision's ImageFolder.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from paceline.config.errors import DataError
from paceline.config.image_name import by_suffix
from paceline.config.printable import some
from paceline.store.class_folder import FolderNames, list_folder
from paceline.store.manifest import prepare_command

TRAIN_FOLDER = "train"
VAL_FOLDERS = ("val", "valid", "validation")

LAYOUT = "Wanted: ROOT/train/CLASS/*.jpg and ROOT/val/CLASS/*.jpg, one folder for each class."


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
class Listing:
    """Both splits of one root."""

    root: Path
    splits: dict[str, SplitListing]  # "train" and "val"; one alone where val is set apart from train, or only scored on

    @property
    def images(self) -> int:
        return sum(split.images for split in self.splits.values())


def list_unsplit(root: Path, out: Path | None = None) -> Listing:
    """List ROOT/train, or ROOT itself where there is no train/: all photos are the split "train". Opens no file.

    Raises DataError as list_class_folders does, and where there is a validation split already.
    """
    top = list_folder(root)
    folders = [os.fsdecode(name) for name in top.folders]
    val = [name for name in VAL_FOLDERS if name in folders]
    if TRAIN_FOLDER in folders and val:
        raise DataError(f"{root}: it has validation images of its own, in {val[0]}/; leave --val-fraction out.")
    if TRAIN_FOLDER not in folders and (top.images or not _has_classes(root, folders)):
        raise DataError(_why_no_train(root, folders, top, out))
    return Listing(root, {"train": list_split(root / TRAIN_FOLDER if TRAIN_FOLDER in folders else root)})


def list_class_folders(root: Path, out: Path | None = None) -> Listing:
    """List ROOT/train and ROOT/val. Opens no file.

    Raises DataError, naming the folder and what to do, where root is missing or empty, holds images without classes,
    has no train or no val, or where a class folder holds folders or nothing.
    """
    top = list_folder(root)
    folders = [os.fsdecode(name) for name in top.folders]
    if TRAIN_FOLDER not in folders:
        raise DataError(_why_no_train(root, folders, top, out))
    val = [name for name in VAL_FOLDERS if name in folders]
    if not val:
        raise DataError(_why_no_val(root, out))
    if len(val) > 1:
        raise DataError(
            f"{root}: both {val[0]}/ and {val[1]}/ are there; which one is meant? Rename or remove the other."
        )
    return Listing(root, {"train": list_split(root / TRAIN_FOLDER), "val": list_split(root / val[0])})


def check_classes(listing: Listing) -> None:
    """Raises DataError where train has fewer than two classes, or val's classes are not train's (both sides named)."""
    train = listing.splits["train"]
    val = listing.splits.get("val", train)
    if len(train.classes) < 2:
        raise DataError(
            f"{train.folder}: only one class ({train.classes[0]}); a classifier needs two or more. "
            f"Add a folder for each further class."
        )
    if train.classes != val.classes:
        only_train = sorted(set(train.classes) - set(val.classes))
        only_val = sorted(set(val.classes) - set(train.classes))
        raise DataError(
            f"{listing.root}: the classes of {val.folder.name}/ are not those of train/. "
            f"Only in train/: {some(only_train)}. Only in {val.folder.name}/: {some(only_val)}. "
            "Give both the same class folders, spelled the same."
        )


def list_split(folder: Path) -> SplitListing:
    """FOLDER/CLASS/*.jpg. Opens no file. Raises DataError as `list_class_folders` does."""
    top = list_folder(folder)
    if top.images:
        raise DataError(
            f"{folder}: {len(top.images):,} images lie directly in it ({os.fsdecode(top.images[0])}), "
            f"so their class is unknown. Move each into {folder}/CLASS/."
        )
    if not top.folders:
        raise DataError(f"{folder}: empty, no class folders in it. {LAYOUT}")
    names, mtimes, ignored, others = [], [], top.ignored, Counter(top.others)
    for entry in top.folders:
        path = folder / os.fsdecode(entry)
        mtimes.append(path.stat().st_mtime_ns)
        inside = list_folder(path)
        if inside.folders:
            raise DataError(
                f"{path}: a class folder must hold images only, and holds {len(inside.folders):,} folders "
                f"({some(map(os.fsdecode, inside.folders), 3)}). Move their images up into {path}, or the folders away."
            )
        if not inside.images:
            inside_it = f" ({text})" if (text := by_suffix(inside.others)) else ""
            raise DataError(
                f"{path}: no images in this class folder{inside_it}. Add some, or remove the folder from every split."
            )
        names.append(inside.images)
        ignored += inside.ignored
        others += inside.others
    return SplitListing(folder, [os.fsdecode(entry) for entry in top.folders], names, mtimes, ignored, others)


def _why_no_train(root: Path, folders: list[str], top: FolderNames, out: Path | None) -> str:
    if top.images:
        return (
            f"{root}: {len(top.images):,} images lie directly in it ({os.fsdecode(top.images[0])}) and there is no train/, "
            f"so their classes are unknown. {LAYOUT}"
        )
    if not folders:
        found = f"only {text}" if (text := by_suffix(top.others)) else "empty, there is nothing to train on"
        return f"{root}: {found}. {LAYOUT}"
    for name in folders:
        if (root / name / TRAIN_FOLDER).is_dir():
            return f"{root}: no train/ in it, but there is one in {root / name}. Use  --data {root / name}"
    if root.name in (TRAIN_FOLDER, *VAL_FOLDERS) and (root.parent / TRAIN_FOLDER).is_dir():
        return f"{root}: this is one split of a data set. Use the folder above:  --data {root.parent}"
    if _has_classes(root, folders):
        return (
            f"{root}: no train/ and no val/ in it, but folders with photos ({some(folders)}). If these are the classes, set a "
            f"fifth of each apart for validation; no photo is moved or copied:\n  {_split_command(root, out)}"
        )
    others = sum((list_folder(root / name).others for name in folders[:3]), Counter[str]())
    inside = f" In the first of them: {text}." if (text := by_suffix(others)) else ""
    return f"{root}: no train/ in it, only {some(folders)}.{inside} {LAYOUT}"


def _has_classes(root: Path, folders: list[str]) -> bool:
    """Whether the first folders hold photos themselves, and are no splits."""
    first = folders[:3]
    return (
        len(folders) > 1
        and not set(folders) & {*VAL_FOLDERS, "test"}
        and all(list_folder(root / name).images for name in first)
    )


def _why_no_val(root: Path, out: Path | None) -> str:
    return (
        f"{root}: no val/ (nor valid/ nor validation/), so nothing to measure on. To set a fifth of each class apart; no photo "
        f"is moved or copied:\n  {_split_command(root, out)}"
    )


def _split_command(root: Path, out: Path | None) -> str:
    return f"{prepare_command(root, out=out)} --val-fraction 0.2"
