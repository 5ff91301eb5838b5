"""Verify photos in parallel threads (reading, hashing and decoding let go of Python's lock).

Letter: N photos.
"""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paceline.config.plain_file import read_plain
from paceline.datasets.journal import PrepareJournal, read_journal
from paceline.datasets.verify import Facts, NotAnImage, verify
from paceline.machine.detect import cpu_cores
from paceline.store.header import MOST_BYTES
from paceline.store.index import whole_files
from paceline.store.manifest import FILES
from paceline.store.orientation import orientations

# Photos a thread takes at a time, and the most that a kill can lose of its work.
BATCH = 32


COLUMNS = (np.int64, np.int64, np.int32, np.int32, np.uint8, np.uint64)  # of an Inspection


@dataclass(frozen=True)
class Inspection:
    """What is known of N photos. One whose number is in `reasons` cannot be used; its row is zero but for `sizes`.

    sizes    (N,) int64 bytes, -1 where unknown      mtimes   (N,) int64 nanoseconds
    heights  (N,) int32 pixels as stored             widths   (N,) int32
    flags    (N,) uint8, bits of verify.py           digests  (N,) uint64
    """

    sizes: np.ndarray
    mtimes: np.ndarray
    heights: np.ndarray
    widths: np.ndarray
    flags: np.ndarray
    digests: np.ndarray
    reasons: dict[int, str]

    def put(self, i: int, facts: Facts) -> None:
        """Fill row i."""
        self.sizes[i], self.mtimes[i], self.heights[i], self.widths[i], self.flags[i], self.digests[i] = facts


class Photos(ABC):
    """N photos to be looked at, wherever their bytes lie. `names` is what lists and the journal call them, each once."""

    kind = FILES  # a word of store/records.py's RECORDS

    def __init__(self, root: Path, names: Sequence[bytes]) -> None:
        self.root = root
        self.names = names

    @abstractmethod
    def called(self, i: int) -> str:
        """What messages call photo i."""

    @abstractmethod
    def stamp(self, i: int) -> tuple[int, int]:
        """Bytes, and time in nanoseconds; equal means unchanged. Raises OSError where the photo is gone."""

    @abstractmethod
    def read(self, i: int) -> bytes:
        """Photo i's bytes. Raises OSError or DataError where they cannot be read."""

    @abstractmethod
    def facts(self, i: int) -> Facts:
        """Read and decode photo i. Raises NotAnImage with the reason."""

    def arrays(
        self, rows: np.ndarray, labels: np.ndarray, found: Inspection, extra: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """The index's arrays of photos `rows`: their classes, what was `found`, and `extra`."""
        return whole_files(
            [self.names[i] for i in rows.tolist()],
            lengths=found.sizes[rows],
            labels=labels,
            heights=found.heights[rows],
            widths=found.widths[rows],
            extra={"flags": found.flags[rows], "digests": found.digests[rows], "mtimes": found.mtimes[rows], **extra},
        )

    def is_there(self, i: int) -> bool:
        """Whether photo i can be found, whatever it is."""
        return self.size(i) >= 0

    def size(self, i: int) -> int:
        """Bytes, -1 where even that is unknown."""
        try:
            return self.stamp(i)[0]
        except OSError:
            return -1


class PhotoFiles(Photos):
    """Photos that are files, named relative to the root or absolute."""

    def called(self, i: int) -> str:
        """The file's path."""
        return os.path.join(self.root, os.fsdecode(self.names[i]))

    def stamp(self, i: int) -> tuple[int, int]:
        """Size and modification time."""
        status = os.stat(self._path(i))
        return status.st_size, status.st_mtime_ns

    def read(self, i: int) -> bytes:
        """The file."""
        return read_plain(self._path(i), MOST_BYTES)

    def facts(self, i: int) -> Facts:
        """Of the file."""
        return verify(self._path(i))

    def _path(self, i: int) -> bytes:
        return os.path.join(os.fsencode(self.root), self.names[i])


def inspect_photos(
    photos: Photos,
    *,
    journal: Path | None,
    known: Iterable[tuple[bytes, Facts]],
    workers: int | None,
    progress: Callable[[int, int], None] | None,
) -> Inspection:
    """Verify every photo, except those that `known` or the journal tell of with the same size and time.

    workers    threads; None: one for each usable core
    progress   called in this thread with (photos done, photos in all), first of all with (0, N)
    Adds to the journal as it goes.
    """
    names = photos.names
    number = len(names)
    found = Inspection(*[np.zeros(number, dtype) for dtype in COLUMNS], reasons={})
    is_known = _recall(found, names, [known, read_journal(journal)])
    writer = PrepareJournal(journal)

    def inspect_batch(first: int) -> int:
        new = []
        last = min(first + BATCH, number)
        for i in range(first, last):
            if is_known[i] and _unchanged(photos, i, found):
                continue
            try:
                facts = photos.facts(i)
            except NotAnImage as error:
                found.put(i, Facts(photos.size(i), 0, 0, 0, 0, 0))
                found.reasons[i] = str(error)
            else:
                found.put(i, facts)
                new.append((names[i], facts))
        writer.append(new)
        return last - first

    pool = ThreadPoolExecutor(workers or cpu_cores(), thread_name_prefix="verify")
    try:
        with warnings.catch_warnings():
            # Corrupt EXIF, very large pictures: verify() judges by decoding. The filter is the whole process's.
            warnings.simplefilter("ignore")
            done = 0
            if progress is not None:
                progress(done, number)
            for batch in as_completed([pool.submit(inspect_batch, first) for first in range(0, number, BATCH)]):
                done += batch.result()
                if progress is not None:
                    progress(done, number)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return found


def _recall(found: Inspection, names: Sequence[bytes], sources: Iterable[Iterable[tuple[bytes, Facts]]]) -> np.ndarray:
    """Fill the rows that an earlier prepare verified -> (N,) bool, True for those.

    Not where an older version noted that a photo is rotated, and not how.
    """
    is_known = np.zeros(len(names), bool)
    position: dict[bytes, int] = {}
    for source in sources:
        for name, facts in source:
            position = position or {name: i for i, name in enumerate(names)}
            i = position.get(name)
            if i is not None:
                found.put(i, facts)
                is_known[i] = True
    return is_known & (orientations(found.flags) > 0)


def _unchanged(photos: Photos, i: int, found: Inspection) -> bool:
    try:
        return photos.stamp(i) == (found.sizes[i], found.mtimes[i])
    except OSError:
        return False
