"""The photos of class folders, looked at once, and what the manifest says of each split.

Letter: n photos of one split.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from paceline.config.errors import DataError
from paceline.data.index import describe
from paceline.data.manifest import Split, Unreadable
from paceline.data.orientation import ROTATED
from paceline.prepare import verify
from paceline.prepare.inspection import Inspection, Photos
from paceline.prepare.listing import SplitListing, some
from paceline.prepare.val_groups import ValSplit, stratified, units_of

# An error names so many unreadable files itself; more are in a file beside the journal.
NAMED_IN_ERROR = 5
UNREADABLE_LIST = "unreadable.txt"


def relative_names(root: Path, split: SplitListing) -> Iterator[bytes]:
    """The files of a split, in order, relative to the root."""
    for label, names in zip(split.classes, split.names):
        folder = os.fsencode(os.path.relpath(split.folder / label, root))
        for name in names:
            yield folder + b"/" + name


def readable(split: SplitListing, found: Inspection, records: range) -> tuple[np.ndarray, np.ndarray]:
    """-> of the files `records`, those that can be decoded, and their classes."""
    bad = [i for i in records if i in found.reasons]
    good = np.setdiff1d(np.arange(records.start, records.stop), bad)
    labels = np.repeat(np.arange(len(split.classes)), [len(group) for group in split.names])[good - records.start]
    per_class = np.bincount(labels, minlength=len(split.classes)).tolist()
    if 0 in per_class:
        raise DataError(
            f"{split.folder / split.classes[per_class.index(0)]}: none of its images can be decoded. Replace them."
        )
    return good, labels


def set_apart(
    names: list[bytes], labels: np.ndarray, digests: np.ndarray, val: ValSplit, root: Path, split: SplitListing
) -> tuple[np.ndarray, list[str]]:
    """-> (n,) bool, the photos of val, and notes for people. Raises DataError where a side would be empty."""
    prefix = os.path.join(os.path.relpath(split.folder, root), "").removeprefix("./")
    units = units_of([os.fsdecode(name).removeprefix(prefix) for name in names], val, digests)
    in_val = stratified(units, labels, val.val_fraction)
    if in_val.all() or not in_val.any():
        raise DataError(
            f"{split.folder}: {len(names):,} photos in {len(units.numbers):,} groups, of which no validation split can be made "
            "that has photos on both sides. Add photos, or group fewer together (--val-group)."
        )
    notes = []
    if units.alone:
        notes.append(f"{units.alone:,} photos do not match --val-group and stand alone in the validation split")
    lacking = np.flatnonzero(np.bincount(labels[in_val], minlength=len(split.classes)) == 0)
    if len(lacking):
        named = some(split.classes[label] for label in lacking)
        notes.append(f"classes of which val has no photo, because they have one photo or one group: {named}")
    return in_val, notes


def describe_class_split(
    split: SplitListing,
    photos: Photos,
    found: Inspection,
    good: np.ndarray,
    labels: np.ndarray,
    bad: list[int],
) -> tuple[Split, dict[str, np.ndarray]]:
    """One split's numbers and arrays, from rows `good` of `photos` and `found`, with their classes; `bad` were left out."""
    names = photos.names
    per_class = np.bincount(labels, minlength=len(split.classes)).tolist()
    flags = found.flags[good]
    arrays = photos.arrays(good, labels, found, {})
    digest = hashlib.sha256()
    for i, size, bytes_digest in zip(good, found.sizes[good].tolist(), found.digests[good].tolist()):
        digest.update(b"%b\0%d\0%016x\n" % (names[i], size, bytes_digest))

    def count(bit: int) -> int:
        return int(np.count_nonzero(flags & bit))

    numbers = Split(
        folder=os.path.relpath(split.folder, photos.root),
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
        records=photos.kind,
    )
    return numbers, arrays


def why_unreadable(photos: Photos, reasons: dict[int, str], place: Path, command: str) -> str:
    """The message for photos that cannot be decoded; a long list of them goes to a file in `place`.

    command  the one that could leave them out; empty where none can
    """
    lines = [f"{photos.called(i)}: {reasons[i]}" for i in sorted(reasons)]
    others = lines[1:NAMED_IN_ERROR]
    text = lines[0]
    if others:
        listed = ""
        if len(lines) > NAMED_IN_ERROR:
            (place / UNREADABLE_LIST).unlink(missing_ok=True)  # a link of this name would lead elsewhere
            (place / UNREADABLE_LIST).write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogateescape")
            listed = f"; all are listed in {place / UNREADABLE_LIST}"
        text += f"\nUnusable too, {len(lines) - 1:,} in number: {'; '.join(others)}{listed}."
    if not command:
        return f"{text}\nReplace what is named, or delete it and what annotates it, and start again."
    return (
        f"{text}\n"
        "Replace or delete what is named and start again (what was verified is remembered), or leave it out:\n"
        f"  {command} --on-unreadable skip"
    )
