"""Class folders -> manifest.json and index: every file is decoded once, in parallel.

    ROOT/{train,val}/CLASS/*.jpg   ->   PLACE/manifest.json, PLACE/index/<hash>/*.npy
PLACE is `out`, else ROOT where that may be written to and is no folder of classes itself, else a folder in the cache. The
manifest is written last, so it is there only when all is done. Until then PLACE/prepare.journal holds what was verified,
for the next attempt.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import PIL

from paceline.config.errors import DataError
from paceline.data.freshness import check_fresh, refuse_stale_containers
from paceline.data.index import delete_old_indexes, index_damage, open_split, write_index
from paceline.data.manifest import (
    FILE_NAME,
    Expect,
    Manifest,
    cache_place,
    is_ours,
    manifest_places,
    prepare_again,
    prepare_command,
)
from paceline.prepare import journal, verify
from paceline.prepare.class_names import names_changed, read_class_names
from paceline.prepare.class_splits import (
    UNREADABLE_LIST,
    describe_class_split,
    readable,
    relative_names,
    set_apart,
    why_unreadable,
)
from paceline.prepare.imagenet import check_flat_val, check_imagenet, official_wnids, part_of_imagenet
from paceline.prepare.inspection import PhotoFiles, inspect_photos
from paceline.prepare.listing import (
    TRAIN_FOLDER,
    Listing,
    check_classes,
    list_class_folders,
    list_unsplit,
)
from paceline.prepare.val_groups import ValSplit, check_fraction


def prepare_folder(
    root: Path,
    *,
    out: Path | None = None,
    expect: Expect = "any",
    workers: int | None = None,
    on_unreadable: Literal["refuse", "skip"] = "refuse",
    val: ValSplit | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """Verify every image under `root` and write its manifest and index; the returned manifest's `folder` says where.

    expect         "imagenet" also checks for ImageNet-1k's very classes and counts
    workers        threads; None: one for each usable core
    val            how a validation split is set apart, where ROOT has train/CLASS or CLASS folders alone
    on_unreadable  "skip" leaves files that cannot be decoded out, and lists them in the manifest
    progress       called with (files done, files in all)
    Files that an earlier prepare verified, finished or killed, are not decoded again while size and time are the same.
    Raises DataError for every flaw of layout or file; then no manifest is written.
    """
    root, val = Path(os.path.realpath(root)), val or ValSplit()
    listing = _list(root, expect, val)
    place = choose_place(root, out, of_classes=listing.splits["train"].folder == root)
    try:
        place.mkdir(parents=True, exist_ok=True)
        return _prepare(listing, place, expect, workers, on_unreadable, val, progress)
    except OSError as error:
        raise DataError(
            f"{place}: the index cannot be written here ({error.strerror or error}). "
            f"Choose another folder:  {prepare_command(root, expect, _request(val))} --out DIR"
        ) from None


def ensure_prepared(root: Path, *, small: int = 20_000, say: Callable[[str], None]) -> Path:
    """The folder of a manifest that matches the files of `root`; a small data set is prepared for it, into the cache.

    root    a data set's root, or a folder that prepare wrote to
    small   up to so many images are prepared without asking; beyond, DataError with the command to run
    say     takes one line, when something is prepared
    `root` itself is never written to. Raises DataError as `prepare_folder` does.
    """
    why = "no manifest yet"
    source, val = Path(os.path.realpath(root)), ValSplit()
    places = manifest_places(root)
    for path in places:
        try:
            manifest = Manifest.load(path)
        except DataError as error:
            if not (root / TRAIN_FOLDER).is_dir():
                raise  # a folder that prepare wrote to; only its manifest knew where the images are
            why = str(error)
            continue
        if manifest.kind != "class-folder":
            why = "its manifest is one of boxes, not of class folders"
            source = manifest.root_path
            continue
        refuse_half(manifest)
        stale = check_fresh(manifest) or names_changed(manifest)
        if stale is None:
            return path.parent
        why, source = f"its manifest is out of date: {stale}", manifest.root_path
        refuse_stale_containers(manifest, why)
        val = _val_of(manifest)
        # Where `root` is a folder that prepare wrote to, a newer manifest of the same images may lie in the cache.
        places.extend(other for other in manifest_places(source) if other not in places)
    listing = _list(source, "any", val)
    if listing.images > small:
        looks_official = len(set(official_wnids()) & set(listing.splits["train"].classes)) > 900
        command = prepare_command(source, "imagenet" if looks_official else "any", _request(val))
        raise DataError(f"{source}: {listing.images:,} images, {why}. Verify them once, before training:\n  {command}")
    place = cache_place(source)
    say(f"{source}: {why}; verifying its {listing.images:,} images once (kept in {place})")
    return prepare_folder(source, out=place, val=val).folder


def refuse_half(manifest: Manifest) -> None:
    """Raises DataError where a split is missing that training needs."""
    if "train" not in manifest.splits:
        raise DataError(f"{manifest.folder}: holds a split that is only scored on, nothing to train on.")
    if "val" not in manifest.splits:
        raise DataError(
            f"{manifest.folder}: no validation photos, so nothing to measure on. Prepare it again with --val FILE..., or with a "
            f"fifth of the photos set apart:\n  {prepare_again(manifest)} --val-fraction 0.2"
        )


def prepare_listing(listing: Listing, place: Path) -> Manifest:
    """Verify the files of a listing and write manifest and index to `place`. Raises DataError as `prepare_folder` does."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        return _prepare(listing, place, "any", None, "refuse", ValSplit(), None)
    except OSError as error:
        raise DataError(
            f"{place}: the index cannot be written here ({error.strerror or error}). "
            "Name another cache folder:  PACELINE_CACHE=DIR"
        ) from None


def _val_of(manifest: Manifest) -> ValSplit:
    """Raises DataError where it was written by a version with other flags."""
    try:
        return ValSplit(**(manifest.request or {}))
    except TypeError:
        raise DataError(
            f"{manifest.folder}: prepared by another version of paceline. Delete its manifest.json and prepare it again."
        ) from None


def _request(val: ValSplit) -> dict[str, Any] | None:
    return asdict(val) if val.val_fraction else None


def _list(root: Path, expect: Expect, val: ValSplit) -> Listing:
    if val.val_fraction:
        check_fraction(val.val_fraction)
        if expect == "imagenet":
            raise DataError(
                f"{root}: ImageNet brings 50,000 validation photos; leave --val-fraction out, or take the photos as class "
                f"folders of any kind:\n  {prepare_command(root, 'any', _request(val))}"
            )
        listing = list_unsplit(root)
        check_classes(listing)
        return listing
    if val.val_group:
        raise DataError(
            "--val-group without --val-fraction: it groups photos for a validation split that is set apart."
        )
    check_flat_val(root)
    listing = list_class_folders(root)
    if expect == "imagenet":
        check_imagenet(listing)
    check_classes(listing)
    return listing


def choose_place(root: Path, out: Path | None, *, of_classes: bool = False) -> Path:
    """Where the manifest of `root` goes.

    of_classes  each folder in `root` is a class, so nothing may be added to it
    Raises DataError where another tool's manifest.json lies there.
    """
    # Mode bits too: root may write anywhere, and should not where the owner took the right from everyone.
    writable = root.stat().st_mode & 0o222 and os.access(root, os.W_OK | os.X_OK)
    free = writable and not of_classes
    place = Path(os.path.realpath(out)) if out is not None else root if free else cache_place(root)
    if of_classes and place.is_relative_to(root):
        raise DataError(f"--out {out}: each folder in {root} is a class. Choose a folder outside of it.")
    manifest = place / FILE_NAME
    if manifest.exists() and not is_ours(manifest):
        raise DataError(
            f"{manifest}: not written by paceline, so it is not replaced. Choose another folder with --out DIR."
        )
    return place


def _prepare(
    listing: Listing,
    place: Path,
    expect: Expect,
    workers: int | None,
    on_unreadable: Literal["refuse", "skip"],
    val: ValSplit,
    progress: Callable[[int, int], None] | None,
) -> Manifest:
    names = [name for split in listing.splits.values() for name in relative_names(listing.root, split)]
    photos = PhotoFiles(listing.root, names)
    previous = previous_manifest(place, listing.root)
    found = inspect_photos(
        photos,
        journal=place / journal.FILE_NAME,
        known=known_facts(previous) if previous is not None else (),
        workers=workers,
        progress=progress,
    )
    if found.reasons and on_unreadable == "refuse":
        scored = listing.splits.keys() == {"val"}  # only scored on: no command leaves photos out
        command = "" if scored else prepare_command(listing.root, expect, _request(val))
        raise DataError(why_unreadable(photos, found.reasons, place, command))
    splits, arrays, notes, first = {}, {}, [], 0
    for key, split in listing.splits.items():
        records = range(first, first + split.images)
        rows, labels = readable(split, found, records)
        parts = {key: np.ones(len(rows), bool)}
        if val.val_fraction:
            named = [names[i] for i in rows]
            in_val, notes = set_apart(named, labels, found.digests[rows], val, listing.root, split)
            parts = {"train": ~in_val, "val": in_val}
        for part, chosen in parts.items():
            left_out = [i for i in records if i in found.reasons] if part == key else []
            splits[part], arrays[part] = describe_class_split(
                split, photos, found, rows[chosen], labels[chosen], left_out
            )
            if part != key:  # entries that are no photos are counted once
                splits[part] = replace(splits[part], ignored=0)
        first += split.images
    classes = tuple(next(iter(listing.splits.values())).classes)
    manifest = Manifest(
        kind="class-folder",
        expect=expect,
        root="." if place == listing.root else str(listing.root),
        classes=classes,
        class_names=read_class_names(listing.root, classes),
        index=write_index(place, arrays),
        splits=splits,
        made_by=f"Pillow {PIL.__version__}",
        folder=place,
        request=_request(val),
        notes=tuple(notes),
        part_of=part_of_imagenet(classes, splits) if expect == "any" else "",
    )
    manifest.save()
    delete_old_indexes(place, keep={manifest.index} | ({previous.index} if previous is not None else set()))
    for left_over in (journal.FILE_NAME, UNREADABLE_LIST):
        (place / left_over).unlink(missing_ok=True)
    return manifest


def previous_manifest(place: Path, root: Path) -> Manifest | None:
    """The manifest that will be replaced, where it is whole and of the same files."""
    if not is_ours(place / FILE_NAME):
        return None
    try:
        manifest = Manifest.load(place)
        for split in manifest.splits:
            open_split(manifest, split)
        if index_damage(manifest) is not None:
            return None
    except DataError:
        # Damaged, or of another version: it is about to be replaced, and is only not asked what it knew.
        return None
    return manifest if manifest.root_path == root else None


def known_facts(manifest: Manifest) -> Iterator[tuple[bytes, verify.Facts]]:
    """What a finished prepare knew of every file."""
    if "mtimes" not in next(iter(manifest.splits.values())).arrays:
        return  # containers that something else than prepare wrote
    for split in manifest.splits:
        index = open_split(manifest, split)
        columns = (
            index.lengths,
            index.extra["mtimes"],
            index.heights,
            index.widths,
            index.extra["flags"],
            index.extra["digests"],
        )
        for i, row in enumerate(zip(*(column.tolist() for column in columns))):
            yield index.relative_name(i), verify.Facts(*row)
