"""Threads for requests that a process does not wait for when it ends.

Those of concurrent.futures would be joined first: a job that is told to stop while the network is gone would wait until the
last request has failed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_Work = tuple[Future[Any], Callable[[], Any]]


class Background:
    """At most `most` threads, started when they are needed."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._waiting: SimpleQueue[_Work | None] = SimpleQueue()
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
        thread = threading.Thread(
            target=_work, args=(self._waiting, self._idle), name=f"{self._name}-{self._threads}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            if not self._threads:
                raise
            return  # those that there are do it
        self._threads += 1


def _work(waiting: SimpleQueue[_Work | None], idle: threading.Semaphore) -> None:
    while (work := waiting.get()) is not None:
        future, do = work
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(do())
            except BaseException as error:  # whoever waits for the result raises it
                future.set_exception(error)
        del work, future, do  # a result must not live until the next one
        idle.release()
