"""From a source to its manifest.json and index, whatever the source is: every photo is decoded once, in parallel.

    class folders, boxes, containers   ->   PLACE/manifest.json, PLACE/index/<hash>/*.npy
The manifest is written last, so it exists only when all is done. Until then a journal in the cache folder (verify_images.py) holds
what was verified, for the next attempt. Photos that an earlier prepare verified, finished or killed, are not decoded again while
size and time are the same.

Letter: n photos of one split.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import PIL

from paceline._utils.atomic_write import LINE, atomic_write, is_replaceable, locked_folder, remove_stale_parts
from paceline._utils.errors import DataError
from paceline.data.index.box_split import BOX_ARRAYS
from paceline.data.index.index import (
    INDEX_FOLDER,
    NAME_ARRAYS,
    RECORD_ARRAYS,
    describe_arrays,
    find_index_damage,
    open_split,
    write_index,
)
from paceline.data.index.manifest import (
    FILE_NAME,
    ExcludedFile,
    Manifest,
    Split,
    cached_manifest_folder,
    is_paceline_manifest,
)
from paceline.data.prepare import verify_image
from paceline.data.prepare.verify_images import (
    ImagesToVerify,
    Inspection,
    inspect_photos,
    note_low_bit_depth,
    open_prepare_journal,
)
from paceline.data.transforms.exif import ROTATED
from paceline.data.transforms.image_io import format_dropped_notes

Arrays = dict[str, np.ndarray]
OnFlaw = Literal["error", "skip"]

# Unreadable files that an error names itself; more are in a file beside the manifest.
NAMED_IN_ERROR = 5
UNREADABLE_LIST = "unreadable.txt"
NOT_THERE = "not found"
CACHE_REMEDY = "Choose another cache folder:  PACELINE_CACHE=DIR"
# An index that no manifest names any more is deleted after this long: a run may just be opening it.
KEEP_OLD_INDEX_SECONDS = 24 * 3600
# A folder of ours by its name and by what it holds; one that is being written, or was when its writer was killed, has a token.
_FOLDER = re.compile(r"[0-9a-f]{16}|\.[0-9a-f]{16}(\.[0-9a-f]{8}\.part)")
_ARRAY = re.compile(r"(train|val|test)\.([a-z_]+)\.npy")


@dataclass(frozen=True, kw_only=True)
class ListedDataset(ABC):
    """A data set whose files were listed and whose annotations were read; no photo is opened yet."""

    root: Path  # what names in the index are relative to
    command: str = ""  # the one that prepares it and could leave photos out, for messages; empty where none can
    remedy: str = ""  # the next step where its place cannot be written to; "": `command` with --output-dir DIR
    on_unreadable: OnFlaw = "error"
    on_missing: OnFlaw = "error"
    stored: dict[str, Any] | None = None  # the request, as the manifest records it

    @property
    @abstractmethod
    def images(self) -> int:
        """Number of images in all splits."""

    @abstractmethod
    def photos(self) -> ImagesToVerify:
        """All of them, each once. Raises DataError for whatever can be refused before one is opened."""

    @abstractmethod
    def manifest(self, photos: ImagesToVerify, result: Inspection) -> tuple[dict[str, Any], dict[str, Arrays]]:
        """The manifest's fields of verified photos, less what write_prepared adds, and the index's arrays of each split."""


def write_prepared(
    source: ListedDataset, path: Path, workers: int | None = None, progress: Callable[[int, int], None] | None = None
) -> Manifest:
    """Verify every photo of `source`, write its manifest and index to `path`.

    workers   threads; None: one for each usable core
    progress  called with (photos done, photos in all)
    Raises DataError for every flaw of annotations or photos; then no manifest is written.
    """
    photos = source.photos()
    try:
        path.mkdir(parents=True, exist_ok=True)
        if (path / INDEX_FOLDER).is_symlink():
            raise DataError(f"{path / INDEX_FOLDER}: is a link, which is not supported. Remove it. {_other_place(source)}")
        previous, stamp, journal = _previous(path, source.root), _stamp(path), open_prepare_journal(path)
        known = () if previous is None else _known(previous)
        result = inspect_photos(photos, journal=journal, known=known, workers=workers, progress=progress)
        if source.on_missing == "skip":
            result.reasons.update((i, NOT_THERE) for i in list(result.reasons) if photos.size(i) < 0)
        broken = {i: reason for i, reason in result.reasons.items() if reason != NOT_THERE}
        if broken and source.on_unreadable == "error":
            raise DataError(_unreadable_text(photos, broken, path, source.command))
        # Before files of annotations are listed: it would count as one where they are .txt files.
        if is_replaceable(path / UNREADABLE_LIST):
            (path / UNREADABLE_LIST).unlink(missing_ok=True)
        fields, arrays = source.manifest(photos, result)
        with locked_folder(path) as alone:
            few_bits = note_low_bit_depth(photos, result.flags, result.reasons)
            fields["notes"] = (*fields["notes"], *format_dropped_notes(result.dropped), *few_bits)
            manifest = Manifest(
                root="." if path == source.root else str(source.root),
                index=write_index(path, arrays),
                made_by=f"Pillow {PIL.__version__}",
                folder=path,
                request=source.stored,
                **fields,
            )
            if _stamp(path) != stamp:
                _refuse_other(manifest, source)
            remove_stale_parts(path, {FILE_NAME})
            manifest.save()
            kept = {manifest.index} | ({previous.index} if previous is not None else set())
            delete_old_indexes(path, kept, alone=alone)
            if journal is not None:
                with suppress(OSError):
                    journal.unlink()
        return manifest
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{path}: the index cannot be written here ({reason}). {_other_place(source)}") from None


def suggest_other_folder(command: str) -> str:
    """The next step where an index cannot go to its place. command: the one that prepares, without a place."""
    return f"Choose another folder:  {command} --output-dir DIR"


def _other_place(source: ListedDataset) -> str:
    return source.remedy or (suggest_other_folder(source.command) if source.command else CACHE_REMEDY)


def _stamp(path: Path) -> tuple[int, int] | None:
    """Another one for each manifest.json."""
    try:
        status = (path / FILE_NAME).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _refuse_other(manifest: Manifest, source: ListedDataset) -> None:
    """Another prepare finished first. Raises DataError where its manifest differs from `manifest`."""
    with suppress(DataError):
        there = Manifest.load(manifest.folder)
        if (there.index, there.content_hash, there.root) == (manifest.index, manifest.content_hash, manifest.root):
            return
    raise DataError(
        f"{manifest.folder}: another `prepare` wrote its manifest.json at the same time, for other images or with other "
        f"flags, and that file is kept. Run the same command again to replace it. {_other_place(source)}"
    )


def choose_manifest_folder(root: Path, out: Path | None, *, of_classes: bool = False) -> Path:
    """Where the manifest of `root` goes: `out`, else `root` where that may be written to, else a folder in the cache.

    of_classes  each folder in `root` is a class, so nothing may be added to it
    Raises DataError where another tool's manifest.json lies there.
    """
    # Mode bits too: root may write anywhere, and should not where the owner took the right from everyone.
    writable = root.stat().st_mode & 0o222 and os.access(root, os.W_OK | os.X_OK)
    free = writable and not of_classes
    path = Path(os.path.realpath(out)) if out is not None else root if free else cached_manifest_folder(root)
    if of_classes and path.is_relative_to(root):
        raise DataError(f"--output-dir {out}: each folder in {root} is a class. Choose a folder outside {root}.")
    manifest = path / FILE_NAME
    if manifest.exists() and not is_paceline_manifest(manifest):
        raise DataError(
            f"{manifest}: not written by paceline, or damaged, so it is not replaced. Move it away, or choose another "
            "folder: --output-dir DIR."
        )
    return path


def delete_old_indexes(folder: Path, keep: Collection[str], *, alone: bool) -> None:
    """Delete the indexes that prepare left under `folder`/index a day or more ago, except `keep` (as write_index returns them).

    alone   whether no other process is preparing into `folder`: then what killed ones left unfinished goes at once
    Whatever else lies there is the user's: folders of other names, or that hold anything but arrays, and links.
    """
    for entry in (folder / INDEX_FOLDER).iterdir():
        match = _FOLDER.fullmatch(entry.name)
        if match is None or f"{INDEX_FOLDER}/{entry.name}" in keep:
            continue
        with suppress(OSError):
            status = entry.lstat()
            old = time.time() - status.st_mtime > KEEP_OLD_INDEX_SECONDS
            if stat.S_ISDIR(status.st_mode) and (old or (alone and match[1])) and _is_index(entry, part=bool(match[1])):
                part = entry if match[1] else entry.with_name(f".{entry.name}.{secrets.token_hex(4)}.part")
                os.rename(entry, part)  # what a kill leaves of it is a part too, and no torn index
                for file in part.iterdir():
                    file.unlink()
                part.rmdir()


def _is_index(folder: Path, *, part: bool) -> bool:
    """Whether a folder holds nothing but arrays of ours, and unless it is a part, all that an index has. Raises OSError."""
    arrays: dict[str, set[str]] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            match = _ARRAY.fullmatch(entry.name)
            if match is None or not entry.is_file(follow_symlinks=False):
                return False
            arrays.setdefault(match[1], set()).add(match[2])
    needed = {*RECORD_ARRAYS, *NAME_ARRAYS}
    return part or (bool(arrays) and all(names >= needed for names in arrays.values()))


def describe_split(
    photos: ImagesToVerify,
    result: Inspection,
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
    arrays = photos.arrays(rows, labels, result, extra or {})
    flags, sizes = result.flags[rows], result.sizes[rows]
    digest = hashlib.sha256()
    for i, size, bytes_digest in zip(rows.tolist(), sizes.tolist(), result.digests[rows].tolist()):
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
            ExcludedFile(os.fsdecode(photos.names[i]), int(result.sizes[i]), result.reasons[i]) for i in left_out.tolist()
        ),
        rotated=count(ROTATED),
        grayscale=count(verify_image.GRAYSCALE),
        cmyk=count(verify_image.CMYK),
        not_jpeg=count(verify_image.NOT_JPEG),
        misnamed=count(verify_image.MISNAMED),
        ignored=0,
        directory_mtimes=(),
        arrays=describe_arrays(arrays),
        records=photos.kind,
    )
    return split, arrays


def _previous(path: Path, root: Path) -> Manifest | None:
    """The manifest that will be replaced, where it is whole and of the same files."""
    if not is_paceline_manifest(path / FILE_NAME):
        return None
    try:
        manifest = Manifest.load(path)
        for split in manifest.splits:
            open_split(manifest, split)
        if find_index_damage(manifest) is not None:
            return None
    except DataError:  # damaged, or of another version: its results are not reused
        return None
    return manifest if manifest.root_path == root else None


def _known(manifest: Manifest) -> Iterator[tuple[bytes, verify_image.ImageInfo]]:
    """Name and facts of every file that a finished prepare verified."""
    if "mtimes" not in next(iter(manifest.splits.values())).arrays:
        return  # containers that something else than prepare wrote
    for split in manifest.splits:
        index = open_split(manifest, split)
        extra = index.extra
        columns = (index.lengths, extra["mtimes"], index.heights, index.widths, extra["flags"], extra["digests"])
        for i, row in enumerate(zip(*(column.tolist() for column in columns))):
            yield index.relative_name(i), verify_image.ImageInfo(*row)


def _unreadable_text(photos: ImagesToVerify, reasons: dict[int, str], path: Path, command: str) -> str:
    """The message for photos that cannot be decoded; a long list of them goes to a file in `path`."""
    lines = [f"{photos.title(i)}: {reasons[i]}" for i in sorted(reasons)]
    text, others, listed = lines[0], lines[1:NAMED_IN_ERROR], ""
    if len(lines) > NAMED_IN_ERROR:
        file = path / UNREADABLE_LIST
        listed = f"; the others are not listed, because {file} was not written by paceline and is kept"
        if is_replaceable(file):
            content = "\n".join([f"{LINE}images that cannot be used", *lines, ""])
            atomic_write(file, content.encode(errors="surrogateescape"))
            listed = f"; all of them are listed in {file}"
    if others:
        text += f"\nAlso unusable, {len(lines) - 1:,} images: {'; '.join(others)}{listed}."
    if not command:
        return f"{text}\nReplace these images, or delete them and their annotations, and run the command again."
    return (
        f"{text}\nReplace or delete these images and run the command again (verified images are not read again), or "
        f"skip them:\n  {command} --on-unreadable skip"
    )
