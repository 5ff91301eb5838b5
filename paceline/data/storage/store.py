"""Stores: where the bytes of containers lie, read by range. Local files here; object_store.py reads over a network.

A file's name is a path, or a URL whose scheme is in object_store.REMOTE. All methods may be called from any number of threads.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from paceline._utils import platform as posix
from paceline._utils.errors import PacelineError
from paceline._utils.names import glob_paths
from paceline._utils.safe_read import open_plain


class ByteRange(NamedTuple):
    """Bytes of one file."""

    name: bytes
    offset: int
    length: int


class FileStatus(NamedTuple):
    """Another one means that a file changed."""

    size: int  # bytes
    mtime: int  # nanoseconds since 1970; 0 where the store does not have it
    tag: str = ""  # another with each content, where the store has such a thing (an object's ETag)


class StoreError(OSError):
    """The store, not the file, is the trouble: no permission, no credentials, no answer. Its text has the next step."""


class RangeError(OSError):
    """One of the ranges that were asked for cannot be read."""

    def __init__(self, cause: OSError, at: int) -> None:
        super().__init__(cause.errno, cause.strerror or str(cause), cause.filename)
        self.cause = cause
        self.at = at  # which one


class ByteStore(ABC):
    """Files by name. Every method raises OSError, whose strerror says why, where a file cannot be read."""

    # Ranges that one call of read_many should have: more than one where several requests are answered at once.
    at_once = 1
    # Whether bytes come over a network, so that a copy on a local disk is worth its room.
    is_remote = False

    @abstractmethod
    def status(self, name: bytes) -> FileStatus:
        """Size and time of a file."""

    @abstractmethod
    def read(self, wanted: ByteRange) -> bytes:
        """The bytes of a range; fewer only where the file ends."""

    def read_many(self, wanted: Sequence[ByteRange]) -> list[bytes]:
        """The bytes of several ranges, in that order. A store that knows which one failed raises RangeError."""
        return [self.read(one) for one in wanted]

    @abstractmethod
    def open(self, name: bytes) -> BinaryIO:
        """The file from its first byte on, buffered and seekable, to walk through it once."""

    @abstractmethod
    def find(self, pattern: str) -> list[bytes]:
        """The names of all plain files that `pattern` (with *, ? and [...]) matches, sorted; a folder's name finds none."""


class LocalFiles(ByteStore):
    """Plain files, of which a bounded number are kept open."""

    def __init__(self) -> None:
        self._open = OpenFiles()

    def status(self, name: bytes) -> FileStatus:
        result = os.stat(name)
        return FileStatus(result.st_size, result.st_mtime_ns)

    def read(self, wanted: ByteRange) -> bytes:
        with self._open.descriptor(wanted.name) as descriptor:
            return pread(descriptor, wanted.length, wanted.offset)

    def open(self, name: bytes) -> BinaryIO:
        return os.fdopen(open_plain(name), "rb", buffering=1 << 16)

    def find(self, pattern: str) -> list[bytes]:
        return [os.fsencode(path) for path in glob_paths(pattern) if os.path.isfile(path)]


def get_scheme(name: bytes | str) -> str:
    """'s3' of s3://bucket/key, '' of a path."""
    scheme, separator, _ = os.fsdecode(name).partition("://")
    return scheme.lower() if separator and scheme.replace("+", "").isalnum() else ""


def pread(descriptor: int, length: int, offset: int) -> bytes:
    """Up to `length` bytes from `offset`: fewer only at the file's end (one system call reads at most 2 GiB)."""
    data = posix.pread(descriptor, length, offset)
    while len(data) < length:
        more = posix.pread(descriptor, length - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


@dataclass
class _Open:
    descriptor: int
    readers: int


class OpenFiles:
    """Keeps the `most` files that were used last open, for containers that hold many records each. Thread-safe.

    Reading is by position (os.pread), so any number of threads may share a descriptor; none is closed while a thread still reads
    from it. More than `most` are open only while more than `most` threads read different files at once.
    """

    def __init__(self, most: int = 64) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._table: OrderedDict[bytes, _Open] = OrderedDict()

    def __len__(self) -> int:
        return len(self._table)

    @contextmanager
    def descriptor(self, path: bytes) -> Iterator[int]:
        """A descriptor of `path`, open for reading until the block ends. Raises OSError where it cannot be opened."""
        with self._lock:
            entry = self._table.get(path)
            if entry is None:
                entry = self._table[path] = _Open(open_plain(path), 0)
            entry.readers += 1
            self._table.move_to_end(path)
            self._drop_idle(self._most)
        try:
            yield entry.descriptor
        finally:
            with self._lock:
                entry.readers -= 1
                self._drop_idle(self._most)

    def close(self) -> None:
        """Close every file that no thread is reading."""
        with self._lock:
            self._drop_idle(0)

    def _drop_idle(self, keep: int) -> None:
        surplus = len(self._table) - keep
        if surplus > 0:
            for path in [path for path, entry in self._table.items() if entry.readers == 0][:surplus]:
                os.close(self._table.pop(path).descriptor)


def out_folder(out: str) -> Path | None:
    """The folder that --output-dir names, None for "". Raises PacelineError for an address: files written there are renamed in
    place.
    """
    if get_scheme(out):
        raise PacelineError(f"--output-dir {out}: must be a local folder. Copy the result to its destination afterwards.")
    return Path(out).expanduser() if out else None
