"""What is refused, noted and counted of annotated boxes: before a photo is opened, and by the sizes of the photos.

A photo that lies on its side has one size as it is stored and another as it is shown. The size that its annotations name is the
frame that its boxes were drawn in, and how a recipe must read it: `--input.exif ignore` (as stored) or `apply` (as shown).
YOLO's fractions name no sizes, squares and photos that are turned by half have only one: their frame is unknown.

Letters: N images of one split.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np

from paceline._utils.errors import DataError
from paceline._utils.names import OTHER_PICTURES, format_suffixes, get_suffix, is_image_name, walk_visible
from paceline._utils.text import join_names
from paceline.data.formats.annotations import Annotations
from paceline.data.formats.class_folders import find_duplicate
from paceline.data.formats.layouts import DetectionLayout, Layout
from paceline.data.prepare.verify_images import Inspection
from paceline.data.transforms.exif import UPRIGHT, orientations, swaps_sides

if TYPE_CHECKING:
    from paceline.data.prepare.box_source import BoxRequest

Reading = Literal["", "apply", "ignore"]
# Of each split, its annotations and the rows of its files in an Inspection.
Rows = Mapping[str, tuple[Annotations, np.ndarray]]


def check_splits(source: DetectionLayout, request: BoxRequest, command: str) -> None:
    """Raises DataError where a split is missing that training needs, or one would be set apart beside one that is there."""
    title = request.annotations or str(source.root)
    if "train" not in source.splits:
        raise DataError(f"{title}: no training images found, only {join_names(source.splits)}.")
    if "val" not in source.splits and not request.val_fraction:
        remedy = "Pass some with --val-images-dir and --val-annotations"
        if not request.images_dir:
            remedy = {
                "coco": "Add some (annotations/instances_val2017.json with val2017/, or valid/_annotations.coco.json)",
                "voc": "List some in ImageSets/Main/val.txt",
                "yolo": "List some in data.yaml (val: images/val)",
            }[source.layout]
        raise DataError(
            f"{title}: validation images are required. {remedy}, or use 20% of the training images for validation:\n  "
            f"{command} --val-fraction 0.2"
        )
    if "val" in source.splits and request.val_fraction:
        raise DataError(f"{title}: already has validation images. Remove --val-fraction.")
    if request.group_by and not request.val_fraction:
        raise DataError("--group-by: requires --val-fraction, because it groups images for the validation split.")


def class_names(source: DetectionLayout, request: BoxRequest, command: str) -> dict[int, str]:
    """-> category id -> name for all splits.

    Raises DataError where the splits call one id differently, or val has objects of a class that train does not know.
    """
    train = source.splits.get("train", source.splits.get("val"))
    assert train is not None
    val = source.splits.get("val", train)
    for category in sorted(set(train.names) & set(val.names)):
        if train.names[category] != val.names[category]:
            raise DataError(
                f"category id {category} is {train.names[category]!r} in {train.source}, but {val.names[category]!r} in "
                f"{val.source}. Export both files with the same classes."
            )
    names = {**val.names, **train.names}
    twice = find_duplicate(names.values())
    if twice is not None:
        ids = [category for category, name in names.items() if name == twice]
        raise DataError(
            f"{twice!r} has category id {ids[1]} in {train.source}, but {ids[0]} in {val.source}. Export both with the "
            "same classes."
        )
    unknown = [category for category in np.unique(val.categories).tolist() if category not in train.names]
    if unknown and request.on_class_mismatch == "error":
        raise DataError(
            f"{val.source}: has objects of class {join_names(repr(names[category]) for category in unknown)}, which "
            f"{train.source} does not have, so they cannot be learned. Export both files with the same classes, or keep "
            f"the class without training images:\n  {command} --on-class-mismatch warn"
        )
    return names


def count_unlisted(source: DetectionLayout) -> tuple[dict[str, int], list[str]]:
    """-> image files in each folder of images that no split lists, and notes on pictures there that no reader takes.

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
        for folder, _, names in walk_visible(split.images_folder):
            if folder in seen:
                continue
            seen.add(folder)
            for name in names:
                if os.path.join(folder, name) in listed:
                    continue
                if is_image_name(os.fsencode(name)):
                    counts[key] += 1
                elif (suffix := get_suffix(os.fsencode(name))) in OTHER_PICTURES:
                    others[suffix] += 1
        if left_out := format_suffixes(others):
            notes.append(f"{key}: ignored {left_out}")
    return counts, notes


def frame_sizes(rows: np.ndarray, result: Inspection, reading: Reading) -> tuple[np.ndarray, np.ndarray]:
    """(N,) heights and (N,) widths in pixels of the photos as shown ("apply"), or else as stored.

    rows  (N,) of the files in `found`
    """
    heights, widths = result.heights[rows], result.widths[rows]
    side = swaps_sides(orientations(result.flags[rows])) & (reading == "apply")
    return np.where(side, widths, heights), np.where(side, heights, widths)


def _fits(annotations: Annotations, rows: np.ndarray, result: Inspection, reading: Reading) -> np.ndarray:
    """(N,) bool: the sizes are those that the annotations name; a side that they do not name fits anything."""
    heights, widths = frame_sizes(rows, result, reading)
    same_height = (annotations.heights == 0) | (annotations.heights == heights)
    return same_height & ((annotations.widths == 0) | (annotations.widths == widths))


def check_sizes(annotations: Annotations, rows: np.ndarray, result: Inspection) -> None:
    """Boxes are in pixels of the size that the annotations name, so the files must have it, stored or shown.

    Raises DataError naming the first that has neither.
    """
    wrong = ~_fits(annotations, rows, result, "ignore") & ~_fits(annotations, rows, result, "apply")
    if not wrong.any():
        return
    i = int(np.flatnonzero(wrong)[0])
    raise DataError(
        f"{annotations.images_folder / annotations.file_names[i]}: has {result.widths[rows][i]} x "
        f"{result.heights[rows][i]} pixels, but {annotations.source} has {annotations.widths[i]} x "
        f"{annotations.heights[i]}. This applies to {int(wrong.sum()):,} of {len(wrong):,} images, whose boxes would be in "
        "wrong positions. Use the images that were annotated, at their size."
    )


def detect_rotation_handling(layout: Layout, splits: Rows, result: Inspection) -> Reading:
    """Which reading of rotated photos the annotations fit, whose sizes were checked; "" where both.

    Raises DataError where some fit one reading alone, and some the other.
    """
    if layout == "yolo":
        return ""  # the sizes are the files' own
    only: dict[str, list[str]] = {"apply": [], "ignore": []}
    for split, rows in splits.values():
        stored, shown = _fits(split, rows, result, "ignore"), _fits(split, rows, result, "apply")
        for reading, fits in (("apply", shown & ~stored), ("ignore", stored & ~shown)):
            only[reading] += [str(split.images_folder / split.file_names[i]) for i in np.flatnonzero(fits)]
    if only["apply"] and only["ignore"]:
        raise DataError(
            f"{only['apply'][0]}: no recipe reads all images with an EXIF rotation correctly. The annotations of "
            f"{len(only['apply']):,} images match the rotated image (this one is the first), and those of "
            f"{len(only['ignore']):,} match the stored image ({only['ignore'][0]} is the first). Store all images upright "
            "and export the annotations again:\n  mogrify -auto-orient FILES"
        )
    return "apply" if only["apply"] else "ignore" if only["ignore"] else ""


def notes_on_rotation(layout: Layout, splits: Rows, result: Inspection, reading: Reading) -> list[str]:
    """A line for people where photos carry an EXIF rotation: how many, and which recipes read them right."""
    names = [
        split.file_names[i]
        for split, rows in splits.values()
        for i in np.flatnonzero(orientations(result.flags[rows]) != UPRIGHT)
    ]
    if not names:
        return []
    if reading == "apply":
        what = (
            "the annotations match the rotated images, so train with --input.exif apply (as in finetune and demo recipes)"
        )
    elif reading == "ignore":
        what = "the annotations match the images as stored, so train with --input.exif ignore, as the published recipes do"
    else:
        why = "YOLO labels have no image sizes" if layout == "yolo" else "the annotated image sizes fit both orientations"
        what = (
            f"{why}. Open check.html, which shows the images upright. If the boxes are correct there, train with "
            "--input.exif apply (as the finetune and demo recipes do), otherwise with --input.exif ignore"
        )
    carry = "image has" if len(names) == 1 else "images have"
    return [f"{len(names):,} {carry} an EXIF rotation ({join_names(names)}); {what}"]
