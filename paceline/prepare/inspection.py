"""Verify a list of files in parallel threads (reading, hashing and decoding let go of Python's lock).

Letter: N files.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paceline.data.orientation import orientations
from paceline.prepare.journal import Journal, read_journal
from paceline.prepare.verify import Facts, NotAnImage, verify

# Files a thread takes at a time, and the most that a kill can lose of its work.
BATCH = 32


@dataclass(frozen=True)
class Inspection:
    """What is known of N files. One whose number is in `reasons` cannot be used; its row is zero but for `sizes`.

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


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def inspect_files(
    root: Path,
    names: Sequence[bytes],
    *,
    journal: Path,
    known: Iterable[tuple[bytes, Facts]],
    workers: int | None,
    progress: Callable[[int, int], None] | None,
) -> Inspection:
    """Verify every file `root`/name, except those that `known` or the journal tell of with the same size and time.

    workers    threads; None: one for each usable core
    progress   called in this thread with (files done, files in all), first of all with (0, N)
    Adds to the journal as it goes. Raises OSError where the journal cannot be written.
    """
    number = len(names)
    found = _empty(number)
    is_known = _recall(found, names, [known, read_journal(journal)])
    writer = Journal(journal)

    def inspect_batch(first: int) -> int:
        new = []
        last = min(first + BATCH, number)
        for i in range(first, last):
            path = os.path.join(os.fsencode(root), names[i])
            if is_known[i] and _unchanged(path, found.sizes[i], found.mtimes[i]):
                continue
            try:
                facts = verify(path)
            except NotAnImage as error:
                found.put(i, Facts(_size(path), 0, 0, 0, 0, 0))
                found.reasons[i] = str(error)
            else:
                found.put(i, facts)
                new.append((names[i], facts))
        writer.append(new)
        return last - first

    pool = ThreadPoolExecutor(workers or usable_cores(), thread_name_prefix="verify")
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
        writer.close()
    return found


def _empty(number: int) -> Inspection:
    return Inspection(
        sizes=np.zeros(number, np.int64),
        mtimes=np.zeros(number, np.int64),
        heights=np.zeros(number, np.int32),
        widths=np.zeros(number, np.int32),
        flags=np.zeros(number, np.uint8),
        digests=np.zeros(number, np.uint64),
        reasons={},
    )


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


def _unchanged(path: bytes, size: int, mtime: int) -> bool:
    try:
        status = os.stat(path)
    except OSError:
        return False
    return status.st_size == size and status.st_mtime_ns == mtime


def _size(path: bytes) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return -1
