"""A data set's files, copied to a disk of this machine: checked, and taken up where a kill left them.

Bytes are copied in parts of 32 MiB by several threads. Each is hashed as it is read, written, forced to the disk, read back and
hashed again; only then it is noted in the ledger (staged_folder.py). So what a kill, or a crash of the machine, left is taken up
where it stood. One process copies at a time; others that want the same files wait for it and find them there.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from paceline.config.errors import DataError, UserError
from paceline.store.background import Background
from paceline.store.object_store import store_of
from paceline.store.records import digest_of
from paceline.store.staged_folder import (
    COPYING,
    LEDGER,
    PARTS,
    cannot_write,
    file_line,
    lock,
    open_folder,
    part_line,
    read_ledger,
)
from paceline.store.stores import Range, Store, StoreTrouble, pread, scheme_of

THREADS, PART_BYTES = 8, 32 << 20
# A file takes whole blocks of a disk.
BLOCK = 4096
NO_STATE = "-"
Progress = Callable[[int, int], None]  # bytes copied so far, bytes to copy in all


class Wanted(NamedTuple):
    """A file to have here."""

    source: bytes  # its path, or its URL
    name: bytes  # here, relative to the copy's folder; never leads out of it
    size: int  # bytes
    digest: int | None  # of its bytes (store/records.py), where the index knows it


class Brought(NamedTuple):
    """What was done."""

    files: int  # copied now
    bytes: int
    kept: int  # files that were there already
    changed: int  # of those copied now: had been there, and were not any more as they were written


class StagedCopy:
    """One data set's folder, held against clearing until it is closed."""

    def __init__(self, folder: Path, about: dict[str, str], again: str) -> None:
        """Make the folder and those above it, or take up what is there.

        about  for people, into the marker: where the data come from
        again  what an error says to do where a file of the data set is not what the index says
        Raises UserError where the folder cannot be made, or is somebody else's.
        """
        self.folder, self._again = folder, again
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            self._in_use = open_folder(folder, about)
        except OSError as error:
            raise cannot_write(folder.parent, error) from None
        self._stores: dict[str, Store] = {}
        self._made: set[Path] = set()

    def close(self) -> None:
        """The copy may be cleared from here on."""
        os.close(self._in_use)

    def bring(self, wanted: Sequence[Wanted], *, progress: Progress, waits: Callable[[], None]) -> Brought:
        """Copy what is not here yet.

        waits  called once where another process is at it, which is waited for
        Raises UserError where the disk has too little room or cannot be written, DataError where a file cannot be read or is not
        what the index says.
        """
        try:
            held = lock(self.folder / COPYING, fcntl.LOCK_EX, waits)
        except OSError as error:
            raise cannot_write(self.folder, error) from None
        try:
            finished, begun = read_ledger(self.folder / LEDGER)
            missing = [one for one in wanted if not self._is_here(one, finished)]
            parts = self._begin(missing, begun)
            left = sum(part.length for part in parts)
            self._require_room(missing, sum(one.size for one in missing) - left)
            self._copy(parts, left, progress)
            changed = sum(one.name in finished for one in missing)
            return Brought(len(missing), left, len(wanted) - len(missing), changed)
        except OSError as error:
            with suppress(OSError):  # a full disk needs the room
                self._drop_parts(keep=set())
            raise cannot_write(self.folder, error) from None
        finally:
            os.close(held)

    def _is_here(self, one: Wanted, finished: dict[bytes, tuple[int, int, str]]) -> bool:
        if (noted := finished.get(one.name)) is None:
            return False
        try:
            status = os.stat(self.folder / os.fsdecode(one.name))
        except OSError:
            return False
        same = (status.st_size, status.st_mtime_ns) == noted[:2] and status.st_size == one.size
        # Of a file whose bytes the index does not know: is its source still the one that was copied?
        return same and (one.digest is not None or noted[2] == self._source_state(one))

    def _begin(self, missing: Sequence[Wanted], begun: dict[bytes, tuple[str, str, set[int]]]) -> list[_Part]:
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
            parts += (
                _Part(one, token, state, first, min(PART_BYTES, one.size - first), first == firsts[-1])
                for first in firsts
            )
        self._drop_parts(keep=tokens)
        return parts

    def _copy(self, parts: Sequence[_Part], total: int, progress: Progress) -> None:
        threads, rest = Background(THREADS, "stage"), iter(parts)
        coming: deque[tuple[_Part, Future[None]]] = deque()
        copied = 0
        try:
            with open(self.folder / LEDGER, "ab", buffering=0) as ledger:
                ledger.write(b"\n")  # after a torn line, begin on a new one; empty lines are skipped
                while True:
                    while len(coming) < 4 * THREADS and (part := next(rest, None)) is not None:
                        coming.append((part, threads.submit(self._copy_part, part)))
                    if not coming:
                        return
                    part, future = coming.popleft()
                    future.result()
                    if part.is_last:  # they are taken in order: all parts before it are there
                        self._finish(part, ledger.write)
                    else:
                        ledger.write(part_line(part.file.name, part.token, part.state, part.first))
                    copied += part.length
                    progress(copied, total)
        except Exception:
            for _, future in coming:
                future.cancel()
            wait([future for _, future in coming])
            raise

    def _copy_part(self, part: _Part) -> None:
        one, source = part.file, os.fsdecode(part.file.source)
        try:
            data = self._store(one.source).read(Range(one.source, part.first, part.length)) if part.length else b""
        except OSError as error:
            remedy = "The same command goes on." if isinstance(error, StoreTrouble) else self._again
            raise DataError(f"{source}: cannot be read ({error.strerror or error}). {remedy}") from None
        if len(data) != part.length:
            raise DataError(f"{source}: shorter than the {one.size:,} bytes that it was prepared with. {self._again}")
        if one.digest is not None and part.length == one.size and digest_of(data) != one.digest:
            raise DataError(f"{source}: other bytes than when it was prepared. {self._again}")
        path = self.folder / PARTS / part.token
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            left, offset = memoryview(data), part.first
            while left:
                written = os.pwrite(descriptor, left, offset)
                left, offset = left[written:], offset + written
            os.fsync(descriptor)
            if hasattr(os, "posix_fadvise"):  # so that it is read from the disk, not from memory
                os.posix_fadvise(descriptor, part.first, part.length, os.POSIX_FADV_DONTNEED)
            back = pread(descriptor, part.length, part.first)
        finally:
            os.close(descriptor)
        if hashlib.sha256(back).digest() != hashlib.sha256(data).digest():
            raise UserError(
                f"--stage: {path} reads back other bytes than were written: that disk is damaged, or the memory. Name another "
                "folder."
            )

    def _finish(self, part: _Part, note: Callable[[bytes], object]) -> None:
        """Note a file in the ledger and give it its name; where a kill comes in between, the name is missing."""
        one, final = part.file, self.folder / os.fsdecode(part.file.name)
        if part.state != NO_STATE and self._source_state(one) != part.state:
            raise DataError(f"{os.fsdecode(one.source)}: changed while it was copied. {self._again}")
        if final.parent not in self._made:
            final.parent.mkdir(parents=True, exist_ok=True)
            self._made.add(final.parent)
        status = os.stat(self.folder / PARTS / part.token)
        note(file_line(one.name, status.st_size, status.st_mtime_ns, part.state))
        os.replace(self.folder / PARTS / part.token, final)

    def _source_state(self, one: Wanted) -> str:
        """What tells that a source is the one it was, as far as its store knows."""
        try:
            status = self._store(one.source).status(one.source)
        except OSError as error:
            raise DataError(
                f"{os.fsdecode(one.source)}: cannot be read ({error.strerror or error}). {self._again}"
            ) from None
        return f"{status.mtime} {status.tag}"

    def _store(self, source: bytes) -> Store:
        scheme = scheme_of(source)
        return self._stores[scheme] if scheme in self._stores else self._stores.setdefault(scheme, store_of(source))

    def _require_room(self, missing: Sequence[Wanted], there: int) -> None:
        """there: bytes of these files that lie here already."""
        disk = os.statvfs(self.folder)
        free, need = disk.f_bavail * disk.f_frsize, sum(-(-one.size // BLOCK) * BLOCK for one in missing) - there
        if need > free:
            raise UserError(
                f"--stage: {self.folder.parent} has {in_words(free)} free, and {in_words(need)} of data are still to be copied "
                "there. Make room (paceline data clear DIR removes earlier copies), or name another folder."
            )
        if disk.f_files and len(missing) > disk.f_favail:
            raise UserError(
                f"--stage: {self.folder.parent} has room for {disk.f_favail:,} more files (inodes), and {len(missing):,} are "
                "still to be copied there. Name another folder, or pack the data into large files first: paceline pack"
            )

    def _drop_parts(self, *, keep: set[str]) -> None:
        for entry in (self.folder / PARTS).iterdir():
            if entry.name not in keep:
                entry.unlink()


class _Part(NamedTuple):
    """Some bytes of a file to be copied."""

    file: Wanted
    token: str  # the file below parts/ that they go into; another one for each attempt that begins anew
    state: str  # the source's, where that counts
    first: int
    length: int
    is_last: bool  # of those still to be copied of this file


def in_words(size: int) -> str:
    """Bytes for people."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
