"""Photos that have a class each as a source, in class folders or in containers, and their manifest.

    ROOT/{train,val}/CLASS/*.jpg, or ROOT/CLASS/*.jpg of which a validation split is set apart

Letters: n photos of one split, K classes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from paceline._utils.errors import DataError
from paceline._utils.names import format_suffixes
from paceline._utils.text import join_names
from paceline.data.formats.class_folders import (
    ClassFolderListing,
    SplitListing,
    check_classes,
    list_class_folders,
    list_unsplit,
    read_class_names,
)
from paceline.data.formats.published_sets import check_flat_val, check_imagenet, part_of_imagenet
from paceline.data.index.manifest import FILES, Expect, Manifest, prepare_command
from paceline.data.prepare.pipeline import (
    Arrays,
    ListedDataset,
    OnFlaw,
    choose_manifest_folder,
    describe_split,
    suggest_other_folder,
    write_prepared,
)
from paceline.data.prepare.val_split import NO_SPLIT, ValSplit, check_fraction, group_units, stratified_split
from paceline.data.prepare.verify_images import ImagesToVerify, Inspection


@dataclass(frozen=True, kw_only=True)
class ClassSource(ListedDataset):
    """Photos with a class each. `all_photos` and `labels` are in the order of the listing's splits."""

    listing: ClassFolderListing
    all_photos: ImagesToVerify
    labels: dict[str, np.ndarray]  # (n,) int64 of each split
    class_names: tuple[str, ...] | None
    expect: Expect = "any"
    val: ValSplit = NO_SPLIT
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        listing: ClassFolderListing,
        expect: Expect = "any",
        val: ValSplit = NO_SPLIT,
        on_unreadable: OnFlaw = "error",
        out: Path | None = None,
    ) -> ClassSource:
        """Class folders that were listed, to go to `out`; where they are only scored on, no command leaves photos out."""
        root, splits = listing.root, listing.splits
        request = asdict(val) if val.val_fraction else None
        return cls(
            root=root,
            command=prepare_command(root, expect, request, out) if "train" in splits else "",
            remedy=suggest_other_folder(prepare_command(root, expect, request)) if out is not None else "",
            on_unreadable=on_unreadable,
            listing=listing,
            all_photos=ImagesToVerify(root, [name for split in splits.values() for name in split.relative_names(root)]),
            labels={
                key: np.repeat(np.arange(len(split.names)), list(map(len, split.names))) for key, split in splits.items()
            },
            class_names=read_class_names(root, tuple(next(iter(splits.values())).classes)),
            stored=request,
            expect=expect,
            val=val,
        )

    @property
    def images(self) -> int:
        return len(self.all_photos.names)

    def photos(self) -> ImagesToVerify:
        """The listed ones."""
        return self.all_photos

    def manifest(self, photos: ImagesToVerify, result: Inspection) -> tuple[dict[str, Any], dict[str, Arrays]]:
        """Raises DataError where a class, or all of a container, has no photo left, or no validation split can be made."""
        if photos.kind != FILES and len(result.reasons) == len(photos.names):
            raise DataError(f"{photos.title(0)}: {result.reasons[0]}. None of {len(photos.names):,} images can be used.")
        splits, arrays, notes, first = {}, {}, list(self.notes), 0
        for key, split in self.listing.splits.items():
            rows = np.arange(first, first + len(self.labels[key]))
            first += len(rows)
            if left_out := format_suffixes(split.others):
                notes.append(f"{key}: ignored {left_out}")
            is_good = ~np.isin(rows, list(result.reasons))
            good, labels = rows[is_good], self.labels[key][is_good]
            counts = np.bincount(labels, minlength=len(split.classes))
            if photos.kind == FILES and not counts.all():
                folder = split.folder / split.classes[counts.argmin()]
                raise DataError(f"{folder}: none of its images can be decoded. Replace them.")
            parts = {key: np.ones(len(good), bool)}
            if self.val.val_fraction:
                names = [photos.names[i] for i in good.tolist()]
                in_val, more = split_validation(names, labels, result.digests[good], self.val, self.root, split)
                notes += more
                parts = {"train": ~in_val, "val": in_val}
            for part, chosen in parts.items():
                own = part == key  # what is no photo, or none that can be used, is counted once
                numbers, arrays[part] = describe_split(
                    photos,
                    result,
                    good[chosen],
                    labels[chosen],
                    folder=split.folder,
                    per_class=np.bincount(labels[chosen], minlength=len(split.classes)),
                    left_out=rows[~is_good] if own else rows[:0],
                )
                ignored = split.ignored if own else 0
                splits[part] = replace(numbers, ignored=ignored, directory_mtimes=tuple(split.mtimes))
        classes = tuple(next(iter(self.listing.splits.values())).classes)
        fields = dict(
            kind="class-folder",
            expect=self.expect,
            classes=classes,
            class_names=self.class_names,
            splits=splits,
            notes=tuple(notes),
            part_of=part_of_imagenet(classes, splits) if self.expect == "any" else "",
        )
        return fields, arrays


def prepare_folder(
    root: Path,
    *,
    out: Path | None = None,
    expect: Expect = "any",
    workers: int | None = None,
    on_unreadable: OnFlaw = "error",
    val: ValSplit = NO_SPLIT,
    progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """Verify every image under `root` and write its manifest and index; the returned manifest's `folder` says where.

    out            None: `root` itself, or a folder in the cache (see choose_place)
    expect         "imagenet" also checks for ImageNet-1k's very classes and counts
    workers        threads; None: one for each usable core
    val            how a validation split is set apart, where ROOT has train/CLASS or CLASS folders alone
    on_unreadable  "skip" leaves files that cannot be decoded out, and lists them in the manifest
    progress       called with (files done, files in all)
    Raises DataError for every flaw of layout or file; then no manifest is written.
    """
    source = class_folders(Path(os.path.realpath(root)), expect, val, on_unreadable, out)
    return write_prepared(source, choose_class_manifest_folder(source, out), workers, progress)


def class_folders(
    root: Path, expect: Expect = "any", val: ValSplit = NO_SPLIT, on_unreadable: OnFlaw = "error", out: Path | None = None
) -> ClassSource:
    """The class folders of `root`, as `prepare_folder` takes them. Raises DataError for every flaw of layout."""
    if val.val_fraction:
        check_fraction(val.val_fraction)
        if expect == "imagenet":
            raise DataError(
                f"{root}: ImageNet has 50,000 validation images. Remove --val-fraction, or prepare the images as ordinary "
                f"class folders:\n  {prepare_command(root, 'any', asdict(val), out)}"
            )
        listing = list_unsplit(root, out)
    elif val.group_by:
        raise DataError("--group-by: requires --val-fraction, because it groups images for the validation split.")
    else:
        check_flat_val(root)
        listing = list_class_folders(root, out)
        if expect == "imagenet":
            check_imagenet(listing)
    check_classes(listing)
    return ClassSource.of(listing, expect, val, on_unreadable, out)


def choose_class_manifest_folder(source: ClassSource, out: Path | None) -> Path:
    """Where its manifest goes: not among folders of which each is a class. Raises DataError as `choose_manifest_folder` does."""
    return choose_manifest_folder(source.root, out, of_classes=source.listing.splits["train"].folder == source.root)


def split_validation(
    names: list[bytes], labels: np.ndarray, digests: np.ndarray, val: ValSplit, root: Path, split: SplitListing
) -> tuple[np.ndarray, list[str]]:
    """-> (n,) bool, the photos of val, and notes for people. Raises DataError where a side would be empty."""
    prefix = os.path.join(os.path.relpath(split.folder, root), "").removeprefix("./")
    units = group_units([os.fsdecode(name).removeprefix(prefix) for name in names], val, digests)
    in_val = stratified_split(units, labels, val.val_fraction)
    if in_val.all() or not in_val.any():
        raise DataError(
            f"{split.folder}: {len(names):,} images in {len(units.numbers):,} groups cannot be divided into train and val. "
            "Add images, or use smaller groups (--group-by)."
        )
    notes = []
    if units.alone:
        notes.append(f"{units.alone:,} images do not match --group-by and form their own groups in the validation split")
    lacking = np.flatnonzero(np.bincount(labels[in_val], minlength=len(split.classes)) == 0)
    if len(lacking):
        named = join_names(split.classes[label] for label in lacking)
        notes.append(f"classes without a validation image, because they have one image or one group: {named}")
    return in_val, notes
