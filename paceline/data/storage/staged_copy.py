"""A data set's files, copied to a disk of this machine, checked, and resumed after a kill; and its records, read from there.

Files are copied in parts of 32 MiB by several threads. Each is hashed as it is read, written, forced to the disk, read back and
hashed again; only then it is noted in the ledger (staged_folder.py), from which a killed copy resumes. One process copies at a time;
others that want the same files wait for it and find them there.

Records keep the names that they have at their source, so messages, lists of predictions and everything else that a run writes down
is the same with and without a copy.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from paceline._utils.errors import DataError, PacelineError
from paceline._utils.formatting import format_bytes
from paceline._utils.journal import Journal, lock
from paceline._utils.platform import O_BINARY, O_NOFOLLOW
from paceline._utils.threads import copy_in_parallel, free_bytes, write_at
from paceline.data.index.index import Index, pack_names
from paceline.data.index.manifest import FILES
from paceline.data.index.records import OtherRecords, RecordReader, open_records, record_digest
from paceline.data.storage.object_store import open_store
from paceline.data.storage.staged_folder import (
    COPYING,
    LEDGER,
    PARTS,
    file_line,
    open_folder,
    part_line,
    read_ledger,
    write_error,
)
from paceline.data.storage.store import ByteRange, ByteStore, StoreError, get_scheme, pread

THREADS, PART_BYTES = 8, 32 << 20
# A file takes whole blocks of a disk.
BLOCK = 4096
NO_STATE = "-"
Progress = Callable[[int, int], None]  # bytes copied so far, bytes to copy in all


class FileToStage(NamedTuple):
    """A file to have here."""

    source: bytes  # its path, or its URL
    name: bytes  # here, relative to the copy's folder; never leads out of it
    size: int  # bytes
    digest: int | None  # of its bytes (data/index/records.py), where the index knows it


class CopyStats(NamedTuple):
    """What was done."""

    files: int  # copied now
    bytes: int
    kept: int  # files that were there already
    changed: int  # of those copied now: had been there, and were not any more as they were written


class _Part(NamedTuple):
    """Some bytes of a file to be copied."""

    file: FileToStage
    token: str  # the file below parts/ that they go into; another one for each attempt that begins anew
    state: str  # the source's, where that counts
    first: int
    length: int


class StagedCopy:
    """One data set's folder, held against clearing until it is closed."""

    def __init__(self, folder: Path, about: dict[str, str], again: str) -> None:
        """Make the folder and those above it, or take up what is there.

        about  for people, into the marker: where the data come from
        again  the next step in an error, where a file of the data set is not what the index has
        Raises PacelineError where the folder cannot be made, or is somebody else's.
        """
        self.folder, self._again = folder, again
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            self._in_use = open_folder(folder, about)
        except OSError as error:
            raise write_error(folder.parent, error) from None
        self._stores: dict[str, ByteStore] = {}

    def close(self) -> None:
        """The copy may be cleared from here on."""
        os.close(self._in_use)

    def copy(self, wanted: Sequence[FileToStage], *, progress: Progress, waits: Callable[[], None]) -> CopyStats:
        """Copy the files that are not here yet.

        waits  called once where another process is copying, which is waited for
        Raises PacelineError where the disk has too little room or cannot be written, DataError where a file cannot be read or is not
        what the index has.
        """
        try:
            held = lock(self.folder / COPYING, waits=waits)
        except OSError as error:
            raise write_error(self.folder, error) from None
        try:
            finished, begun = read_ledger(self.folder / LEDGER)
            missing = [one for one in wanted if not self._is_here(one, finished)]
            parts = self._begin(missing, begun)
            left = sum(part.length for part in parts)
            self._require_room(missing, sum(one.size for one in missing) - left)
            self._copy(parts, left, progress)
            changed = sum(one.name in finished for one in missing)
            return CopyStats(len(missing), left, len(wanted) - len(missing), changed)
        except OSError as error:
            with suppress(OSError):  # a full disk needs the room
                self._drop_parts(keep=set())
            raise write_error(self.folder, error) from None
        finally:
            os.close(held)

    def _is_here(self, one: FileToStage, finished: dict[bytes, tuple[int, int, str]]) -> bool:
        if (noted := finished.get(one.name)) is None:
            return False
        try:
            status = os.stat(self.folder / os.fsdecode(one.name))
        except OSError:
            return False
        same = (status.st_size, status.st_mtime_ns) == noted[:2] and status.st_size == one.size
        # Of a file whose bytes the index does not know: is its source still the one that was copied?
        return same and (one.digest is not None or noted[2] == self._source_state(one))

    def _begin(self, missing: Sequence[FileToStage], begun: dict[bytes, tuple[str, str, set[int]]]) -> list[_Part]:
        """The parts still to be copied of these files; parts of files that nobody wants any more go."""
        parts: list[_Part] = []
        tokens: set[str] = set()
        for one in missing:
            state = NO_STATE if one.digest is not None and one.size <= PART_BYTES else self._source_state(one)
            token, was, done = begun.get(one.name, ("", "", set()))
            if not token or was != state or not (self.folder / PARTS / token).is_file():
                token, done = secrets.token_hex(8), set()
            tokens.add(token)
            every = range(0, max(1, one.size), PART_BYTES)
            firsts = [first for first in every if first not in done] or [every[-1]]  # all is there but its name
            parts += (_Part(one, token, state, first, min(PART_BYTES, one.size - first)) for first in firsts)
        self._drop_parts(keep=tokens)
        return parts

    def _copy(self, parts: Sequence[_Part], total: int, progress: Progress) -> None:
        ledger, copied = Journal(self.folder / LEDGER, most=None), 0
        left = Counter(part.token for part in parts)

        def arrived(done: list[_Part]) -> None:
            nonlocal copied
            for part in done:
                left[part.token] -= 1
                if left[part.token]:
                    ledger.append(part_line(part.file.name, part.token, part.state, part.first))
                else:
                    self._finish(part, ledger)
                copied += part.length
            if done:
                progress(copied, total)

        copy_in_parallel(parts, self._copy_part, arrived, threads=THREADS, name="stage")

    def _copy_part(self, part: _Part, report: Callable[[_Part], None], stop: threading.Event) -> None:
        one, source = part.file, os.fsdecode(part.file.source)
        try:
            data = self._store(one.source).read(ByteRange(one.source, part.first, part.length)) if part.length else b""
        except OSError as error:
            remedy = "The same command goes on." if isinstance(error, StoreError) else self._again
            raise DataError(f"{source}: cannot be read ({error.strerror or error}). {remedy}") from None
        if len(data) != part.length:
            raise DataError(f"{source}: shorter than the {one.size:,} bytes that it was prepared with. {self._again}")
        if one.digest is not None and part.length == one.size and record_digest(data) != one.digest:
            raise DataError(f"{source}: other bytes than when it was prepared. {self._again}")
        if stop.is_set():
            return
        path = self.folder / PARTS / part.token
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | O_NOFOLLOW | O_BINARY, 0o600)
        try:
            write_at(descriptor, data, part.first)
            os.fsync(descriptor)
            if hasattr(os, "posix_fadvise"):  # so that it is read from the disk, not from memory
                os.posix_fadvise(descriptor, part.first, part.length, os.POSIX_FADV_DONTNEED)
            back = pread(descriptor, part.length, part.first)
        finally:
            os.close(descriptor)
        if hashlib.sha256(back).digest() != hashlib.sha256(data).digest():
            raise PacelineError(
                f"--stage: {path} reads back other bytes than were written: that disk is damaged, or the memory. Name another "
                "folder."
            )
        report(part)

    def _finish(self, part: _Part, ledger: Journal) -> None:
        """Note a file in the ledger and give it its name; where a kill comes in between, the name is missing."""
        one, final = part.file, self.folder / os.fsdecode(part.file.name)
        if part.state != NO_STATE and self._source_state(one) != part.state:
            raise DataError(f"{os.fsdecode(one.source)}: changed while it was copied. {self._again}")
        final.parent.mkdir(parents=True, exist_ok=True)
        status = os.stat(self.folder / PARTS / part.token)
        ledger.append(file_line(one.name, status.st_size, status.st_mtime_ns, part.state))
        os.replace(self.folder / PARTS / part.token, final)

    def _source_state(self, one: FileToStage) -> str:
        """Time and tag of a source: another one where it changed, as far as its store knows."""
        try:
            status = self._store(one.source).status(one.source)
        except OSError as error:
            raise DataError(
                f"{os.fsdecode(one.source)}: cannot be read ({error.strerror or error}). {self._again}"
            ) from None
        return f"{status.mtime} {status.tag}"

    def _store(self, source: bytes) -> ByteStore:
        scheme = get_scheme(source)
        return self._stores[scheme] if scheme in self._stores else self._stores.setdefault(scheme, open_store(source))

    def _require_room(self, missing: Sequence[FileToStage], there: int) -> None:
        """there: bytes of these files that lie here already."""
        need, disk = sum(-(-one.size // BLOCK) * BLOCK for one in missing) - there, os.statvfs(self.folder)
        if need > (free := free_bytes(self.folder)):
            raise PacelineError(
                f"--stage: {self.folder.parent} has {format_bytes(free)} free, and {format_bytes(need)} of data are "
                "still to be copied "
                "there. Make room (paceline data clear DIR removes earlier copies), or name another folder."
            )
        if disk.f_files and len(missing) > disk.f_favail:
            raise PacelineError(
                f"--stage: {self.folder.parent} has room for {disk.f_favail:,} more files (inodes), and {len(missing):,} are "
                "still to be copied there. Name another folder, or pack the data into large files first: paceline pack"
            )

    def _drop_parts(self, *, keep: set[str]) -> None:
        for entry in (self.folder / PARTS).iterdir():
            if entry.name not in keep:
                entry.unlink()


class StagedRecords(OtherRecords):
    """The records of a split, read from `local`, whose file an error names."""

    def __init__(self, records: RecordReader, local: RecordReader) -> None:
        super().__init__(records)
        self._local, self.at_once = local, local.at_once

    def path(self, i: int) -> str:
        """The file that is read: the copy."""
        return self._local.path(i)

    def unchecked(self) -> RecordReader:
        return StagedRecords(self._records, self._local.unchecked())

    def read_many(self, numbers: Sequence[int]) -> list[bytes]:
        return self._local.read_many(numbers)


def staged_records(records: RecordReader, kind: str, folder: Path, remedy: str) -> StagedRecords:
    """These records, read from the copy in `folder`; kind: theirs in the manifest."""
    names = [records.places.file_name(file) for file in range(len(records.places.file_sizes))]
    locations = replace(records.places, remedy=remedy, changed="", root=folder)
    if all(map(_is_near, names)):
        locations = replace(locations, root=folder / "near")
    else:
        locations = replace(locations, **pack_names([staged_name(name) for name in names]))
    return StagedRecords(records, open_records(kind, locations))


def list_files_to_stage(index: Index, kind: str, numbers: np.ndarray) -> list[FileToStage]:
    """The files that these records lie in, each once."""
    locations = index.records.places
    digests: dict[int, int] = {}
    if kind == FILES and "digests" in index.extra:
        digests = dict(zip(locations.files[numbers].tolist(), index.extra["digests"][numbers].tolist()))
    return [
        FileToStage(
            locations.file_path(file),
            staged_name(locations.file_name(file)),
            int(locations.file_sizes[file]),
            digests.get(file),
        )
        for file in np.unique(locations.files[numbers]).tolist()
    ]


def staged_name(name: bytes) -> bytes:
    """Where a file lies in the copy, by its name in the index: below near/ by the same name, where that leads nowhere else."""
    if _is_near(name):
        return b"near/" + name
    last = re.sub(rb"[^A-Za-z0-9._-]", b"_", os.path.basename(name))[-80:]
    return b"far/%b-%b" % (hashlib.sha256(name).hexdigest()[:16].encode(), last)


def _is_near(name: bytes) -> bool:
    return not get_scheme(name) and not any(part in (b"", b".", b"..") for part in name.split(b"/"))
