"""One function for many calls: by worker processes, or by threads of this process.

For work that takes longer than sending its result: images are verified, compared, encoded, or read for a network.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Generic, TypeVar

from paceline._utils.threads import Thread
from paceline.data.workers.jobs import NotPicklableError, Task
from paceline.data.workers.pool import Workers

JOIN_SECONDS = 10.0
# With this many calls or more, processes finish before threads would, although they take longer to start.
WORTH_PROCESSES = 256
Item = TypeVar("Item")
Done = TypeVar("Done")


class _Calls:
    """The job of a crew. A task is the number of the call, how many arguments it has, and these."""

    shared: Sequence[Any] = ()

    def __init__(self, work: Callable[..., Any]) -> None:
        self.work, self.folder = work, os.getcwd()

    @property
    def module(self) -> str:
        """What the template imports before it forks the workers."""
        work: Any = self.work.work if isinstance(self.work, _OfList) else self.work
        return (work.func if isinstance(work, partial) else work).__module__

    def start(self, number: int, descriptors: Sequence[int]) -> Callable[[Task], Any]:
        """In a worker. Its warnings are not shown: each worker would print them again."""
        warnings.simplefilter("ignore")
        os.chdir(self.folder)  # names of files may be relative
        return lambda task: self.work(*task[2 : 2 + task[1]])


@dataclass(frozen=True)
class _OfList:
    """The call of a function with one item of a list, by its number."""

    work: Callable[[Any], Any]
    items: Sequence[Any]

    def __call__(self, number: int) -> Any:
        return self.work(self.items[number])


def map_ordered(
    items: Iterable[Item], work: Callable[[Item], Done], *, size: int, ahead: int, processes: bool = False
) -> Iterator[Done]:
    """`work` of each item, in the items' order.

    size       workers, which end with the generator
    ahead      most results that wait to be taken
    processes  whether other processes can do this: they do, if the items are a sequence of WORTH_PROCESSES or more
    What `work` raises is raised where its result would have come.
    """
    listed = items if processes and isinstance(items, Sequence) and len(items) >= WORTH_PROCESSES else ()
    calls: Iterable[tuple[Any]] = ((number,) for number in range(len(listed))) if listed else ((one,) for one in items)
    with WorkerCrew(_OfList(work, listed) if listed else work, size, processes=bool(listed)) as crew:
        yield from crew.map_ordered(calls, ahead=ahead)


class WorkerCrew(Generic[Done]):
    """Workers that call a function with up to six whole numbers, threads with anything.

    work       can be pickled, or threads call it; several call it at once
    size       of the crew
    processes  False: threads, for what waits more than it computes, or is over before processes have started
    """

    def __init__(self, work: Callable[..., Done], size: int, *, processes: bool = True) -> None:
        self._work, self._workers, self._threads = work, None, None
        self._called: dict[int, Future[Done]] = {}
        self._numbers, self._lock = count(), threading.Lock()
        self._failed: Exception | None = None
        if processes and size > 1 and hasattr(os, "memfd_create"):
            with suppress(NotPicklableError, FileNotFoundError):  # or this process's folder is gone
                self._workers = Workers(_Calls(work), size)
        if self._workers is None:
            self._threads = ThreadPoolExecutor(size, thread_name_prefix="paceline-crew")
            return
        self._collector = Thread(target=self._collect, args=(self._workers,), name="paceline-crew", daemon=True)
        self._collector.start()

    def __enter__(self) -> WorkerCrew[Done]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, *numbers: Any) -> Future[Done]:
        """Begin one call. At most 16,000 may be under way."""
        if self._workers is None:
            assert self._threads is not None
            return self._threads.submit(self._work, *numbers)
        future: Future[Done] = Future()
        call = next(self._numbers)
        with self._lock:
            if self._failed is not None:
                raise self._failed
            self._called[call] = future
        self._workers.give(call, len(numbers), *numbers)
        return future

    def map_ordered(self, calls: Iterable[tuple[Any, ...]], *, ahead: int) -> Iterator[Done]:
        """The results in the calls' order; at most `ahead` wait to be taken. What a call raises is raised in its place."""
        pending: deque[Future[Done]] = deque()
        try:
            for numbers in calls:
                pending.append(self.submit(*numbers))
                if len(pending) > ahead:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()

    def close(self) -> None:
        """End the workers. Calls that have not begun are dropped; threads end those that have, processes do not."""
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
        if self._workers is not None:
            self._workers.stop()
            self._collector.join(JOIN_SECONDS)
            self._workers.close()
            self._workers = None

    def _collect(self, workers: Workers) -> None:
        try:
            for (call, *_), value, error in workers.results():
                future = self._called.pop(call)
                if not future.set_running_or_notify_cancel():
                    continue
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(value)
        except Exception as reason:  # a worker was killed: every call that is waited for raises it
            with self._lock:
                self._failed = reason
            for future in self._called.values():
                if future.set_running_or_notify_cancel():
                    future.set_exception(reason)
