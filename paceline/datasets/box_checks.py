"""What is refused, noted and counted of annotated boxes before a photo is opened."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from paceline.config.errors import DataError
from paceline.config.image_name import OTHER_PICTURES, by_suffix, is_image_name, suffix_of
from paceline.config.printable import some
from paceline.datasets.formats.class_names import first_twice
from paceline.datasets.formats.layouts import BoxSet

if TYPE_CHECKING:
    from paceline.datasets.box_source import BoxRequest


def check_splits(source: BoxSet, request: BoxRequest, command: str) -> None:
    """Raises DataError where a split is missing that training needs, or one would be set apart beside one that is there."""
    if "train" not in source.splits:
        raise DataError(f"{_called(source, request)}: no training images in it, only {some(source.splits)}.")
    if "val" not in source.splits and not request.val_fraction:
        raise DataError(
            f"{_called(source, request)}: no validation images, so nothing to measure on. {_where_val(request)}, or set a "
            f"fifth of the training images apart:\n  {command} --val-fraction 0.2"
        )
    if "val" in source.splits and request.val_fraction:
        raise DataError(f"{_called(source, request)}: it has validation images of its own; leave --val-fraction out.")
    if request.val_group and not request.val_fraction:
        raise DataError(
            "--val-group without --val-fraction: it groups photos for a validation split that is set apart."
        )


def _called(source: BoxSet, request: BoxRequest) -> str:
    """What was named: where that are files, the one of the annotations."""
    return request.annotations or str(source.root)


def _where_val(request: BoxRequest) -> str:
    """Where validation images would be named, in words that fit what was prepared."""
    if request.images:
        return "Name some (--val-images, --val-annotations)"
    return {
        "coco": "Add some (annotations/instances_val2017.json with val2017/, or valid/_annotations.coco.json)",
        "voc": "Name some in ImageSets/Main/val.txt",
        "yolo": "Name some in data.yaml (val: images/val)",
    }.get(request.layout, "Add some")


def class_names(source: BoxSet, request: BoxRequest, command: str) -> tuple[dict[int, str], list[str]]:
    """-> category id -> name for all splits, and notes.

    Raises DataError where the splits call one id differently, or val has objects of a class that train does not know.
    """
    train = source.splits.get("train", source.splits.get("val"))
    assert train is not None
    val = source.splits.get("val", train)
    for category in sorted(set(train.names) & set(val.names)):
        if train.names[category] != val.names[category]:
            raise DataError(
                f"category id {category} is {train.names[category]!r} in {train.source} and {val.names[category]!r} in "
                f"{val.source}. Export both with the same classes."
            )
    names = {**val.names, **train.names}
    twice = first_twice(names.values())
    if twice is not None:
        ids = [category for category, name in names.items() if name == twice]
        raise DataError(
            f"{twice!r} has category id {ids[1]} in {train.source} and {ids[0]} in {val.source}. "
            "Export both with the same classes."
        )
    notes = []
    in_train = set(np.unique(train.categories).tolist())
    alone = [category for category in np.unique(val.categories).tolist() if category not in in_train]
    unknown = [category for category in alone if category not in train.names]
    if unknown and request.on_class_mismatch == "refuse":
        raise DataError(
            f"{val.source}: it has objects of class {some(repr(names[category]) for category in unknown)}, and "
            f"{train.source} has no such class: it could never be learned. Export both with the same classes, or keep it "
            f"among the classes as one that is never found:\n  {command} --on-class-mismatch warn"
        )
    if alone:
        called = some(names[category] for category in alone)
        notes.append(f"classes with objects in val and none in train, which cannot be learned: {called}")
    return names, notes


def count_unlisted(source: BoxSet) -> tuple[dict[str, int], list[str]]:
    """-> image files in each folder of images that no split speaks of, and notes on pictures there that no reader takes.

    A shared folder counts for its first split.
    """
    listed = {
        os.path.join(annotations.images_folder, name)
        for annotations in source.splits.values()
        for name in annotations.file_names
    }
    counts, seen, notes = {}, set(), []
    for key, split in source.splits.items():
        counts[key] = 0
        others = Counter[str]()
        for folder, _, names in os.walk(split.images_folder):
            if folder not in seen:
                seen.add(folder)
                for name in names:
                    if os.path.join(folder, name) in listed:
                        continue
                    if is_image_name(os.fsencode(name)):
                        counts[key] += 1
                    elif not name.startswith(".") and (suffix := suffix_of(os.fsencode(name))) in OTHER_PICTURES:
                        others[suffix] += 1
        if left_out := by_suffix(others):
            notes.append(f"{key}: left out {left_out}")
    return counts, notes
