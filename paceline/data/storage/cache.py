"""What was read once is kept near: ranges of a remote store on a local disk, encoded photos in the memory of a node.

On the disk the very ranges that were read are kept, within a budget, at their own offsets in one sparse file an object: a photo is
fetched once and nothing next to it. Blocks would be fetched for one photo each, since a random order has no neighbors: counted for
photos of 20 to 200 KB in shards of a thousand and a budget of half of them, an epoch fetches 0.5 times the data by ranges, 5 times by
blocks of 1 MiB and hundreds of times by objects. With room for everything all are alike. A table of slots has which ranges are there,
with the CRC of each.

- Never stale: a file's place follows from its URL, size and tag (or time), which each process requests once.
- Killed at any time: a range counts when its slot is written, after its bytes; what a crash of the machine tore fails its CRC
  and is fetched again.
- Any number of processes at once: all write the same bytes to the same place, and each slot with one write.
- The budget is counted in one file, under a lock. When it is spent, objects that nobody used for an hour go, longest unused first;
  then nothing more is kept. Dropping what was used least recently fetches 0.85 times the data an epoch instead of 0.5.

In memory photos are shared by all ranks of a node: a rank reads other photos in every epoch, so of N ranks that kept photos each for
itself, one would have only one in N. The kernel's page cache is shared by them, and does the same for files on a local disk; this is
for object stores, and for network mounts that ask the server again at every open.

- A SharedMemoryCache is one file in memory without a name (memfd): a place for each photo, then room for their bytes.
- Each rank writes into its own part of the room alone and reads all of it, so nothing is locked between processes: a photo's place is
  written after its bytes.
- Nothing is ever dropped: where every epoch comes in another order, no photo is wanted sooner than another.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import secrets
import struct
import sys
import threading
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np

from paceline._utils.cache import cache_folder
from paceline._utils.errors import PacelineError
from paceline._utils.platform import O_BINARY, flock, pwrite, unlock
from paceline._utils.text import escape_text
from paceline._utils.threads import BackgroundThreads, write_at
from paceline.data.storage.store import ByteRange, ByteStore, FileStatus, RangeError, pread

_SLOT = struct.Struct("<QII")  # first byte + 1 (0: empty), bytes, CRC-32
# A range's slot is one of so many in a row.
_ROW = 16
# One slot for so many bytes of an object; photos are larger. Where ranges are smaller, some are not kept.
_BYTES_A_SLOT = 4096
_PAGE = 4096
# An object is in use so long after it was last read; that is noted so often.
IDLE_SECONDS, NOTE_SECONDS = 3600.0, 600.0
# When the budget is spent it is looked at again after so long.
FULL_SECONDS = 60.0


class DiskCacheStore(ByteStore):
    """A remote store, of which ranges that were read once are read from the local disk, in the cache folder."""

    def __init__(self, store: ByteStore, budget: int) -> None:
        """A cache of at most `budget` bytes in the cache folder. Raises PacelineError where that cannot be written."""
        self._store, self.at_once = store, store.at_once
        self._folder = cache_folder() / "ranges"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._budget = Budget(self._folder, budget)
        except OSError as error:
            raise PacelineError(
                f"{self._folder}: cannot be written ({error.strerror}). Set PACELINE_CACHE to a writable folder, or remove "
                "--system.disk-cache."
            ) from None
        self._threads = BackgroundThreads(self.at_once, "store-status")
        self._full_until = 0.0
        self._seen: dict[bytes, FileStatus] = {}
        self._noted: dict[bytes, float] = {}

    def status(self, name: bytes) -> FileStatus:
        return self._store.status(name)

    def read(self, wanted: ByteRange) -> bytes:
        return self.read_many([wanted])[0]

    def read_many(self, wanted: Sequence[ByteRange]) -> list[bytes]:
        """From the disk; those that are not there all at once from the store."""
        self._request_statuses({one.name for one in wanted} - self._seen.keys())
        results = [self._kept(one) for one in wanted]
        missing = [number for number, data in enumerate(results) if data is None]
        if missing:
            try:
                fetched = self._store.read_many([wanted[number] for number in missing])
            except RangeError as error:
                raise RangeError(error.cause, missing[error.at]) from None
            for number, data in zip(missing, fetched):
                results[number] = data
                self._keep(wanted[number], data)
        return [data for data in results if data is not None]

    def open(self, name: bytes) -> BinaryIO:
        """From the store: a file that is walked through once is not kept."""
        return self._store.open(name)

    def find(self, pattern: str) -> list[bytes]:
        return self._store.find(pattern)

    def _request_statuses(self, names: set[bytes]) -> None:
        if len(names) < 2:
            self._seen.update((name, self._store.status(name)) for name in names)
            return
        requests = {name: self._threads.submit(self._store.status, name) for name in names}
        for name, status in requests.items():
            self._seen.setdefault(name, status.result())

    def _place(self, name: bytes) -> Path | None:
        """Where an object's ranges lie, without the ending; None where a change of its content would not be noticed."""
        size, mtime, tag = self._seen[name]
        if not (mtime or tag) or size >= 1 << 62:
            return None
        key = hashlib.sha256(b"%b\0%d\0%b" % (name, size, (tag or str(mtime)).encode())).hexdigest()[:40]
        return self._folder / key

    def _slots_at(self, wanted: ByteRange) -> int:
        """First byte of the row of slots that a range may be in."""
        bits = max(10, (self._seen[wanted.name].size // _BYTES_A_SLOT).bit_length())
        scattered = wanted.offset * 0x9E3779B97F4A7C15 % (1 << 64)
        return (scattered >> (64 - bits)) * _SLOT.size

    def _kept(self, wanted: ByteRange) -> bytes | None:
        path = self._place(wanted.name)
        if path is None:
            return None
        with suppress(OSError):
            row = _part(f"{path}.slots", self._slots_at(wanted), _ROW * _SLOT.size)
            for first, length, crc in _SLOT.iter_unpack(row[: len(row) // _SLOT.size * _SLOT.size]):
                if first == wanted.offset + 1 and length == wanted.length:
                    data = _part(f"{path}.bytes", wanted.offset, length)
                    if len(data) == length and zlib.crc32(data) == crc:
                        now = time.monotonic()
                        if now - self._noted.get(wanted.name, -math.inf) > NOTE_SECONDS:
                            self._noted[wanted.name] = now
                            os.utime(f"{path}.slots")
                        return data
        return None

    def _keep(self, wanted: ByteRange, data: bytes) -> None:
        path, is_full = self._place(wanted.name), time.monotonic() < self._full_until
        if path is None or is_full or len(data) != wanted.length or not 0 < len(data) < 1 << 32:
            return
        try:
            # Both ends may lie on pages that no other range is on; of the slots a page at most is new.
            if not self._budget.take(len(data) + 3 * _PAGE):
                self._full_until = time.monotonic() + FULL_SECONDS
                return
            _write(f"{path}.bytes", wanted.offset, data)
            self._write_slot(f"{path}.slots", self._slots_at(wanted), wanted, zlib.crc32(data))
        except OSError as error:
            self._full_until = math.inf
            text = f"{self._folder}: cannot be written ({error.strerror}); images are now read without the cache"
            print(escape_text(text), file=sys.stderr)

    def _write_slot(self, path: str, row_at: int, wanted: ByteRange, crc: int) -> None:
        """Into the range's own slot, else an empty one, else one of others'."""
        row = b""
        with suppress(FileNotFoundError):
            row = _part(path, row_at, _ROW * _SLOT.size)
        firsts = [first for first, _, _ in _SLOT.iter_unpack(row.ljust(_ROW * _SLOT.size, b"\0"))]
        slot = next((firsts.index(first) for first in (wanted.offset + 1, 0) if first in firsts), crc % _ROW)
        _write(path, row_at + slot * _SLOT.size, _SLOT.pack(wanted.offset + 1, wanted.length, crc))


class Budget:
    """Bytes that a folder may hold, counted by all processes of the machine that write there."""

    def __init__(self, folder: Path, most: int) -> None:
        self._folder, self._most = folder, most
        self._lock = threading.Lock()
        self._counter = os.open(folder / "used", os.O_RDWR | os.O_CREAT | O_BINARY, 0o600)

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            os.close(self._counter)

    def take(self, room: int) -> bool:
        """Whether so many more bytes may be written; they count as written then. Raises OSError of the folder."""
        with self._lock:
            flock(self._counter, waits=True)
            try:
                used = int.from_bytes(pread(self._counter, 8, 0), "little")
                if used + room > self._most:
                    used = self._make_room(room)
                if fits := used + room <= self._most:
                    used += room
                pwrite(self._counter, used.to_bytes(8, "little"), 0)
                return fits
            finally:
                unlock(self._counter)

    def _make_room(self, room: int) -> int:
        """-> bytes that are really in use, after idle objects went where there was no room."""
        sizes: dict[str, int] = {}
        used_last: dict[str, float] = {}
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    status, key = entry.stat(), entry.name.partition(".")[0]
                    sizes[key] = sizes.get(key, 0) + status.st_blocks * 512
                    used_last[key] = max(used_last.get(key, 0.0), status.st_mtime)
        del sizes["used"], used_last["used"]
        used, latest = sum(sizes.values()), time.time() - IDLE_SECONDS
        for key in sorted(sizes, key=lambda key: used_last[key]):
            if used + room <= self._most or used_last[key] > latest:
                break
            for ending in ("slots", "bytes"):
                with suppress(FileNotFoundError):
                    os.unlink(self._folder / f"{key}.{ending}")
            used -= sizes[key]
        return used


def _part(path: str, offset: int, length: int) -> bytes:
    with open(os.open(path, os.O_RDONLY | O_BINARY), "rb", buffering=0) as file:
        return pread(file.fileno(), length, offset)


def _write(path: str, offset: int, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | O_BINARY, 0o600)
    try:
        write_at(descriptor, data, offset)
    finally:
        os.close(descriptor)


class SharedMemoryCache:
    """Room for encoded photos.

    file    a file of `cache_file_size(photos, room)` bytes, all of them 0 at first; -1: memory of this process alone
    photos  N
    room    bytes for photos, of all ranks together
    part, parts  which share of it this rank fills
    """

    def __init__(self, file: int, photos: int, room: int, *, part: int = 0, parts: int = 1) -> None:
        self.room = room
        self._memory = mmap.mmap(file, cache_file_size(photos, room))
        # Where a photo's bytes begin in the memory; 0: it is not kept.
        self._starts = np.frombuffer(self._memory, np.int64, count=photos)
        begin = cache_file_size(photos, 0)
        self._next, self._end = begin + room * part // parts, begin + room * (part + 1) // parts
        self._lock = threading.Lock()
        self.reads, self.hits = 0, 0  # of this rank

    def get(self, photo: int, length: int) -> bytes | None:
        """A photo's bytes, or None."""
        start = int(self._starts[photo])
        with self._lock:
            self.reads += 1
            self.hits += start > 0
        return self._memory[start : start + length] if start else None

    def put(self, photo: int, data: bytes) -> None:
        """Keep a photo, where this rank's part has room for it still."""
        with self._lock:
            start = self._next
            if start + len(data) > self._end or self._starts[photo]:
                return
            self._next += len(data)
        self._memory[start : start + len(data)] = data
        with self._lock:  # which orders the two writes for other processors too
            self._starts[photo] = start

    def kept(self) -> int:
        """How many photos are kept, by all ranks."""
        return int(np.count_nonzero(self._starts))


def cache_file_size(photos: int, room: int) -> int:
    """Size of the file that a SharedMemoryCache lies in; never 0."""
    pages = -(-8 * photos // mmap.PAGESIZE)
    return (pages + 1) * mmap.PAGESIZE + room


def create_memory_file(size: int) -> tuple[int, str]:
    """A file in memory, of zeros that take no memory until they are written; -> its descriptor, and a unique name.

    Raises OSError. On systems without such files: (-1, "").
    """
    if not hasattr(os, "memfd_create"):
        return -1, ""
    name = f"paceline-photos-{secrets.token_hex(8)}"
    file = os.memfd_create(name)
    os.ftruncate(file, size)
    return file, name


def open_memory_file(process: int, file: int, name: str) -> int:
    """The file that another process of this user made as `create_memory_file` does. Raises OSError where it cannot
    be had, or is another."""
    path = f"/proc/{process}/fd/{file}"
    if not os.readlink(path).startswith(f"/memfd:{name} "):
        raise FileNotFoundError(f"{path} is another file")
    return os.open(path, os.O_RDWR)
