"""A file while it arrives by ranges: NAME.part with holes, and NAME.part.journal with the blocks that are there.

The journal's first line has the version (its bytes, validator and address); each line after it is the
number of a block that is on the disk whole. Blocks are noted after their bytes are on the disk, so what the journal names
survives a power cut too.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from paceline._utils.atomic_write import sync_folder
from paceline._utils.errors import DataError
from paceline._utils.journal import Journal, lock, read_lines
from paceline._utils.platform import O_BINARY, O_NOFOLLOW
from paceline._utils.threads import copy_in_parallel, write_at
from paceline.data.download.http import ConnectionLost, RemoteFileChanged, get, with_retries

BLOCK = 1 << 20  # bytes; what a kill can lose of each connection
FORMAT = 1
LONGEST_LINE = 1 << 14
# A server gives one connection some tens of MB/s; more of them than this is unkind to a university's server.
CONNECTIONS = 8
# Bytes of one request: large enough for TCP to reach its speed, small enough to share the rest among connections.
LONGEST_SPAN = 64 << 20
SLICE = 1 << 18
# An attempt that was cut after so many bytes is no failure.
ENOUGH = 1 << 16
# Seconds between two notes in the journal.
NOTE_EVERY = 2.0


class RemoteVersion(NamedTuple):
    """Which file a server has under an address."""

    url: str
    size: int  # bytes
    validator: str  # its strong ETag or date, "" where it gives none


class PartialFile:
    """The part file of one destination; the process that holds it is the only one that writes it."""

    def __init__(self, destination: Path) -> None:
        """Raises DataError where the folder cannot be written to, or another process is downloading the same file."""
        self.destination = destination
        self.path = destination.with_name(f"{destination.name}.part")
        journal = destination.with_name(f"{destination.name}.part.journal")
        if not os.path.lexists(journal) and self.path.is_file() and self.path.stat().st_size:
            raise DataError(
                f"{self.path}: not a partial download of paceline (perhaps of a browser). Move it away, or choose another "
                "folder."
            )
        self._made = [folder for folder in destination.parents if not folder.exists()]  # innermost first
        self._lock = -1
        try:
            destination.parent.mkdir(parents=True, exist_ok=True)
            self._lock = lock(journal)
            self._journal = Journal(journal)
            # NOFOLLOW: a link that somebody left under this name would have us write elsewhere.
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | O_NOFOLLOW | O_BINARY, 0o644)
        except BlockingIOError:
            raise DataError(f"{destination}: another process is downloading this file. Wait, or stop it.") from None
        except OSError as error:
            if self._lock >= 0:
                os.close(self._lock)
            raise write_error(self.destination, error) from None

    def __enter__(self) -> PartialFile:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave what arrived for the next attempt; where that is nothing, leave nothing."""
        if self._file < 0:
            return
        if not self.bytes_kept():
            self.path.unlink(missing_ok=True)
            self._journal.path.unlink(missing_ok=True)
            with suppress(OSError):  # somebody has put something there
                for folder in self._made:
                    folder.rmdir()
        self._close()

    def begin(self, version: RemoteVersion, *, same_content: bool) -> set[int]:
        """-> the blocks of this version that are there from before; where it is another version's, they are dropped.

        same_content  a digest is checked at the end, so another address may go on with what this one began
        """
        old, blocks = self._read()
        same = version == old
        if old is not None and same_content and old.url != version.url:
            same = old.size == version.size
        if same and os.fstat(self._file).st_size == version.size:
            return blocks
        self.drop()
        os.ftruncate(self._file, version.size)
        record = {"paceline_download": FORMAT, "url": version.url, "size": version.size, "mark": version.validator}
        self._journal.append(json.dumps(record).encode() + b"\n")
        return set()

    def note(self, blocks: Collection[int]) -> None:
        """Remember that these blocks are there whole. Raises OSError."""
        if blocks:
            os.fdatasync(self._file) if hasattr(os, "fdatasync") else os.fsync(self._file)
            self._journal.append(b"".join(b"%d\n" % block for block in sorted(blocks)))

    def drop(self) -> None:
        """Forget all that arrived."""
        self._journal.clear()
        os.ftruncate(self._file, 0)

    def bytes_kept(self) -> int:
        """Bytes that the journal knows of."""
        version, blocks = self._read()
        return sum(min(BLOCK, version.size - block * BLOCK) for block in blocks) if version else 0

    def writer(self) -> int:
        """A descriptor of one's own for the part file; the caller closes it."""
        return os.open(self.path, os.O_WRONLY | O_NOFOLLOW | O_BINARY)

    def finish(self) -> None:
        """Give the file its name: at once, and when all of it is on the disk. Raises OSError."""
        os.fsync(self._file)
        os.replace(self.path, self.destination)
        self._journal.path.unlink()
        self._close()
        sync_folder(self.destination.parent)

    def _read(self) -> tuple[RemoteVersion | None, set[int]]:
        """What the journal is of, and its blocks."""
        lines = read_lines(self._journal.path, LONGEST_LINE)
        try:
            record = json.loads(next(lines, b""))
            if record["paceline_download"] != FORMAT:
                return None, set()
            version = RemoteVersion(str(record["url"]), int(record["size"]), str(record["mark"]))
        except (ValueError, KeyError, TypeError):
            return None, set()
        blocks = {int(line) for line in lines if line.isdigit() and len(line) < 12}
        return version, {block for block in blocks if block * BLOCK < version.size}

    def _close(self) -> None:
        os.close(self._file)
        os.close(self._lock)
        self._file = self._lock = -1


def fetch_ranges(version: RemoteVersion, part: PartialFile, missing: Sequence[int], progress: Callable[[int], None]) -> int:
    """Download the missing blocks over several connections -> how many times one was cut on the way.

    progress  called with how many bytes came
    What arrived is noted whatever ends this. Raises Refused, Cut, Changed, OSError.
    """
    arrived: list[int] = []
    cuts, noted = 0, time.monotonic()

    def copy(span: tuple[int, int], report: Callable[[_News], None], stop: threading.Event) -> None:
        writer = part.writer()
        try:
            _fetch_span(version, span, writer, report, stop)
        finally:
            os.close(writer)

    def take(news: list[_News]) -> None:
        nonlocal cuts, noted
        for each in news:
            arrived.extend(each.blocks)
            cuts += each.was_cut
        if came := sum(each.bytes for each in news):
            progress(came)
        if time.monotonic() - noted > NOTE_EVERY:
            part.note(arrived)
            arrived.clear()
            noted = time.monotonic()

    spans = _spans(missing, version.size)
    try:
        if spans:
            copy_in_parallel(spans, copy, take, threads=min(CONNECTIONS, len(spans)), name="download")
    finally:
        part.note(arrived)
    return cuts


class _News(NamedTuple):
    bytes: int = 0
    blocks: range = range(0)  # that are whole now
    was_cut: bool = False


def _spans(missing: Sequence[int], size: int) -> list[tuple[int, int]]:
    """Runs of missing blocks (first, past the last), none longer than one request should be."""
    most = max(1, min(LONGEST_SPAN, size // (4 * CONNECTIONS)) // BLOCK)
    spans: list[tuple[int, int]] = []
    for block in missing:
        if spans and spans[-1][1] == block and block - spans[-1][0] < most:
            spans[-1] = (spans[-1][0], block + 1)
        else:
            spans.append((block, block + 1))
    return spans


def _fetch_span(
    version: RemoteVersion, span: tuple[int, int], writer: int, report: Callable[[_News], None], stop: threading.Event
) -> None:
    """All bytes of a span of blocks, over as many requests as it takes."""
    at, end = span[0] * BLOCK, min(span[1] * BLOCK, version.size)

    def attempt() -> bool:
        """Whether all is there; an attempt that brought something and was cut is followed by another at once."""
        nonlocal at
        began = at
        try:
            with get(version.url, at, end - 1, version.validator) as answer:
                if not answer.is_range or (answer.size is not None and answer.size != version.size):
                    raise RemoteFileChanged
                left = answer.length or 0
                while left and not stop.is_set():
                    data = answer.read(min(SLICE, left))
                    if not data:
                        raise ConnectionLost(f"the connection was lost at byte {at:,}")
                    if stop.is_set():
                        break
                    write_at(writer, data, at)
                    before, at, left = at // BLOCK, at + len(data), left - len(data)
                    report(_News(len(data), range(before, at // BLOCK if at < end else span[1])))
        except ConnectionLost:
            report(_News(was_cut=True))
            if at - began < ENOUGH:
                raise
            return False
        return at >= end or stop.is_set()

    while not with_retries(attempt, stop):
        pass


def write_error(destination: Path, error: OSError) -> DataError:
    """Why a file cannot be written where it should go, and the next step."""
    reason = error.strerror or error
    return DataError(f"{destination}: cannot be written ({reason}). Choose another folder, or free some space.")
