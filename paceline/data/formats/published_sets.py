"""Check from names and counts, before any photo is opened, whether a data set is ImageNet-1k (ILSVRC 2012) or COCO 2017.

ImageNet. A label is a position in the sorted list of class folders, so one folder more, less or misnamed shifts all labels after
it, and validation photos in wrong folders score 0.1 percent without any error.
1,281,167 training images in 1000 classes, 732 to 1300 in each; 50,000 for validation, 50 in each class. imagenet_wnids.txt holds
the 1000 WordNet ids in sort order. A training file is named WNID_NUMBER.JPEG after its class.

COCO 2017. 118,287 training photos, 117,266 of them with at least one annotation, crowds included (those are what MLPerf's SSD
and Mask R-CNN train on), and 5,000 for validation. A score on a part of either is not a score on COCO 2017.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paceline._utils.errors import DataError
from paceline._utils.hashing import sha256
from paceline._utils.names import list_folder
from paceline._utils.text import join_names
from paceline.data.formats.annotations import Annotations
from paceline.data.formats.class_folders import VAL_FOLDERS, ClassFolderListing, SplitListing
from paceline.data.index.manifest import Split

WNID = re.compile(r"n\d{8}")
TRAIN_NAME = re.compile(rb"(n\d{8})_\d+\.")
VAL_NAME = re.compile(rb"ILSVRC2012_val_(\d{8})\.")
VAL_IMAGES = 50_000
# SHA-256 over the 50,000 validation labels as WordNet ids, one a line, in the order of the photos' numbers.
VAL_LABELS_SHA256 = "313fc3f23c864dde9183c9a368809065765dd1b657a6904fded44e3e46d34604"


@dataclass(frozen=True)
class ImagenetCounts:
    """Images of a split in all, and at least and at most in one class."""

    images: int
    fewest: int
    most: int


IMAGENET = {"train": ImagenetCounts(1_281_167, 732, 1300), "val": ImagenetCounts(VAL_IMAGES, 50, 50)}


def official_wnids() -> list[str]:
    """The 1000 class folders of ImageNet-1k in label order."""
    return Path(__file__).with_name("imagenet_wnids.txt").read_text(encoding="ascii").split()


def part_of_imagenet(classes: Sequence[str], splits: Mapping[str, Split]) -> str:
    """ "ImageNet-1k: 10 of ..." where all classes are ImageNet's; "" for the whole, other classes, and what is only scored on."""
    if "train" not in splits or not set(classes) <= set(official_wnids()):
        return ""
    images = {name: splits[name].images if name in splits else 0 for name in IMAGENET}
    if all(images[name] == counts.images for name, counts in IMAGENET.items()):
        return ""
    return (
        f"ImageNet-1k: {len(classes):,} of 1,000 classes, {images['train']:,} of {IMAGENET['train'].images:,} training "
        f"images, {images['val']:,} of {IMAGENET['val'].images:,} validation images"
    )


def check_flat_val(root: Path) -> None:
    """Raises DataError where val/ is as the official archive unpacks: all photos in one folder."""
    for folder in (root / name for name in VAL_FOLDERS):
        if not folder.is_dir():
            continue
        if flat := [name for name in list_folder(folder).images if VAL_NAME.match(name)]:
            raise DataError(
                f"{folder}: has {len(flat):,} validation images directly in it, as in the official archive. They must be "
                "sorted into class folders by the labels in ImageNet's development kit:\n  paceline prepare imagenet "
                f"{shlex.quote(str(root))} --devkit ILSVRC2012_devkit_t12.tar.gz"
            )


def check_imagenet(listing: ClassFolderListing) -> None:
    """Raises DataError for other or missing classes, photos under a wrong class, too many or too few photos in a class or in all."""
    wnids = official_wnids()
    for split in listing.splits.values():
        _check_class_names(split, wnids)
    _check_train_names(listing.splits["train"])
    for name, counts in IMAGENET.items():
        _check_counts(listing.splits[name], counts)
    _check_val_labels(listing.splits["val"])


def _check_class_names(split: SplitListing, wnids: list[str]) -> None:
    if not any(WNID.fullmatch(name) for name in split.classes):
        raise DataError(
            f"{split.folder}: its {len(split.classes):,} class folders are not named by WordNet id "
            f"({join_names(split.classes, 3)}). Labels follow the sorted folder names, so pretrained weights and published "
            "labels would not match. Rename the folders to ids such as n01440764."
        )
    if unknown := sorted(set(split.classes) - set(wnids)):
        raise DataError(
            f"{split.folder}: {len(unknown):,} folders are not classes of ImageNet-1k: {join_names(unknown)}. They would "
            "shift every label after them. Move them away. For another dataset, use `paceline prepare folder`."
        )
    if missing := sorted(set(wnids) - set(split.classes)):
        raise DataError(
            f"{split.folder}: {len(missing):,} of ImageNet's 1000 classes are missing: {join_names(missing)}. Copy them "
            "again. For a subset, use `paceline prepare folder`."
        )


def _check_train_names(split: SplitListing) -> None:
    for label, names in zip(split.classes, split.names):
        for name in names:
            named = TRAIN_NAME.match(name)
            if named and named[1].decode() != label:
                raise DataError(
                    f"{split.folder / label / os.fsdecode(name)}: an image of {named[1].decode()} is in {label}, so the "
                    "labels are shuffled. Unpack the training archives again, each into the folder with its name."
                )


def _check_counts(split: SplitListing, counts: ImagenetCounts) -> None:
    sizes = {label: len(names) for label, names in zip(split.classes, split.names)}
    title = f"{split.folder}: {split.images:,} images, but ImageNet has {counts.images:,}"
    if crowded := [f"{label} ({size:,})" for label, size in sizes.items() if size > counts.most]:
        why = "Files were unpacked or copied twice. Remove the extra copies."
        raise DataError(f"{title}, and more than {counts.most:,} in {join_names(crowded)}. {why}")
    if sparse := [f"{label} ({size:,})" for label, size in sizes.items() if size < counts.fewest]:
        why = "The copy is incomplete. Unpack or copy these classes again."
        raise DataError(f"{title}, and fewer than {counts.fewest:,} in {join_names(sparse)}. {why}")
    if split.images != counts.images:
        what = "Files are missing" if split.images < counts.images else "There are extra files"
        raise DataError(f"{title}, although no class is out of bounds. {what}. Unpack or copy the split again.")


def _check_val_labels(split: SplitListing) -> None:
    label_of = {
        int(m[1]): label for label, names in zip(split.classes, split.names) for m in map(VAL_NAME.match, names) if m
    }
    if len(label_of) != VAL_IMAGES:
        return  # renamed photos, whose official label is unknown
    lines = "".join(f"{label_of[number]}\n" for number in sorted(label_of))
    if sha256(lines) != VAL_LABELS_SHA256:
        raise DataError(
            f"{split.folder}: the validation images are not in their official class folders, so accuracy would be at "
            "chance level. Unpack the official archive again, and sort it with --devkit."
        )


COCO_FILES = {"train": "instances_train2017.json", "val": "instances_val2017.json"}
# SHA-256 over the 80 categories in the order of their ids, "ID NAME" and a line break each.
CATEGORIES_SHA256 = "4b2d7644cf2470e0419216f5d30ce11a569c8784aa07ca9f5ab36c49b44aedc4"


@dataclass(frozen=True)
class CocoCounts:
    """Photos of a set."""

    train: int
    with_objects: int  # of them
    val: int

    def __str__(self) -> str:
        return f"{self.with_objects:,} training images with objects (of {self.train:,}) and {self.val:,} validation images"


COCO2017 = CocoCounts(118_287, 117_266, 5_000)


def coco2017_counts(splits: Mapping[str, Annotations]) -> CocoCounts | None:
    """The counts of a part or the whole of COCO 2017; None for other classes, or annotations under other names."""
    for split, one in splits.items():
        lines = "".join(f"{category} {name}\n" for category, name in sorted(one.names.items()))
        digest = sha256(lines)
        if one.source.name != COCO_FILES.get(split) or digest != CATEGORIES_SHA256:
            return None
    train, val = splits.get("train"), splits.get("val")
    return CocoCounts(
        0 if train is None else len(train.file_names),
        0 if train is None else len(np.unique(train.object_rows)),
        0 if val is None else len(val.file_names),
    )


def part_of_coco2017(splits: Mapping[str, Annotations]) -> str:
    """ "COCO 2017: 282 of ..." for a part of it; "" for the whole, another set, and what is only scored on."""
    counts = coco2017_counts(splits)
    if counts is None or counts == COCO2017 or "train" not in splits:
        return ""
    return (
        f"COCO 2017: {counts.with_objects:,} of {COCO2017.with_objects:,} training images with objects, {counts.val:,} "
        f"of {COCO2017.val:,} validation images"
    )


def check_coco2017(root: Path, splits: Mapping[str, Annotations]) -> None:
    """Raises DataError where it is not the whole of COCO 2017."""
    counts = coco2017_counts(splits)
    if counts is None:
        raise DataError(
            f"{root}: not COCO 2017, which has annotations/{COCO_FILES['train']} and {COCO_FILES['val']} with its 80 "
            "classes. For another dataset, remove --expect coco2017."
        )
    if counts != COCO2017:
        raise DataError(
            f"{root}: {counts}; COCO 2017 has {COCO2017}. Download the rest (`paceline download coco2017 DIR`), or remove "
            "--expect coco2017 to train on this subset."
        )
