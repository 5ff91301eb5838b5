"""Class folders -> manifest.json and index: every file is decoded once, in parallel.

    ROOT/{train,val}/CLASS/*.jpg   ->   PLACE/manifest.json, PLACE/index/<hash>/*.npy
PLACE is `out`, else ROOT where that may be written to, else a folder in the cache. The manifest is written last, so it
is there only when all is done. Until then PLACE/prepare.journal holds what was verified, for the next attempt.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import PIL

from paceline.config.errors import DataError
from paceline.data.freshness import check_fresh
from paceline.data.index import delete_old_indexes, describe, index_damage, open_split, whole_files, write_index
from paceline.data.manifest import (
    FILE_NAME,
    Expect,
    Manifest,
    Split,
    Unreadable,
    cache_place,
    is_ours,
    manifest_places,
    prepare_command,
)
from paceline.data.orientation import ROTATED
from paceline.prepare import journal, verify
from paceline.prepare.class_names import names_changed, read_class_names
from paceline.prepare.imagenet import check_flat_val, check_imagenet, official_wnids
from paceline.prepare.inspection import Inspection, inspect_files
from paceline.prepare.listing import TRAIN_FOLDER, Listing, SplitListing, check_classes, list_class_folders

# An error names so many unreadable files itself; more are in a file beside the journal.
NAMED_IN_ERROR = 5
UNREADABLE_LIST = "unreadable.txt"


def prepare_folder(
    root: Path,
    *,
    out: Path | None = None,
    expect: Expect = "any",
    workers: int | None = None,
    on_unreadable: Literal["refuse", "skip"] = "refuse",
    progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """Verify every image under `root` and write its manifest and index; the returned manifest's `folder` says where.

    expect         "imagenet" also checks for ImageNet-1k's very classes and counts
    workers        threads; None: one for each usable core
    on_unreadable  "skip" leaves files that cannot be decoded out, and lists them in the manifest
    progress       called with (files done, files in all)
    Files that an earlier prepare verified, finished or killed, are not decoded again while size and time are the same.
    Raises DataError for every flaw of layout or file; then no manifest is written.
    """
    root = Path(os.path.realpath(root))
    listing = _list(root, expect)
    place = choose_place(root, out)
    try:
        place.mkdir(parents=True, exist_ok=True)
        return _prepare(listing, place, expect, workers, on_unreadable, progress)
    except OSError as error:
        raise DataError(
            f"{place}: the index cannot be written here ({error.strerror or error}). "
            f"Choose another folder:  {prepare_command(root, expect)} --out DIR"
        ) from None


def ensure_prepared(root: Path, *, small: int = 20_000, say: Callable[[str], None]) -> Path:
    """The folder of a manifest that matches the files of `root`; a small data set is prepared for it, into the cache.

    root    a data set's root, or a folder that prepare wrote to
    small   up to so many images are prepared without asking; beyond, DataError with the command to run
    say     takes one line, when something is prepared
    `root` itself is never written to. Raises DataError as `prepare_folder` does.
    """
    why = "no manifest yet"
    source = Path(os.path.realpath(root))
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
        _refuse_without_train(manifest)
        stale = check_fresh(manifest) or names_changed(manifest)
        if stale is None:
            return path.parent
        why, source = f"its manifest is out of date: {stale}", manifest.root_path
        # Where `root` is a folder that prepare wrote to, a newer manifest of the same images may lie in the cache.
        places.extend(other for other in manifest_places(source) if other not in places)
    listing = _list(source, "any")
    if listing.images > small:
        looks_official = len(set(official_wnids()) & set(listing.splits["train"].classes)) > 900
        command = prepare_command(source, "imagenet" if looks_official else "any")
        raise DataError(f"{source}: {listing.images:,} images, {why}. Verify them once, before training:\n  {command}")
    place = cache_place(source)
    say(f"{source}: {why}; verifying its {listing.images:,} images once (kept in {place})")
    return prepare_folder(source, out=place).folder


def _refuse_without_train(manifest: Manifest) -> None:
    if "train" not in manifest.splits:
        raise DataError(f"{manifest.folder}: holds a split that is only scored on, nothing to train on.")


def prepare_listing(listing: Listing, place: Path) -> Manifest:
    """Verify the files of a listing and write manifest and index to `place`. Raises DataError as `prepare_folder` does."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        return _prepare(listing, place, "any", None, "refuse", None)
    except OSError as error:
        raise DataError(
            f"{place}: the index cannot be written here ({error.strerror or error}). "
            "Name another cache folder:  PACELINE_CACHE=DIR"
        ) from None


def _list(root: Path, expect: Expect) -> Listing:
    check_flat_val(root)
    listing = list_class_folders(root)
    if expect == "imagenet":
        check_imagenet(listing)
    check_classes(listing)
    return listing


def choose_place(root: Path, out: Path | None) -> Path:
    """Where the manifest of `root` goes. Raises DataError where another tool's manifest.json lies there."""
    # Mode bits too: root may write anywhere, and should not where the owner took the right from everyone.
    writable = root.stat().st_mode & 0o222 and os.access(root, os.W_OK | os.X_OK)
    place = Path(os.path.realpath(out)) if out is not None else root if writable else cache_place(root)
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
    progress: Callable[[int, int], None] | None,
) -> Manifest:
    names = [name for split in listing.splits.values() for name in _relative_names(listing.root, split)]
    previous = previous_manifest(place, listing.root)
    found = inspect_files(
        listing.root,
        names,
        journal=place / journal.FILE_NAME,
        known=known_facts(previous) if previous is not None else (),
        workers=workers,
        progress=progress,
    )
    if found.reasons and on_unreadable == "refuse":
        raise DataError(
            why_unreadable(listing.root, names, found.reasons, place, prepare_command(listing.root, expect))
        )
    splits, arrays, first = {}, {}, 0
    for key, split in listing.splits.items():
        splits[key], arrays[key] = _split(listing.root, split, names, found, range(first, first + split.images))
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
    )
    manifest.save()
    delete_old_indexes(place, keep={manifest.index} | ({previous.index} if previous is not None else set()))
    for left_over in (journal.FILE_NAME, UNREADABLE_LIST):
        (place / left_over).unlink(missing_ok=True)
    return manifest


def _relative_names(root: Path, split: SplitListing) -> Iterator[bytes]:
    for label, names in zip(split.classes, split.names):
        folder = os.fsencode(os.path.join(split.folder.name, label))
        for name in names:
            yield folder + b"/" + name


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


def _split(
    root: Path, split: SplitListing, names: list[bytes], found: Inspection, records: range
) -> tuple[Split, dict[str, np.ndarray]]:
    """One split's numbers and arrays, from rows `records` of `names` and `found`, less the unreadable ones."""
    bad = [i for i in records if i in found.reasons]
    good = np.setdiff1d(np.arange(records.start, records.stop), bad)
    labels = np.repeat(np.arange(len(split.classes)), [len(group) for group in split.names])[good - records.start]
    per_class = np.bincount(labels, minlength=len(split.classes)).tolist()
    if 0 in per_class:
        raise DataError(
            f"{split.folder / split.classes[per_class.index(0)]}: none of its images can be decoded. Replace them."
        )
    flags = found.flags[good]
    arrays = whole_files(
        [names[i] for i in good],
        lengths=found.sizes[good],
        labels=labels,
        heights=found.heights[good],
        widths=found.widths[good],
        extra={"flags": flags, "digests": found.digests[good], "mtimes": found.mtimes[good]},
    )
    digest = hashlib.sha256()
    for i, size, bytes_digest in zip(good, found.sizes[good].tolist(), found.digests[good].tolist()):
        digest.update(b"%b\0%d\0%016x\n" % (names[i], size, bytes_digest))

    def count(bit: int) -> int:
        return int(np.count_nonzero(flags & bit))

    numbers = Split(
        folder=split.folder.name,
        images=len(good),
        bytes=int(found.sizes[good].sum()),
        per_class=tuple(per_class),
        content_hash=digest.hexdigest(),
        unreadable=tuple(Unreadable(os.fsdecode(names[i]), int(found.sizes[i]), found.reasons[i]) for i in bad),
        rotated=count(ROTATED),
        greyscale=count(verify.GREYSCALE),
        cmyk=count(verify.CMYK),
        not_jpeg=count(verify.NOT_JPEG),
        misnamed=count(verify.MISNAMED),
        ignored=split.ignored,
        directory_mtimes=tuple(split.mtimes),
        arrays=describe(arrays),
    )
    return numbers, arrays


def why_unreadable(root: Path, names: list[bytes], reasons: dict[int, str], place: Path, command: str) -> str:
    """The message for files that cannot be decoded; a long list of them goes to a file in `place`."""
    lines = [f"{os.path.join(root, os.fsdecode(names[i]))}: {reasons[i]}" for i in sorted(reasons)]
    others = lines[1:NAMED_IN_ERROR]
    text = lines[0]
    if others:
        listed = ""
        if len(lines) > NAMED_IN_ERROR:
            (place / UNREADABLE_LIST).unlink(missing_ok=True)  # a link of this name would lead elsewhere
            (place / UNREADABLE_LIST).write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogateescape")
            listed = f"; all are listed in {place / UNREADABLE_LIST}"
        text += f"\nUnusable too, {len(lines) - 1:,} in number: {'; '.join(others)}{listed}."
    return (
        f"{text}\n"
        "Replace or delete what is named and start again (what was verified is remembered), or leave it out:\n"
        f"  {command} --on-unreadable skip"
    )
