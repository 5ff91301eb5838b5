"""Records: the encoded photos of one split, wherever their bytes lie.

A manifest says of each split what its records are (`Split.records`), a word of RECORDS below:
    files   each record is a file of its own
    ranges  each record is a range of bytes of a plain file that holds many (tar without compression, RecordIO, TFRecord)
A container of another kind is a class like these and a line in RECORDS (docs/extending/container.md).

Letters: N records of one split, F files that hold them.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paceline.config.errors import DataError
from paceline.config.plain_file import open_plain_sized
from paceline.data.open_files import OpenFiles


@dataclass(frozen=True)
class Places:
    """Where the records of one split lie, as the index says (data/index.py). What offsets count is the container's matter."""

    root: Path
    files: np.ndarray  # (N,) int32, which file
    offsets: np.ndarray  # (N,) int64, where in it
    lengths: np.ndarray  # (N,) int64, bytes of the record as it is read
    name_bytes: np.ndarray  # (total,) uint8, all file names without separators
    name_starts: np.ndarray  # (F+1,) int64
    file_sizes: np.ndarray  # (F,) int64 bytes
    remedy: str  # what an error tells the user to do

    def file_name(self, file: int) -> bytes:
        """Name of a file as the index stores it: relative to the root, or absolute."""
        return self.name_bytes[self.name_starts[file] : self.name_starts[file + 1]].tobytes()

    def file_path(self, file: int) -> bytes:
        """Path of a file."""
        return os.path.join(os.fsencode(self.root), self.file_name(file))


class Records(ABC):
    """N encoded photos by number. All methods may be called from any number of threads."""

    # As many as one call of read_many should be asked for: more than one where a store answers several at once.
    at_once = 1

    def __init__(self, places: Places) -> None:
        self.places = places

    def __len__(self) -> int:
        return len(self.places.files)

    def path(self, i: int) -> str:
        """Path of the file that holds record i."""
        return os.fsdecode(self.places.file_path(self.places.files[i]))

    @abstractmethod
    def name(self, i: int) -> str:
        """What messages call record i: its file, and where in it."""

    def relative_name(self, i: int) -> bytes:
        """What lists of photos call record i: where it is a file, that file relative to the data set's root, or absolute."""
        return os.fsencode(self.name(i))

    @abstractmethod
    def read(self, i: int) -> bytes:
        """The bytes of record i, `places.lengths[i]` of them.

        Raises DataError naming the record where it is gone, unreadable, or no longer as long as the index says.
        """

    def read_many(self, numbers: Sequence[int]) -> list[bytes]:
        """The bytes of several records, in that order. Raises DataError as `read`."""
        return [self.read(i) for i in numbers]

    def checked(self, i: int, data: bytes, found: int) -> bytes:
        """`data`, read for record i. Raises DataError where `found`, bytes that there are, is not what the index says."""
        length = int(self.places.lengths[i])
        if found != length:
            raise DataError(
                f"{self.name(i)}: {found:,} bytes where the index says {length:,}: changed since it was prepared. "
                f"{self.places.remedy}"
            )
        return data

    def unreadable(self, i: int, error: OSError) -> DataError:
        """What to raise where the system refuses to read record i."""
        return DataError(f"{self.name(i)}: cannot be read ({error.strerror or error}). {self.places.remedy}")


class FileRecords(Records):
    """Each record is a file: record i is all of file i."""

    def name(self, i: int) -> str:
        """The file's path."""
        return self.path(i)

    def relative_name(self, i: int) -> bytes:
        """As the index stores it."""
        return self.places.file_name(self.places.files[i])

    def read(self, i: int) -> bytes:
        """By one positioned read of as many bytes as the index says."""
        length = int(self.places.lengths[i])
        try:
            descriptor, size = open_plain_sized(self.places.file_path(self.places.files[i]))
            try:
                # A file that grew is noticed by its size, and not read in part.
                data = _pread(descriptor, length, 0) if size == length else b""
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self.unreadable(i, error) from None
        return self.checked(i, data, len(data) if size == length else size)


class RangeRecords(Records):
    """Each record is a range of bytes of a file, of which a bounded number are kept open."""

    def __init__(self, places: Places) -> None:
        super().__init__(places)
        self._open = OpenFiles()

    def name(self, i: int) -> str:
        """The file's path, and the first byte."""
        return f"{self.path(i)} (bytes {self.places.offsets[i]:,} on)"

    def read(self, i: int) -> bytes:
        """By one positioned read."""
        try:
            with self._open.descriptor(self.places.file_path(self.places.files[i])) as descriptor:
                data = _pread(descriptor, int(self.places.lengths[i]), int(self.places.offsets[i]))
        except OSError as error:
            raise self.unreadable(i, error) from None
        return self.checked(i, data, len(data))


# What a manifest calls the records of a split -> what reads them.
RECORDS: dict[str, Callable[[Places], Records]] = {"files": FileRecords, "ranges": RangeRecords}


def open_records(kind: str, places: Places) -> Records:
    """The records of a split. Raises DataError for a kind that is not known here, and where a container cannot be opened."""
    if kind not in RECORDS:
        raise DataError(
            f"{places.root}: its manifest says that records are of the kind {kind!r}; known here: {', '.join(RECORDS)}. "
            "A kind of your own has to be entered in paceline.data.records.RECORDS first (docs/extending/container.md)."
        )
    return RECORDS[kind](places)


def _pread(descriptor: int, length: int, offset: int) -> bytes:
    """Up to `length` bytes from `offset`: fewer only at the file's end (one system call reads at most 2 GiB)."""
    data = os.pread(descriptor, length, offset)
    while len(data) < length:
        more = os.pread(descriptor, length - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data
