"""A data set's files, copied to a disk of this machine, checked, resumed after a kill, and cleared.

    DIR/paceline-KEY/staged.json    the marker: the source; a folder without it is none of ours
                     ledger         a line a file that is whole, or a part of one; appended and never rewritten
                     near/, far/    the files: by the names that the index has, or by a hash of their URL or absolute path
                     parts/         files that are not whole yet
Files are copied in parts of 32 MiB by several threads. Each is written, forced to the disk, read back and compared; only then it is
noted in the ledger, from which a killed copy resumes.
One process copies at a time, which holds the lock `.copying`; others that want the same files wait for it and find them there. All
that read share `.in-use`; what is in use is not cleared.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote_to_bytes

from paceline._utils.atomic_write import atomic_write
from paceline._utils.errors import DataError, PacelineError
from paceline._utils.formatting import format_bytes
from paceline._utils.journal import Journal, lock, read_lines
from paceline._utils.platform import O_BINARY, O_NOFOLLOW, get_user_id
from paceline._utils.safe_read import read_plain
from paceline._utils.threads import copy_in_parallel, free_bytes, write_at
from paceline.data.index.records import record_digest
from paceline.data.storage.object_store import open_store
from paceline.data.storage.store import ByteRange, ByteStore, StoreError, get_scheme, pread

MARKER, LEDGER, PARTS, COPYING, IN_USE = "staged.json", "ledger", "parts", ".copying", ".in-use"
OURS = {MARKER, LEDGER, COPYING, IN_USE}
FOLDERS = re.compile(r"paceline-[0-9a-f]{16}")
# A marker, and a line of a ledger, are shorter; what is longer is not ours.
MAX_MARKER, LONGEST_LINE = 1 << 16, 1 << 14
# So often a folder is made anew that others clear at the same time.
TRIES = 100
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
                    words = part.token.encode(), _quoted(part.state), part.first, _quoted(part.file.name)
                    ledger.append(b"part %b %b %d %b\n" % words)
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
            remedy = "Run the same command again to continue." if isinstance(error, StoreError) else self._again
            raise DataError(f"{source}: cannot be read ({error.strerror or error}). {remedy}") from None
        if len(data) != part.length:
            raise DataError(f"{source}: shorter than the {one.size:,} bytes that were prepared. {self._again}")
        if one.digest is not None and part.length == one.size and record_digest(data) != one.digest:
            raise DataError(f"{source}: the bytes differ from those that were prepared. {self._again}")
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
        if back != data:
            raise PacelineError(
                f"--copy-data-to: {path} does not have the bytes that were written, so the disk or the memory is faulty. "
                "Choose another folder."
            )
        report(part)

    def _finish(self, part: _Part, ledger: Journal) -> None:
        """Note a file in the ledger and give it its name; where a kill comes in between, the name is missing."""
        one, final = part.file, self.folder / os.fsdecode(part.file.name)
        if part.state != NO_STATE and self._source_state(one) != part.state:
            raise DataError(f"{os.fsdecode(one.source)}: changed during the copy. {self._again}")
        final.parent.mkdir(parents=True, exist_ok=True)
        status = os.stat(self.folder / PARTS / part.token)
        words = status.st_size, status.st_mtime_ns, _quoted(part.state), _quoted(one.name)
        ledger.append(b"file %d %d %b %b\n" % words)
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
                f"--copy-data-to: {self.folder.parent} has {format_bytes(free)} free, but {format_bytes(need)} remain to "
                "be copied. Free some space (paceline data clear DIR removes other copies), or choose another folder."
            )
        if disk.f_files and len(missing) > disk.f_favail:
            raise PacelineError(
                f"--copy-data-to: {self.folder.parent} has space for {disk.f_favail:,} more files (inodes), but "
                f"{len(missing):,} remain to be copied. Choose another folder, or run `paceline data pack` first."
            )

    def _drop_parts(self, *, keep: set[str]) -> None:
        for entry in (self.folder / PARTS).iterdir():
            if entry.name not in keep:
                entry.unlink()


def staged_name(name: bytes) -> bytes:
    """Where a file lies in the copy, by its name in the index: below near/ by the same name, where that leads nowhere else."""
    if is_near(name):
        return b"near/" + name
    last = re.sub(rb"[^A-Za-z0-9._-]", b"_", os.path.basename(name))[-80:]
    return b"far/%b-%b" % (hashlib.sha256(name).hexdigest()[:16].encode(), last)


def is_near(name: bytes) -> bool:
    return not get_scheme(name) and not any(part in (b"", b".", b"..") for part in name.split(b"/"))


def open_folder(folder: Path, about: dict[str, str]) -> int:
    """Make a copy's folder, or take up the one that is there; -> the lock that says that it is in use, until it is closed.

    about  for people, into the marker
    Raises OSError, and PacelineError where the folder is somebody else's.
    """
    for _ in range(TRIES - 1):
        with suppress(FileNotFoundError):  # it is just being cleared
            return _opened(folder, about)
    return _opened(folder, about)


def _opened(folder: Path, about: dict[str, str]) -> int:
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = os.lstat(folder)
    # In a folder that everybody may write to, somebody else could have put a link, or a folder of his own, in its place.
    if status.st_uid != get_user_id() or not folder.is_dir() or folder.is_symlink():
        raise PacelineError(f"--copy-data-to: {folder} belongs to another user, or is not a folder. Choose another folder.")
    in_use = lock(folder / IN_USE, shared=True, waits=lambda: None)
    try:
        if not (folder / MARKER).exists():
            atomic_write(folder / MARKER, json.dumps({"paceline_staged": 1, **about}, indent=1) + "\n", sync=True)
        (folder / PARTS).mkdir(exist_ok=True)
    except OSError:
        os.close(in_use)
        raise
    return in_use


def read_ledger(path: Path) -> tuple[dict[bytes, tuple[int, int, str]], dict[bytes, tuple[str, str, set[int]]]]:
    """-> files that are whole: name -> (bytes, time, source's state); files that are begun: name -> (token, source's state,
    first bytes of the parts that are there). Lines that are not ours, and a torn last one, count for nothing."""
    finished: dict[bytes, tuple[int, int, str]] = {}
    begun: dict[bytes, tuple[str, str, set[int]]] = {}
    for words in map(bytes.split, read_lines(path, LONGEST_LINE)):
        if len(words) != 5:
            continue
        if words[0] == b"file" and words[1].isdigit() and words[2].isdigit():
            name = unquote_to_bytes(words[4])
            finished[name] = int(words[1]), int(words[2]), unquote_to_bytes(words[3]).decode(errors="replace")
            begun.pop(name, None)
        elif words[0] == b"part" and re.fullmatch(rb"[0-9a-f]{16}", words[1]) and words[3].isdigit():
            name, token = unquote_to_bytes(words[4]), words[1].decode()
            if begun.get(name, ("",))[0] != token:
                begun[name] = token, unquote_to_bytes(words[2]).decode(errors="replace"), set()
            begun[name][2].add(int(words[3]))
    return finished, begun


def _quoted(text: bytes | str) -> bytes:
    return quote(text).encode()


def clear_copies(stage: Path) -> tuple[int, int, list[Path]]:
    """Remove every copy below `stage`; -> (data sets, bytes, folders that others' files keep there).

    Only what the ledgers name is removed. Raises PacelineError where one is in use, or cannot be removed.
    """
    sets, size, left = 0, 0, []
    for folder in list_copies(stage):
        try:
            held = lock(folder / IN_USE)
        except BlockingIOError:
            raise PacelineError(f"{folder}: a run is reading from this copy. Wait, and run the command again.") from None
        except OSError as error:
            raise write_error(folder, error) from None
        try:
            finished, _ = read_ledger(folder / LEDGER)
            names = [folder / os.fsdecode(name) for name in finished]
            names += [entry for entry in (folder / PARTS).glob("*") if entry.is_file()]
            here = folder.resolve()  # neither a ledger's name nor a link leads out of it
            size += sum(_remove(name) for name in names if name.parent.resolve().is_relative_to(here))
            for inner in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
                with suppress(OSError):
                    inner.rmdir()
            if {entry.name for entry in folder.iterdir()} <= OURS:
                for name in OURS:
                    _remove(folder / name)
                folder.rmdir()
            else:
                left.append(folder)
                _remove(folder / LEDGER)
            sets += 1
        except OSError as error:
            raise write_error(folder, error) from None
        finally:
            os.close(held)
    return sets, size, left


def list_copies(stage: Path) -> list[Path]:
    """The folders below `stage` that staging made, for this user: another one's could lead out by links."""
    results = []
    for folder in sorted(stage.iterdir()):
        own = FOLDERS.fullmatch(folder.name) and os.lstat(folder).st_uid == get_user_id()
        if own and folder.is_dir() and not folder.is_symlink():
            with suppress(OSError, ValueError):
                marker = json.loads(read_plain(folder / MARKER, MAX_MARKER))
                if isinstance(marker, dict) and marker.get("paceline_staged") == 1:
                    results.append(folder)
    return results


def _remove(path: Path) -> int:
    """Remove a file; -> its bytes, 0 where there is none."""
    try:
        size = os.lstat(path).st_size
        path.unlink()
    except FileNotFoundError:
        return 0
    return size


def write_error(path: Path, error: OSError) -> PacelineError:
    """The error where a copy cannot be written, with the next step."""
    why = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror or str(error)
    return PacelineError(f"--copy-data-to: {path}: cannot be written ({why}). Choose another folder, or remove the flag.")
