"""The processes of one job: they are given tasks, and give back results."""

from __future__ import annotations

import os
import pickle
import selectors
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from paceline._utils.errors import ResourceError
from paceline.data.workers.jobs import Task, WorkerJob, dump_job
from paceline.data.workers.template import ENDED, TASK, start_template

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

        Raises Shortage where a worker ended.
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
    memory = " Memory may be full: use fewer workers (--system.loader-threads, --workers)." if name == "SIGKILL" else ""
    return ResourceError(f"worker process {number} was ended by {name}.{memory}")
