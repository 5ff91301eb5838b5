"""Threads whose start cannot block for ever, errors that are raised in the thread that started the work; copies by several threads.

Downloads (data/download/part.py) and copies to a local disk (data/storage/staged_copy.py) are copied in pieces, with notes for a
resume; the bucket cache shares threads and writes at an offset.
"""

from __future__ import annotations

import queue
import shutil
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from paceline._utils.platform import pwrite

# Interval and number of checks whether a new thread has begun. A count, not a clock: waking from suspension raises no false alarm.
LOOK_SECONDS, LOOKS = 0.1, 100


class Thread(threading.Thread):
    """threading.Thread, whose start() raises RuntimeError where the new thread never begins.

    A thread without memory for its first lines dies silently, and Python's own start() then waits without end.
    """

    def __init__(self, **arguments) -> None:
        super().__init__(**arguments)
        # The event that start() waits for and the new thread sets.
        self._started.wait = partial(_wait, self._started.wait)  # type: ignore[attr-defined]


def _wait(wait: Callable[[float], bool], timeout: float | None = None) -> bool:
    if timeout is not None:
        return wait(timeout)
    for _ in range(LOOKS):
        if wait(LOOK_SECONDS):
            return True
    raise RuntimeError("can't start new thread: it did not start")


def failure_in_thread(error: BaseException) -> Exception:
    """The exception to raise in another thread for an error that ended this one's work.

    SystemExit and KeyboardInterrupt would end the process there as if the user had requested it.
    """
    if isinstance(error, Exception):
        return error
    failure = RuntimeError(f"thread {threading.current_thread().name} was ended by {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


P = ParamSpec("P")
T = TypeVar("T")
Piece = TypeVar("Piece")
News = TypeVar("News")
# At least so often the calling thread handles what arrived.
POLL_SECONDS = 0.25
# Copies under way when a transfer ends early are waited for so long; one that a silent server keeps waiting ends later.
GRACE_SECONDS = 2.0


class BackgroundThreads:
    """At most `most` threads, started when they are needed, that a process does not wait for when it ends.

    Those of concurrent.futures would be joined first: a job that is to stop while the network is gone would wait until the
    last request has failed.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._waiting: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._threads = 0

    def submit(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> Future[T]:
        """The result to come. Raises RuntimeError where the machine gives not a single thread."""
        future: Future[T] = Future()
        self._waiting.put((future, lambda: function(*arguments, **named)))
        if not self._idle.acquire(blocking=False):
            with self._lock:
                if self._threads < self._most:
                    self._start()
        return future

    def close(self) -> None:
        """Threads end when all that was submitted is done."""
        for _ in range(self._threads):
            self._waiting.put(None)
        self._threads = 0

    def __del__(self) -> None:
        with suppress(AttributeError):
            self.close()

    def _start(self) -> None:
        name = f"{self._name}-{self._threads}"
        thread = threading.Thread(target=_work, args=(self._waiting, self._idle), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            if not self._threads:
                raise
            return  # the threads that there are do it
        self._threads += 1


def _work(waiting: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None], idle: threading.Semaphore) -> None:
    while (work := waiting.get()) is not None:
        future, do = work
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(do())
            except BaseException as error:  # whoever waits for the result raises it
                future.set_exception(failure_in_thread(error))
        del work, future, do  # a result must not live until the next one
        idle.release()


def copy_in_parallel(
    pieces: Iterable[Piece],
    copy: Callable[[Piece, Callable[[News], None], threading.Event], None],
    arrived: Callable[[list[News]], None],
    *,
    threads: int,
    name: str,
) -> None:
    """Copy the pieces in up to `threads` threads, taken in their order.

    copy     copy(piece, report, stop), in a thread: it reports what is written, and ends early where `stop` is set
    arrived  gets what was reported, in the calling thread: it notes that for a resume; a last time whatever ends the transfer
    name     of the threads
    Raises what a copy or `arrived` raised first.
    """
    pool, stop, rest = BackgroundThreads(threads, name), threading.Event(), iter(pieces)
    reports: queue.SimpleQueue[News] = queue.SimpleQueue()
    running: set[Future[None]] = set()
    try:
        while True:
            for piece in islice(rest, 4 * threads - len(running)):
                running.add(pool.submit(copy, piece, reports.put, stop))
            if not running:
                return
            done, running = wait(running, POLL_SECONDS, FIRST_COMPLETED)
            arrived(_all_of(reports))
            for future in done:
                future.result()
    finally:
        stop.set()
        for future in running:
            future.cancel()
        wait(running, GRACE_SECONDS)
        arrived(_all_of(reports))


def _all_of(reports: queue.SimpleQueue[News]) -> list[News]:
    return [reports.get_nowait() for _ in range(reports.qsize())]


def write_at(descriptor: int, data: bytes, offset: int) -> None:
    """Write all bytes at this offset of a file. Raises OSError."""
    left = memoryview(data)
    while left:
        written = pwrite(descriptor, left, offset)
        left, offset = left[written:], offset + written


def free_bytes(folder: Path) -> int:
    """What may still be written where `folder` is, or will be: bytes for a user without privileges."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
