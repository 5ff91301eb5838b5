"""Verify photos, by several processes where there are many, and remember what was verified where a prepare is killed.

The journal has one line a file, appended and never rewritten:
    v3 CRC SIZE MTIME HEIGHT WIDTH FLAGS DIGEST NAME     integers, and the name (relative to the root) percent-encoded
CRC is that of what follows it. A line that a kill tore, or that anything changed, does not count: its photo is verified again.
A process appends whole batches with one write, so that two that prepare the same data at once do no harm to each other.
It lies in this user's cache folder and not beside the photos: a folder from somebody else could bring one that says of any file
that it was verified. Where the cache cannot be written there is none, and a killed prepare begins anew.

Also a note on pictures of 16 bits a value that use the lower ones alone, as cameras of 10, 12 or 14 bits write them. Training keeps
the upper eight (data/transforms/image_io.py), and nothing in such a file names its white, so they come out nearly black.

Letter: N photos.
"""

from __future__ import annotations

import os
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote_from_bytes, unquote_to_bytes

import numpy as np

from paceline._utils.cache import cache_folder
from paceline._utils.errors import DataError, PacelineError
from paceline._utils.journal import Journal, read_lines
from paceline._utils.platform import count_cpus
from paceline._utils.safe_read import read_plain
from paceline.data.index.index import file_per_record_arrays
from paceline.data.index.manifest import FILES, cached_manifest_folder
from paceline.data.prepare.verify_image import NOT_JPEG, ImageInfo, InvalidImage, verify
from paceline.data.transforms.exif import orientations
from paceline.data.transforms.image_io import MAX_BYTES, find_dropped_channels, is_deep, open_image, to_rgb
from paceline.data.workers.crew import WORTH_PROCESSES, WorkerCrew

# Photos that a worker takes at a time. A kill loses at most three times as many for each worker.
BATCH = 32
COLUMNS = (np.int64, np.int64, np.int32, np.int32, np.uint8, np.uint64)  # of an Inspection
# Photos, evenly spaced among those that are no JPEGs, whose brightest value is looked up.
SAMPLED = 32
# Of 255: what 14 of 16 bits reach at most.
DARK = 63


@dataclass(frozen=True)
class Inspection:
    """What is known of N photos. One whose number is in `reasons` cannot be used; its row is zero but for `sizes`."""

    sizes: np.ndarray  # (N,) int64 bytes, -1 where unknown
    mtimes: np.ndarray  # (N,) int64 nanoseconds
    heights: np.ndarray  # (N,) int32 pixels as stored
    widths: np.ndarray  # (N,) int32
    flags: np.ndarray  # (N,) uint8, bits of verify_image.py
    digests: np.ndarray  # (N,) uint64
    reasons: dict[int, str]
    dropped: Counter[str] = field(default_factory=Counter)  # what of a picture is not read -> photos

    def put(self, i: int, facts: ImageInfo) -> None:
        """Fill row i."""
        self.sizes[i], self.mtimes[i], self.heights[i], self.widths[i], self.flags[i], self.digests[i] = facts


class ImagesToVerify:
    """N photos to be verified: files, named relative to the root or absolute; containers' read others (containers/listing.py).

    names  in lists and in the journal, each once
    """

    kind = FILES  # a word of data/index/records.py's RECORDS
    portable = True  # whether another process can read them by itself

    def __init__(self, root: Path, names: Sequence[bytes]) -> None:
        self.root = root
        self.names = names

    def title(self, i: int) -> str:
        """Photo i's name in messages."""
        return os.path.join(self.root, os.fsdecode(self.names[i]))

    def stamp(self, i: int) -> tuple[int, int]:
        """Bytes, and time in nanoseconds; equal means unchanged. Raises OSError where the photo is gone."""
        status = os.stat(self._path(i))
        return status.st_size, status.st_mtime_ns

    def read(self, i: int) -> bytes:
        """Photo i's bytes. Raises OSError or DataError where they cannot be read."""
        return read_plain(self._path(i), MAX_BYTES)

    def facts(self, i: int) -> ImageInfo:
        """Read and decode photo i. Raises InvalidImage with the reason."""
        return verify(self._path(i))

    def arrays(
        self, rows: np.ndarray, labels: np.ndarray, result: Inspection, extra: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """The index's arrays of photos `rows`: their classes, their facts, and `extra`."""
        return file_per_record_arrays(
            [self.names[i] for i in rows.tolist()],
            lengths=result.sizes[rows],
            labels=labels,
            heights=result.heights[rows],
            widths=result.widths[rows],
            extra={"flags": result.flags[rows], "digests": result.digests[rows], "mtimes": result.mtimes[rows], **extra},
        )

    def size(self, i: int) -> int:
        """Bytes, -1 where photo i does not exist, whatever it is."""
        try:
            return self.stamp(i)[0]
        except OSError:
            return -1

    def _path(self, i: int) -> bytes:
        return os.path.join(os.fsencode(self.root), self.names[i])


def inspect_photos(
    photos: ImagesToVerify,
    *,
    journal: Path | None,
    known: Iterable[tuple[bytes, ImageInfo]],
    workers: int | None,
    progress: Callable[[int, int], None] | None,
) -> Inspection:
    """Verify every photo, except those that `known` or the journal has with the same size and time.

    workers    processes, or threads for a few photos; None: one for each usable core
    progress   called in this thread with (photos done, photos in all), first of all with (0, N)
    Adds to the journal as it goes.
    """
    names = photos.names
    number = len(names)
    result = Inspection(*[np.zeros(number, dtype) for dtype in COLUMNS], reasons={})
    is_known = _recall(result, names, [known, read_journal(journal)])
    verification = _Verification(photos, is_known, result.sizes, result.mtimes, result.flags)
    writer, done = PrepareJournal(journal), 0
    if progress is not None:
        progress(done, number)
    size = max(1, min(workers or count_cpus(), -(-number // BATCH)))
    processes = photos.portable and number >= WORTH_PROCESSES
    with warnings.catch_warnings(), WorkerCrew(verification, size, processes=processes) as crew:
        # Corrupt EXIF, very large pictures: verify() judges by decoding. The filter is the whole process's.
        warnings.simplefilter("ignore")
        for batch in crew.map_ordered(((first,) for first in range(0, number, BATCH)), ahead=2 * size):
            new = [(i, facts) for i, facts, _, _ in batch if facts is not None]
            for i, facts in new:
                result.put(i, facts)
            result.reasons.update((i, reason) for i, _, reason, _ in batch if reason)
            result.dropped.update(what for *_, dropped in batch for what in dropped)
            writer.append([(names[i], facts) for i, facts in new if i not in result.reasons])
            done = min(done + BATCH, number)
            if progress is not None:
                progress(done, number)
    return result


@dataclass(frozen=True)
class _Verification:
    """Of the photos from a number on, BATCH of them."""

    photos: ImagesToVerify
    is_known: np.ndarray  # (N,) bool
    sizes: np.ndarray  # (N,), of those that are known
    mtimes: np.ndarray
    flags: np.ndarray

    def __call__(self, first: int) -> list[tuple[int, ImageInfo | None, str, tuple[str, ...]]]:
        """-> (number, facts unless they are known, why it cannot be used or "", what of it is not read)."""
        last = min(first + BATCH, len(self.photos.names))
        return [self._verified(i) for i in range(first, last)]

    def _unchanged(self, i: int) -> bool:
        with suppress(OSError):
            return bool(self.is_known[i]) and self.photos.stamp(i) == (self.sizes[i], self.mtimes[i])
        return False

    def _verified(self, i: int) -> tuple[int, ImageInfo | None, str, tuple[str, ...]]:
        if self._unchanged(i):
            return i, None, "", self._dropped(i, int(self.flags[i]))
        try:
            facts = self.photos.facts(i)
        except InvalidImage as error:
            return i, ImageInfo(self.photos.size(i), 0, 0, 0, 0, 0), str(error), ()
        return i, facts, "", self._dropped(i, facts.flags)

    def _dropped(self, i: int, flags: int) -> tuple[str, ...]:
        with suppress(OSError, DataError):
            return find_dropped_channels(self.photos.read(i)) if flags & NOT_JPEG else ()
        return ()


def _recall(result: Inspection, names: Sequence[bytes], sources: Iterable[Iterable[tuple[bytes, ImageInfo]]]) -> np.ndarray:
    """Fill the rows that an earlier prepare verified -> (N,) bool, True for those whose orientation is known.

    An older version recorded that a photo is rotated, and not how.
    """
    is_known = np.zeros(len(names), bool)
    position: dict[bytes, int] = {}
    for source in sources:
        for name, facts in source:
            position = position or {name: i for i, name in enumerate(names)}
            i = position.get(name)
            if i is not None:
                result.put(i, facts)
                is_known[i] = True
    return is_known & (orientations(result.flags) > 0)


def note_low_bit_depth(photos: ImagesToVerify, flags: np.ndarray, left_out: Collection[int]) -> tuple[str, ...]:
    """A note for people, or none.

    flags     (N,) bits of verify_image.py
    left_out  numbers of photos that cannot be used
    """
    rows = np.setdiff1d(np.flatnonzero(flags & NOT_JPEG), list(left_out))
    if not len(rows):
        return ()
    deep, brightest, first = 0, 0, ""
    for i in rows[np.unique(np.linspace(0, len(rows) - 1, SAMPLED, dtype=np.int64))].tolist():
        value = _brightest(photos, i)
        if value > DARK:
            return ()
        if value >= 0:
            deep, brightest, first = deep + 1, max(brightest, value), first or photos.title(i)
    if not deep:
        return ()
    bits = brightest.bit_length() + 8
    return (
        f"{first}: has 16 bits per value, but the {deep:,} such images that were checked use at most {bits} bits. Only "
        f"the upper 8 bits are kept, so the images will be nearly black. If white is {2**bits - 1:,}, multiply the "
        f"values by {2 ** (16 - bits)}, or save the images with 8 bits. Then prepare the data again.",
    )


def _brightest(photos: ImagesToVerify, i: int) -> int:
    """The largest value as training sees it, 0 to 255, of a picture of 16 bits a value; -1 for any other."""
    try:
        data = photos.read(i)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with open_image(data) as image:
                return int(np.asarray(to_rgb(image)).max()) if is_deep(image, data) else -1
    except Exception:  # the facts are an earlier manifest's; a photo that was damaged since is named when it is read
        return -1


# Raise it when verify() becomes stricter: what older code let pass is then looked at again.
VERSION = b"v3"
# Seven integers and a path, each of whose bytes may be written as three.
MAX_LINE = 1 << 14


def open_prepare_journal(path: Path) -> Path | None:
    """The journal of the data set whose manifest goes to the folder `path`; None where no cache folder is known."""
    try:
        return cache_folder() / "prepare" / f"{cached_manifest_folder(path).name}.journal"
    except PacelineError:
        return None


def read_journal(path: Path | None) -> Iterator[tuple[bytes, ImageInfo]]:
    """(name, facts) of every whole line; nothing where there is no journal of this user's. Of a name twice the later one counts."""
    if path is None:
        return
    with suppress(OSError):
        for line in read_lines(path, MAX_LINE, own=True):  # a cache folder may be shared
            version, _, rest = line.partition(b" ")
            crc, _, rest = rest.partition(b" ")
            words = rest.split()
            if version == VERSION and crc == b"%08x" % zlib.crc32(rest + b"\n") and len(words) == 7:
                yield unquote_to_bytes(words[6]), ImageInfo(*map(int, words[:6]))


class PrepareJournal:
    """Appended to from any number of threads. What cannot be written is not remembered, which costs time alone."""

    def __init__(self, path: Path | None) -> None:
        self._journal: Journal | None = None
        if path is not None:
            with suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                self._journal = Journal(path, shared=True, most=None, mode=0o600)

    def append(self, batch: Iterable[tuple[bytes, ImageInfo]]) -> None:
        """Add files that were verified; they survive the death of this process from here on."""
        if self._journal is not None:
            with suppress(OSError):
                self._journal.append(b"".join(_line(name, facts) for name, facts in batch))


def _line(name: bytes, facts: ImageInfo) -> bytes:
    """With its newline, so that the CRC covers that too."""
    rest = b"%d %d %d %d %d %d " % facts + quote_from_bytes(name).encode() + b"\n"
    return VERSION + b" %08x " % zlib.crc32(rest) + rest
