"""The processes of one job, which are given tasks and give back results; and one function for many calls, by such processes or by
threads of this one.

A crew is for work that takes longer than sending its result: images are verified, compared, encoded, or read for a network.
"""

from __future__ import annotations

import os
import pickle
import selectors
import signal
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

from paceline._utils.errors import ResourceError
from paceline._utils.threads import Thread
from paceline.data.workers.jobs import NotPicklableError, Task, WorkerJob, dump_job
from paceline.data.workers.template import ENDED, TASK, start_template

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


PIPE_BYTES = 2**20
MAX_A_CORE = 2  # processes: one computes while the other reads. More would take turns, and find their caches empty


class Workers:
    """Processes that run a job, `count` of them, or as many as compute no slower together.

    nice  by how much they give way to this process, as `os.nice` has it
    Raises NotPicklableError for a job that cannot be sent to them, and OSError.
    """

    def __init__(self, job: WorkerJob, count: int, descriptors: Sequence[int] = (), *, nice: int = 0) -> None:
        content, cores = dump_job(job), sorted(os.sched_getaffinity(0))
        self.size = min(count, MAX_A_CORE * len(cores))
        self._selector, self._results = selectors.DefaultSelector(), list[Connection]()
        self._wake, wake = os.pipe()
        self._ended, ended = os.pipe()
        tasks, self._tasks = os.pipe()
        self._ours = [self._wake, wake, self._ended, self._tasks]
        self._waker, self._closed, self._template = wake, False, start_template()
        try:
            with suppress(OSError):  # more than the system's own limit
                import fcntl

                fcntl.fcntl(self._tasks, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            self._selector.register(self._wake, selectors.EVENT_READ)
            self._selector.register(self._ended, selectors.EVENT_READ)
            self._key = self._template.key()
            for number in range(self.size):
                result, theirs = os.pipe()
                self._results.append(Connection(result, writable=False))
                self._selector.register(result, selectors.EVENT_READ, self._results[-1])
                facts = (job.module, cores, nice)
                sent = [tasks, theirs, ended, content.descriptor, *descriptors]
                self._template.send(("start", self._key, number, *facts), sent)
                os.close(theirs)
        finally:
            content.close()
            os.close(tasks)
            os.close(ended)

    def give(self, *task: int) -> None:
        """Leave a task to any of the workers."""
        with suppress(BrokenPipeError):  # no worker is left: `results` says why
            os.write(self._tasks, TASK.pack(*task, *(0,) * (8 - len(task))))

    def results(self) -> Iterator[tuple[Task, Any, Exception | None]]:
        """Yield (task, result, what it raised) as they arrive, until `stop`. One thread calls it.

        Raises ResourceError where a worker ended.
        """
        while not self._closed:
            for key, _ in self._selector.select():
                if key.fd == self._wake:
                    return
                if key.fd == self._ended:
                    raise _how_it_ended(os.read(self._ended, ENDED.size))
                try:
                    result = pickle.loads(key.data.recv_bytes())
                except (EOFError, OSError):  # the template says why
                    self._selector.unregister(key.fd)
                    continue
                yield result

    def stop(self) -> None:
        """End the workers at once, and `results`. Any thread may call it, also more than once."""
        if not self._closed:
            self._closed = True
            self._template.send(("stop", self._key))
            os.write(self._waker, b"\0")

    def close(self) -> None:
        """Stop, and give back all descriptors. Nothing else may be called afterwards."""
        self.stop()
        self._selector.close()
        for result in self._results:
            result.close()
        for descriptor in self._ours:
            os.close(descriptor)
        self._results, self._ours = [], []


def _how_it_ended(content: bytes) -> ResourceError:
    if len(content) < ENDED.size:
        return ResourceError(
            "all worker processes ended, because the process that started them was killed. Run the command again."
        )
    number, status = ENDED.unpack(content)
    if not os.WIFSIGNALED(status):
        return ResourceError(f"worker process {number} ended with exit code {os.waitstatus_to_exitcode(status)}.")
    name = signal.Signals(os.WTERMSIG(status)).name
    memory = " The memory may be full. Use fewer workers (--system.num-workers, --workers)." if name == "SIGKILL" else ""
    return ResourceError(f"worker process {number} was killed by {name}.{memory}")
