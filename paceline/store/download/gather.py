"""All missing bytes of a file by several connections at once, each a range, noted block by block as they arrive."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from paceline.store.download.asking import Changed, Cut, asked, patiently
from paceline.store.download.part import BLOCK, Part, Version
from paceline.threads import Thread, failure_in_thread

# A store gives one connection some tens of MB/s; more of them than this is unkind to a university's server.
CONNECTIONS = 8
# Bytes of one request: large enough for TCP to reach its speed, small enough to share the rest among connections.
MOST_SPAN = 64 << 20
SLICE = 1 << 18
# A cut attempt that brought so many bytes is no failure.
ENOUGH = 1 << 16
# Seconds between two notes in the journal.
NOTE_EVERY = 2.0


def look(url: str, say: Callable[[str], None]) -> Version | None:
    """What the server has, where it gives ranges of it; None where it does not. Raises Refused, Cut."""

    def first_byte() -> Version | None:
        with asked(url, 0, 0) as answer:
            return Version(url, answer.size, answer.mark) if answer.ranged and answer.size else None

    return patiently(first_byte, threading.Event(), say, first=True)


def gather(version: Version, part: Part, missing: Sequence[int], progress: Callable[[int], None]) -> int:
    """Bring the missing blocks -> how many times a connection was cut on the way.

    progress  called with how many bytes came
    What arrived is noted whatever ends this. Raises Refused, Cut, Changed, OSError.
    """
    team = _Team(version, part, _spans(missing, version.size))
    try:
        team.work(progress)
    finally:
        team.stop()
    return team.interruptions


def _spans(missing: Sequence[int], size: int) -> list[tuple[int, int]]:
    """Runs of missing blocks (first, past the last), none longer than one request should be."""
    most = max(1, min(MOST_SPAN, size // (4 * CONNECTIONS)) // BLOCK)
    spans: list[tuple[int, int]] = []
    for block in missing:
        if spans and spans[-1][1] == block and block - spans[-1][0] < most:
            spans[-1] = (spans[-1][0], block + 1)
        else:
            spans.append((block, block + 1))
    return spans


class _Team:
    """Connections that bring spans of blocks, and the one thread that notes what arrived."""

    def __init__(self, version: Version, part: Part, spans: list[tuple[int, int]]) -> None:
        self.interruptions = 0
        self._version, self._part, self._spans = version, part, deque(spans)
        self._stop = threading.Event()
        self._news: queue.SimpleQueue[int | tuple[int, ...] | Exception | None] = queue.SimpleQueue()
        self._threads = [
            Thread(target=self._connection, name=f"download-{i}", daemon=True)
            for i in range(min(CONNECTIONS, len(spans)))
        ]
        self._arrived: list[int] = []

    def work(self, progress: Callable[[int], None]) -> None:
        """Until all is there. Raises what ended a connection, an interrupt too."""
        for thread in self._threads:
            thread.start()
        running, noted = len(self._threads), time.monotonic()
        while running:
            try:
                news = self._news.get(timeout=NOTE_EVERY)
            except queue.Empty:
                news = 0
            if news is None:
                running -= 1
            elif isinstance(news, Exception):
                raise news
            elif isinstance(news, tuple):
                self._arrived += news
            else:
                progress(news)
            if time.monotonic() - noted > NOTE_EVERY:
                self._note()
                noted = time.monotonic()

    def stop(self) -> None:
        """End the connections, and note what arrived."""
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(0.5)  # one that waits for its server ends by itself, with the process or later
        while True:
            try:
                news = self._news.get_nowait()
            except queue.Empty:
                break
            if isinstance(news, tuple):
                self._arrived += news
        self._note()

    def _note(self) -> None:
        self._part.note(self._arrived)
        self._arrived = []

    def _connection(self) -> None:
        try:
            descriptor = self._part.writer()
            try:
                while not self._stop.is_set():
                    try:
                        first, past = self._spans.popleft()
                    except IndexError:
                        break
                    self._span(descriptor, first, past)
            finally:
                os.close(descriptor)
            self._news.put(None)
        except BaseException as error:
            self._news.put(failure_in_thread(error))

    def _span(self, descriptor: int, first: int, past: int) -> None:
        """Blocks first..past-1, over as many requests as it takes."""
        at, end = first * BLOCK, min(past * BLOCK, self._version.size)

        def attempt() -> bool:
            """Whether all is there; an attempt that brought something and was cut is followed by another at once."""
            nonlocal at
            began = at
            try:
                with asked(self._version.url, at, end - 1, self._version.mark) as answer:
                    if not answer.ranged or (answer.size is not None and answer.size != self._version.size):
                        raise Changed
                    left = answer.length or 0
                    while left and not self._stop.is_set():
                        data = answer.read(min(SLICE, left))
                        if not data:
                            raise Cut(f"the connection was cut at byte {at:,}")
                        if self._stop.is_set():
                            break
                        _write_at(descriptor, data, at)
                        before, at, left = at // BLOCK, at + len(data), left - len(data)
                        self._news.put(len(data))
                        now = at // BLOCK if at < end else past
                        if now > before:
                            self._news.put(tuple(range(before, now)))
            except Cut:
                self.interruptions += 1
                if at - began < ENOUGH:
                    raise
                return False
            return at >= end or self._stop.is_set()

        while not patiently(attempt, self._stop):
            pass


def _write_at(descriptor: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written
