"""From a source to its manifest.json and index, whatever the source is: every photo is decoded once, in parallel.

    class folders, boxes, containers   ->   PLACE/manifest.json, PLACE/index/<hash>/*.npy
The manifest is written last, so it exists only when all is done. Until then a journal in the cache folder (journal.py) holds
what was verified, for the next attempt. Photos that an earlier prepare verified, finished or killed, are not decoded again while
size and time are the same.

Letter: n photos of one split.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import PIL

from paceline._utils.atomic_write import LINE, held, replaceable, sweep, write_whole
from paceline._utils.errors import DataError
from paceline.data.index.box_split import BOX_ARRAYS
from paceline.data.index.index import INDEX_FOLDER, delete_old_indexes, describe, index_damage, open_split, write_index
from paceline.data.index.manifest import FILE_NAME, Manifest, Split, Unreadable, cache_place, is_ours
from paceline.data.prepare import verify_image
from paceline.data.prepare.journal import journal_of
from paceline.data.prepare.verify_images import Inspection, Photos, inspect_photos, note_on_few_bits
from paceline.data.transforms.exif import ROTATED
from paceline.data.transforms.image_io import dropped_notes

Arrays = dict[str, np.ndarray]
OnFlaw = Literal["refuse", "skip"]

# Unreadable files that an error names itself; more are in a file beside the manifest.
NAMED_IN_ERROR = 5
UNREADABLE_LIST = "unreadable.txt"
NOT_THERE = "not there"
CACHE_REMEDY = "Name another cache folder:  PACELINE_CACHE=DIR"


@dataclass(frozen=True, kw_only=True)
class Source(ABC):
    """A data set whose files were listed and whose annotations were read; no photo is opened yet."""

    root: Path  # what names in the index are relative to
    command: str = ""  # the one that prepares it and could leave photos out, for messages; empty where none can
    remedy: str = ""  # the next step where its place cannot be written to; "": `command` with --out DIR
    on_unreadable: OnFlaw = "refuse"
    on_missing: OnFlaw = "refuse"
    stored: dict[str, Any] | None = None  # the request, as the manifest records it

    @property
    @abstractmethod
    def images(self) -> int:
        """Number of images in all splits."""

    @abstractmethod
    def photos(self) -> Photos:
        """All of them, each once. Raises DataError for whatever can be refused before one is opened."""

    @abstractmethod
    def manifest(self, photos: Photos, found: Inspection) -> tuple[dict[str, Any], dict[str, Arrays]]:
        """The manifest's fields of verified photos, less what write_prepared adds, and the index's arrays of each split."""


def write_prepared(
    source: Source, place: Path, workers: int | None = None, progress: Callable[[int, int], None] | None = None
) -> Manifest:
    """Verify every photo of `source`, write its manifest and index to `place`.

    workers   threads; None: one for each usable core
    progress  called with (photos done, photos in all)
    Raises DataError for every flaw of annotations or photos; then no manifest is written.
    """
    photos = source.photos()
    try:
        place.mkdir(parents=True, exist_ok=True)
        if (place / INDEX_FOLDER).is_symlink():
            raise DataError(
                f"{place / INDEX_FOLDER}: a link, so the index would be written where it leads. Remove it. {_other_place(source)}"
            )
        previous, stamp, journal = _previous(place, source.root), _stamp(place), journal_of(place)
        known = () if previous is None else _known(previous)
        found = inspect_photos(photos, journal=journal, known=known, workers=workers, progress=progress)
        if source.on_missing == "skip":
            found.reasons.update((i, NOT_THERE) for i in list(found.reasons) if photos.size(i) < 0)
        broken = {i: reason for i, reason in found.reasons.items() if reason != NOT_THERE}
        if broken and source.on_unreadable == "refuse":
            raise DataError(_unreadable_text(photos, broken, place, source.command))
        # Before files of annotations are listed: it would count as one where they are .txt files.
        if replaceable(place / UNREADABLE_LIST):
            (place / UNREADABLE_LIST).unlink(missing_ok=True)
        fields, arrays = source.manifest(photos, found)
        with held(place) as alone:
            few_bits = note_on_few_bits(photos, found.flags, found.reasons)
            fields["notes"] = (*fields["notes"], *dropped_notes(found.dropped), *few_bits)
            manifest = Manifest(
                root="." if place == source.root else str(source.root),
                index=write_index(place, arrays),
                made_by=f"Pillow {PIL.__version__}",
                folder=place,
                request=source.stored,
                **fields,
            )
            if _stamp(place) != stamp:
                _refuse_other(manifest, source)
            sweep(place, {FILE_NAME})
            manifest.save()
            kept = {manifest.index} | ({previous.index} if previous is not None else set())
            delete_old_indexes(place, kept, alone=alone)
            if journal is not None:
                with suppress(OSError):
                    journal.unlink()
        return manifest
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{place}: the index cannot be written here ({reason}). {_other_place(source)}") from None


def another_folder(command: str) -> str:
    """The next step where an index cannot go to its place. command: the one that prepares, without a place."""
    return f"Choose another folder:  {command} --out DIR"


def _other_place(source: Source) -> str:
    return source.remedy or (another_folder(source.command) if source.command else CACHE_REMEDY)


def _stamp(place: Path) -> tuple[int, int] | None:
    """Another one for each manifest.json."""
    try:
        status = (place / FILE_NAME).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _refuse_other(manifest: Manifest, source: Source) -> None:
    """Another prepare finished first. Raises DataError where its manifest differs from `manifest`."""
    with suppress(DataError):
        there = Manifest.load(manifest.folder)
        if (there.index, there.content_hash, there.root) == (manifest.index, manifest.content_hash, manifest.root):
            return
    raise DataError(
        f"{manifest.folder}: another prepare wrote its manifest.json meanwhile, of other photos or with other flags; that one "
        f"stays. Give the same command again to replace it. {_other_place(source)}"
    )


def choose_place(root: Path, out: Path | None, *, of_classes: bool = False) -> Path:
    """Where the manifest of `root` goes: `out`, else `root` where that may be written to, else a folder in the cache.

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
            f"{manifest}: not written by paceline, or damaged, so it is not replaced. Move it away, or name another place: --out DIR."
        )
    return place


def described(
    photos: Photos,
    found: Inspection,
    rows: np.ndarray,
    labels: np.ndarray,
    *,
    folder: Path,
    per_class: np.ndarray,
    left_out: np.ndarray,
    extra: Mapping[str, np.ndarray] | None = None,
) -> tuple[Split, Arrays]:
    """One split's numbers and arrays.

    rows       (n,) its photos
    labels     (n,) their classes, 0 where objects have them
    folder     where they lie
    per_class  photos, or objects, of each class
    left_out   its other photos, which cannot be used
    extra      further arrays, those of annotations
    """
    arrays = photos.arrays(rows, labels, found, extra or {})
    flags, sizes = found.flags[rows], found.sizes[rows]
    digest = hashlib.sha256()
    for i, size, bytes_digest in zip(rows.tolist(), sizes.tolist(), found.digests[rows].tolist()):
        digest.update(b"%b\0%d\0%016x\n" % (photos.names[i], size, bytes_digest))
    for name in BOX_ARRAYS:
        if name in arrays:
            digest.update(f"{name} {arrays[name].shape}\n".encode())
            digest.update(np.ascontiguousarray(arrays[name]).data)

    def count(bit: int) -> int:
        return int(np.count_nonzero(flags & bit))

    split = Split(
        folder=os.path.relpath(folder, photos.root),
        images=len(rows),
        bytes=int(sizes.sum()),
        per_class=tuple(per_class.tolist()),
        content_hash=digest.hexdigest(),
        unreadable=tuple(
            Unreadable(os.fsdecode(photos.names[i]), int(found.sizes[i]), found.reasons[i]) for i in left_out.tolist()
        ),
        rotated=count(ROTATED),
        greyscale=count(verify_image.GREYSCALE),
        cmyk=count(verify_image.CMYK),
        not_jpeg=count(verify_image.NOT_JPEG),
        misnamed=count(verify_image.MISNAMED),
        ignored=0,
        directory_mtimes=(),
        arrays=describe(arrays),
        records=photos.kind,
    )
    return split, arrays


def _previous(place: Path, root: Path) -> Manifest | None:
    """The manifest that will be replaced, where it is whole and of the same files."""
    if not is_ours(place / FILE_NAME):
        return None
    try:
        manifest = Manifest.load(place)
        for split in manifest.splits:
            open_split(manifest, split)
        if index_damage(manifest) is not None:
            return None
    except DataError:  # damaged, or of another version: its results are not reused
        return None
    return manifest if manifest.root_path == root else None


def _known(manifest: Manifest) -> Iterator[tuple[bytes, verify_image.Facts]]:
    """Name and facts of every file that a finished prepare verified."""
    if "mtimes" not in next(iter(manifest.splits.values())).arrays:
        return  # containers that something else than prepare wrote
    for split in manifest.splits:
        index = open_split(manifest, split)
        extra = index.extra
        columns = (index.lengths, extra["mtimes"], index.heights, index.widths, extra["flags"], extra["digests"])
        for i, row in enumerate(zip(*(column.tolist() for column in columns))):
            yield index.relative_name(i), verify_image.Facts(*row)


def _unreadable_text(photos: Photos, reasons: dict[int, str], place: Path, command: str) -> str:
    """The message for photos that cannot be decoded; a long list of them goes to a file in `place`."""
    lines = [f"{photos.title(i)}: {reasons[i]}" for i in sorted(reasons)]
    text, others, listed = lines[0], lines[1:NAMED_IN_ERROR], ""
    if len(lines) > NAMED_IN_ERROR:
        file = place / UNREADABLE_LIST
        listed = f"; the others are not listed, because {file} was not written by paceline and stays"
        if replaceable(file):
            content = "\n".join([f"{LINE}photos that cannot be used", *lines, ""])
            write_whole(file, content.encode(errors="surrogateescape"))
            listed = f"; all are listed in {file}"
    if others:
        text += f"\nUnusable too, {len(lines) - 1:,} in number: {'; '.join(others)}{listed}."
    if not command:
        return f"{text}\nReplace what is named, or delete it and what annotates it, and start again."
    return (
        f"{text}\nReplace or delete what is named and start again (what was verified is remembered), or leave it out:\n"
        f"  {command} --on-unreadable skip"
    )
