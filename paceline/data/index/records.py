"""Records: the encoded photos of one split, wherever their bytes lie.

A manifest has the kind of each split's records (`Split.records`), a word of RECORDS below:
    files     each record is a file of its own
    ranges    each record is a range of bytes of a file that holds many (tar, a zip's stored members, RecordIO, TFRecord)
    deflate   ranges, some of them compressed as a zip's members are
    recordio  ranges, some of them cut in parts as MXNet's RecordIO does where a photo holds its magic word
A container of another kind is a class like these and a line in RECORDS (docs/how-to/extend/archive-format.md). Files of ranges may
lie in any store that reads by range (data/storage/store.py).
Each time that a record's bytes are read, they are compared with the digest that prepare noted: what a disk, a server or a copy
changed is named, and never trained on.

Letters: N records of one split, F files that hold them.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline._utils.errors import DataError
from paceline._utils.safe_read import open_plain_sized
from paceline.data.storage.store import ByteRange, ByteStore, LocalFiles, RangeError, StoreError, get_scheme, pread

if TYPE_CHECKING:
    from paceline.data.storage.cache import SharedMemoryCache


class DamagedRecord(DataError):
    """A record's bytes can be read, and are not those of the index. `reason`: why, without the record's name."""

    def __init__(self, name: str, reason: str, remedy: str) -> None:
        super().__init__(f"{name}: {reason}. {remedy}")
        self.reason = reason


# The next step where the store, not the file, is the trouble.
GO_ON = "Fix this, and run the same command again. With the same --output-dir, a run resumes from its last checkpoint."


@dataclass(frozen=True)
class RecordLocations:
    """Where the records of one split lie, from the index (data/index/index.py). What offsets count is the container's matter."""

    root: Path
    files: np.ndarray  # (N,) int32, which file
    offsets: np.ndarray  # (N,) int64, where in it
    lengths: np.ndarray  # (N,) int64, bytes of the record as it is read
    name_bytes: np.ndarray  # (total,) uint8, all file names without separators
    name_starts: np.ndarray  # (F+1,) int64
    file_sizes: np.ndarray  # (F,) int64 bytes
    remedy: str  # the next step in an error
    # Where records have names of their own, (total,) uint8 without separators and (N+1,) int64 as for files.
    record_bytes: np.ndarray | None = None
    record_starts: np.ndarray | None = None
    # (N,) int64 bytes of the record as it lies in the file; -1, or None for all: it lies there as it is read.
    stored_lengths: np.ndarray | None = None
    # (N,) uint64, `record_digest` each record's bytes; None: not known, or not to be compared.
    digests: np.ndarray | None = None
    changed: str = ""  # in an error before `remedy`, where it is the bytes that differ

    def file_name(self, file: int) -> bytes:
        """Name of a file as the index stores it: relative to the root, or absolute."""
        return self.name_bytes[self.name_starts[file] : self.name_starts[file + 1]].tobytes()

    def file_path(self, file: int) -> bytes:
        """Path of a file, or its URL."""
        name = self.file_name(file)
        return name if get_scheme(name) else os.path.join(os.fsencode(self.root), name)

    def record_name(self, i: int) -> bytes | None:
        """Name of record i in its container, or None where such names are not known."""
        if self.record_bytes is None or self.record_starts is None:
            return None
        return self.record_bytes[self.record_starts[i] : self.record_starts[i + 1]].tobytes()


class RecordReader(ABC):
    """N encoded photos by number. All methods may be called from any number of threads."""

    # Records that one call of read_many should have: more than one where a store answers several requests at once.
    at_once = 1

    # Whether another process can read them by itself: what it is sent is only where they are.
    portable = False

    def __init__(self, locations: RecordLocations) -> None:
        self.places = locations

    def __len__(self) -> int:
        return len(self.places.files)

    def path(self, i: int) -> str:
        """Path of the file that holds record i."""
        return os.fsdecode(self.places.file_path(self.places.files[i]))

    @abstractmethod
    def name(self, i: int) -> str:
        """Name of record i in messages: its file, and where in it."""

    def relative_name(self, i: int) -> bytes:
        """Name of record i in lists of photos: where it is a file, that file relative to the data set's root, or absolute;
        in a container its name there, where it has one."""
        return self.places.record_name(i) or os.fsencode(self.name(i))

    @abstractmethod
    def read(self, i: int) -> bytes:
        """The bytes of record i, `places.lengths[i]` of them.

        Raises DataError naming the record where it is gone, unreadable, or of another length or digest than in the index.
        """

    def read_many(self, numbers: Sequence[int]) -> list[bytes]:
        """The bytes of several records, in that order. Raises DataError as `read`."""
        return [self.read(i) for i in numbers]

    def kept_on_disk(self, budget: int) -> RecordReader:
        """These records: what is read over a network from here on is kept in the cache folder, up to `budget` bytes."""
        return self

    def unchecked(self) -> RecordReader:
        """These records, their bytes not compared with their digests; lengths are."""
        result = object.__new__(type(self))  # copy.copy would open the source again, as another process does
        vars(result).update(vars(self))
        result.places = replace(self.places, digests=None)
        return result

    def checked(self, i: int, data: bytes, result: int) -> bytes:
        """`data`, read for record i. Raises Damaged where `found`, bytes that there are (-1: too few), or their digest is
        another than in the index."""
        length = int(self.places.lengths[i])
        if result != length:
            number = "too few bytes" if result < 0 else f"{result:,} bytes"
            reason = f"{number} instead of {length:,}: the file has changed since it was prepared"
            raise DamagedRecord(self.name(i), reason, self.places.remedy)
        digests = self.places.digests
        if digests is not None and record_digest(data) != int(digests[i]):
            remedy = f"{self.places.changed} {self.places.remedy}".strip()
            raise DamagedRecord(self.name(i), "the bytes differ from those that were prepared", remedy)
        return data

    def unreadable(self, i: int, error: OSError) -> DataError:
        """The error to raise where the system refuses to read record i."""
        remedy = GO_ON if isinstance(error, StoreError) else self.places.remedy
        return DataError(f"{self.name(i)}: cannot be read ({error.strerror or error}). {remedy}")


class FileRecords(RecordReader):
    """Each record is a file: record i is all of file i."""

    portable = True

    def name(self, i: int) -> str:
        return self.path(i)

    def relative_name(self, i: int) -> bytes:
        return self.places.file_name(self.places.files[i])

    def read(self, i: int) -> bytes:
        """By one positioned read of as many bytes as the index has."""
        length = int(self.places.lengths[i])
        try:
            descriptor, size = open_plain_sized(self.places.file_path(self.places.files[i]))
            try:
                # A file that grew is noticed by its size, and not read in part.
                data = pread(descriptor, length, 0) if size == length else b""
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self.unreadable(i, error) from None
        return self.checked(i, data, len(data) if size == length else size)


class RangeRecords(RecordReader):
    """Each record is a range of bytes of a file in a store."""

    def __init__(self, locations: RecordLocations) -> None:
        from paceline.data.storage.object_store import open_store

        super().__init__(locations)
        self._store: ByteStore = open_store(locations.file_path(0)) if len(locations.file_sizes) else LocalFiles()
        self.at_once, self.portable = self._store.at_once, isinstance(self._store, LocalFiles)

    def __reduce__(self) -> Any:
        if type(self).__init__ is not RangeRecords.__init__:
            return object.__reduce_ex__(self, 2)
        return type(self), (self.places,)  # another process opens the store itself

    def kept_on_disk(self, budget: int) -> RecordReader:
        """Done once, however often it is asked for. Raises PacelineError where the cache folder cannot be written."""
        if budget and self._store.is_remote:
            from paceline.data.storage.cache import DiskCacheStore  # here: only those who ask for it load it

            self._store = DiskCacheStore(self._store, budget)
        return self

    def name(self, i: int) -> str:
        """The file's path or URL, and the record's name in it or its first byte."""
        name = self.places.record_name(i)
        where = f"from byte {self.places.offsets[i]:,}" if name is None else os.fsdecode(name)
        return f"{self.path(i)} ({where})"

    def read(self, i: int) -> bytes:
        try:
            data = self._store.read(self._range(i))
        except OSError as error:
            raise self.unreadable(i, error) from None
        return self._whole(i, data)

    def read_many(self, numbers: Sequence[int]) -> list[bytes]:
        """By one request to the store; where that fails, one record after the other, so that the right one is named."""
        try:
            results = self._store.read_many([self._range(i) for i in numbers])
        except RangeError as error:
            raise self.unreadable(numbers[error.at], error.cause) from None
        except OSError:
            return [self.read(i) for i in numbers]
        return [self._whole(i, data) for i, data in zip(numbers, results)]

    def unpack(self, i: int, data: bytes) -> bytes:
        """The record, from the bytes that lie in the file for it. Raises ValueError where they are none."""
        raise ValueError("its index has compressed records, which this record type does not support")

    def _stored(self, i: int) -> int:
        return -1 if self.places.stored_lengths is None else int(self.places.stored_lengths[i])

    def _range(self, i: int) -> ByteRange:
        stored, length = self._stored(i), int(self.places.lengths[i])
        name = self.places.file_path(self.places.files[i])
        return ByteRange(name, int(self.places.offsets[i]), length if stored < 0 else stored)

    def _whole(self, i: int, data: bytes) -> bytes:
        if (stored := self._stored(i)) >= 0:
            if len(data) != stored:
                return self.checked(i, data, -1)
            try:
                data = self.unpack(i, data)
            except ValueError as error:
                raise DamagedRecord(self.name(i), f"damaged ({error})", self.places.remedy) from None
        return self.checked(i, data, len(data))


class DeflatedRecords(RangeRecords):
    """Ranges of bytes, some of them compressed by deflate without a header, as in zip files."""

    def unpack(self, i: int, data: bytes) -> bytes:
        from paceline.data.containers.zip import inflate

        return inflate(data, int(self.places.lengths[i]))


class SplitRecords(RangeRecords):
    """Ranges of bytes, some of them records of MXNet's RecordIO in several parts, from the first part's header on."""

    def unpack(self, i: int, data: bytes) -> bytes:
        from paceline.data.containers.recordio import read_payload

        return read_payload(lambda _, __: data, 0, len(data), self.name(i))


def _itself(records: RecordReader) -> RecordReader:
    return records


class OtherRecords(RecordReader):
    """Records that are read another way and keep the names of `records`."""

    def __init__(self, records: RecordReader) -> None:
        super().__init__(records.places)
        self._records, self.at_once = records, records.at_once

    def __reduce__(self) -> Any:
        return _itself, (self._records,)  # another process reads them at their source

    def name(self, i: int) -> str:
        return self._records.name(i)

    def relative_name(self, i: int) -> bytes:
        return self._records.relative_name(i)

    def read(self, i: int) -> bytes:
        return self.read_many([i])[0]


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


# The kind of a split's records in its manifest -> the class that reads them.
RECORDS: dict[str, Callable[[RecordLocations], RecordReader]] = {
    "files": FileRecords,
    "ranges": RangeRecords,
    "deflate": DeflatedRecords,
    "recordio": SplitRecords,
}


def open_records(kind: str, locations: RecordLocations) -> RecordReader:
    """The records of a split. Raises DataError for a kind that is not known here, and where a container cannot be opened."""
    if kind not in RECORDS:
        raise DataError(
            f"{locations.root}: its manifest has the record type {kind!r}. The supported types are {', '.join(RECORDS)}. "
            "Register a custom type in paceline.data.index.records.RECORDS first (docs/how-to/extend/archive-format.md)."
        )
    return RECORDS[kind](locations)


def record_digest(data: bytes) -> int:
    """Content hash of a record, for the index, prepare's journal and packs: the first 8 bytes of its SHA-256,
    big-endian. More than 2 kB are hashed without Python's lock."""
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big")
