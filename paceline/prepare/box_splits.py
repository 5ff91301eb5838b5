"""The images of a data set of boxes, looked at once, and what the manifest says of each split.

Letters: N images of one split, M objects, K classes 1..K.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from paceline.config.errors import DataError
from paceline.config.image_name import is_image_name
from paceline.data.boxes import BOX_ARRAYS
from paceline.data.freshness import annotation_digest, annotation_files, annotation_stamp, is_inside
from paceline.data.index import describe
from paceline.data.manifest import BoxCounts, Split, Unreadable
from paceline.data.orientation import ROTATED
from paceline.prepare import journal, verify
from paceline.prepare.annotations import Annotations
from paceline.prepare.box_arrays import box_arrays
from paceline.prepare.box_sources import BoxSource
from paceline.prepare.class_splits import NAMED_IN_ERROR, why_unreadable
from paceline.prepare.exif_reading import Reading, check_sizes, frame_sizes
from paceline.prepare.inspection import Inspection, Photos, inspect_photos
from paceline.prepare.val_split import select

NOT_THERE = "not there"


@dataclass(frozen=True)
class Files:
    """Every image of all splits, each once. row: its name (as lists have it) -> number."""

    photos: Photos
    row: dict[bytes, int]
    missing: set[int]
    found: Inspection

    def rows(self, root: Path, annotations: Annotations) -> np.ndarray:
        """(N,) the photo of each image."""
        return np.array([self.row[name] for name in _stored_names(root, annotations)], np.int64)


def _stored_names(root: Path, annotations: Annotations) -> list[bytes]:
    """N file names as the index stores them: relative to the root where they lie in it, else absolute."""
    folder = annotations.images_folder
    prefix = os.path.relpath(folder, root) if is_inside(folder, root) else str(folder)
    return [os.fsencode(os.path.normpath(os.path.join(prefix, name))) for name in annotations.file_names]


def inspect_images(
    source: BoxSource,
    place: Path,
    command: str,
    *,
    known: Iterable[tuple[bytes, verify.Facts]],
    on_missing: Literal["refuse", "skip"],
    on_unreadable: Literal["refuse", "skip"],
    workers: int | None,
    progress: Callable[[int, int], None] | None,
) -> Files:
    """Decode every photo once. Raises DataError where one is missing or broken and that was not allowed."""
    row: dict[bytes, int] = {}
    for split in source.splits.values():
        for name in _stored_names(source.root, split):
            row.setdefault(name, len(row))
    photos = source.photos(source.root, list(row))
    missing = {i for i in range(len(row)) if not photos.is_there(i)}
    if missing and (on_missing == "refuse" or len(missing) == len(row)):
        raise DataError(_why_missing(photos, missing, command))
    found = inspect_photos(
        photos,
        journal=place / journal.FILE_NAME,
        known=known,
        workers=workers,
        progress=progress,
    )
    broken = {i: reason for i, reason in found.reasons.items() if i not in missing}
    if broken and on_unreadable == "refuse":
        raise DataError(why_unreadable(photos, broken, place, command))
    return Files(photos, row, missing, found)


def _why_missing(photos: Photos, missing: set[int], command: str) -> str:
    names = photos.names
    first = [photos.called(i) for i in sorted(missing)[:NAMED_IN_ERROR]]
    others = f"\nMissing too, {len(missing) - 1:,} of {len(names):,}: {', '.join(first[1:])}" if first[1:] else ""
    if len(missing) == len(names):
        return (
            f"{first[0]}: not there, nor is any other of the {len(names):,} images that the annotations name. Check the "
            "folder of the images (--images), and that file_name in the annotations is relative to it."
        )
    text = f"{first[0]}: not there, and the annotations name it.{others}\nCopy what is missing, or "
    if not command:
        return f"{text}take it out of the annotations: a score on a part would not be this set's."
    return f"{text}go on without:\n  {command} --on-missing skip"


@dataclass(frozen=True)
class LeftOut:
    """What a split lost: its files, and how many objects were on them."""

    files: tuple[Unreadable, ...] = ()
    objects: int = 0


def leave_out(root: Path, annotations: Annotations, files: Files) -> tuple[Annotations, LeftOut]:
    """The images that can be used, and what was left out. Raises DataError for a size that is not the annotations'."""
    rows = files.rows(root, annotations)
    bad = np.isin(rows, np.fromiter(files.found.reasons, np.int64, len(files.found.reasons)))
    kept = select(annotations, np.flatnonzero(~bad))
    if not len(kept.file_names):
        raise DataError(f"{annotations.source}: none of its {len(rows):,} images can be used.")
    left = tuple(
        Unreadable(
            os.fsdecode(files.photos.names[i]),
            int(files.found.sizes[i]),
            NOT_THERE if i in files.missing else files.found.reasons[i],
        )
        for i in rows[bad].tolist()
    )
    check_sizes(kept, rows[~bad], files.found)
    return kept, LeftOut(left, len(annotations.object_rows) - len(kept.object_rows))


def describe_split(
    source: BoxSource,
    key: str,
    annotations: Annotations,
    category_ids: np.ndarray,
    files: Files,
    left: LeftOut,
    unlisted: int,
    reading: Reading,
) -> tuple[Split, dict[str, np.ndarray]]:
    """One split's numbers and arrays."""
    rows = files.rows(source.root, annotations)
    found = files.found
    boxes, numbers = box_arrays(annotations, category_ids, *frame_sizes(rows, found, reading))
    if not boxes["usable"].any():
        raise DataError(
            f"{annotations.source}: its {len(rows):,} images of {key} have no usable object "
            f"({numbers['objects']:,} in all). Check the annotations."
        )
    names = [files.photos.names[i] for i in rows.tolist()]
    flags = found.flags[rows]
    arrays = files.photos.arrays(rows, np.zeros(len(rows), np.int32), found, boxes)
    digest = hashlib.sha256()
    for name, size, bytes_digest in zip(names, found.sizes[rows].tolist(), found.digests[rows].tolist()):
        digest.update(b"%b\0%d\0%016x\n" % (name, size, bytes_digest))
    for name in BOX_ARRAYS:
        digest.update(f"{name} {arrays[name].shape}\n".encode())
        digest.update(np.ascontiguousarray(arrays[name]).data)
    patterns = source.files[key] if key in source.files else source.files["train"]
    label_files = annotation_files(source.root, patterns)
    plain = boxes["classes"][boxes["crowd"] == 0]

    def count(bit: int) -> int:
        return int(np.count_nonzero(flags & bit))

    split = Split(
        folder=os.path.relpath(annotations.images_folder, source.root),
        images=len(rows),
        bytes=int(found.sizes[rows].sum()),
        per_class=tuple(np.bincount(plain, minlength=len(category_ids) + 1)[1:].tolist()),
        content_hash=digest.hexdigest(),
        unreadable=left.files,
        rotated=count(ROTATED),
        greyscale=count(verify.GREYSCALE),
        cmyk=count(verify.CMYK),
        not_jpeg=count(verify.NOT_JPEG),
        misnamed=count(verify.MISNAMED),
        ignored=0,
        directory_mtimes=(),
        arrays=describe(arrays),
        records=files.photos.kind,
        boxes=BoxCounts(
            **numbers,
            left_out_objects=left.objects,
            unlisted_images=unlisted,
            files=patterns,
            stamp=annotation_stamp(source.root, label_files),
            digest=annotation_digest(source.root, label_files),
            exif=reading,
        ),
    )
    return split, arrays


def count_unlisted(source: BoxSource) -> dict[str, int]:
    """Image files in each folder of images that no split speaks of; a shared folder counts for its first split."""
    listed = {
        os.path.join(annotations.images_folder, name)
        for annotations in source.splits.values()
        for name in annotations.file_names
    }
    counts, seen = {}, set()
    for key, split in source.splits.items():
        counts[key] = 0
        for folder, _, names in os.walk(split.images_folder):
            if folder not in seen:
                seen.add(folder)
                paths = (os.path.join(folder, name) for name in names if is_image_name(os.fsencode(name)))
                counts[key] += sum(path not in listed for path in paths)
    return counts


def in_both(root: Path, splits: dict[str, Annotations], files: Files) -> list[str]:
    """A note where val holds pictures of train."""
    if not {"train", "val"} <= splits.keys():
        return []
    digests = {key: files.found.digests[files.rows(root, annotations)] for key, annotations in splits.items()}
    shared = np.flatnonzero(np.isin(digests["val"], digests["train"]))
    if not len(shared):
        return []
    first = splits["val"].file_names[shared[0]]
    return [
        f"{len(shared):,} images of val are images of train too (the same bytes), {first} first: scores will flatter"
    ]
