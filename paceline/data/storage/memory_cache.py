"""Encoded photos kept in memory once they have been read, shared by all ranks of a node.

A rank reads other photos in every epoch, so of N ranks that kept photos each for itself, one would have only one in N. The kernel's
page cache is shared by them, and does the same for files on a local disk; this is for object stores, and for network mounts that
ask the server again at every open.

A SharedMemoryCache is one file in memory without a name (memfd): a place for each photo, then room for their bytes. Each rank
writes into its own part of the room alone and reads all of it, so nothing is locked between processes: a photo's place is written
after its bytes. Nothing is ever dropped: where every epoch comes in another order, no photo is wanted sooner than another.

Letters: N photos of all splits together
"""

from __future__ import annotations

import mmap
import os
import secrets
import threading
from collections.abc import Sequence

import numpy as np

from paceline.data.index.records import OtherRecords, RecordReader


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


class CachedRecords(OtherRecords):
    """Records whose bytes are read from a shelf where they are on it.

    first  the place of record 0 there
    """

    def __init__(self, records: RecordReader, shelf: SharedMemoryCache, first: int) -> None:
        super().__init__(records)
        self._shelf, self._first = shelf, first

    def kept_on_disk(self, budget: int) -> RecordReader:
        self._records = self._records.kept_on_disk(budget)
        return self

    def unchecked(self) -> RecordReader:
        return CachedRecords(self._records.unchecked(), self._shelf, self._first)

    def read_many(self, numbers: Sequence[int]) -> list[bytes]:
        """From memory; those that are not there are read together, and then kept."""
        lengths = self.places.lengths
        result = {i: self._shelf.get(self._first + i, int(lengths[i])) for i in numbers}
        if missing := [i for i, data in result.items() if data is None]:
            for i, data in zip(missing, self._records.read_many(missing), strict=True):
                result[i] = data
                self._shelf.put(self._first + i, data)
        return [result[i] for i in numbers]  # pyright: ignore[reportReturnType]


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
    """The file that another process of this user made as `create_memory_file` does. Raises OSError where it cannot "
    "be had, or is another."""
    path = f"/proc/{process}/fd/{file}"
    if not os.readlink(path).startswith(f"/memfd:{name} "):
        raise FileNotFoundError(f"{path} is another file")
    return os.open(path, os.O_RDWR)
