"""Samples that are overdue: which they are, and when they are given up."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

import numpy as np

from paceline._utils.errors import DataError
from paceline._utils.text import escape_text, join_names

# A read that takes longer is named, again after as long; a mount that fails over is back within some minutes.
SAY_SECONDS = 60.0
# Below the ten minutes after which the other ranks' collectives end, so that the cause is named and not its echo.
FAIL_SECONDS = 480.0
NAMED = 3


class ReadWatchdog:
    """Which samples each of some threads is at, and since when."""

    def __init__(self, threads: int, processes: np.ndarray | None = None) -> None:
        """processes: (W, 2) int64 in shared memory: the sample that each worker process is at, -1 for none, and since when, ns."""
        # The samples, and time.monotonic(); each entry is replaced whole, so read without a lock.
        self._at: list[tuple[Sequence[int], float] | None] = [None] * threads
        self._processes = processes

    def begin(self, thread: int, indices: Sequence[int]) -> None:
        """The thread is at these samples now."""
        self._at[thread] = indices, time.monotonic()

    def end(self, thread: int) -> None:
        """The thread waits for work."""
        self._at[thread] = None

    def tell_overdue(self, step: int, name: Callable[[int], str]) -> None:
        """Say on stderr which samples do not come; raises DataError where one is given up.

        step  what the consumer waits for
        name  index -> the record, for the message
        """
        now = time.monotonic()
        waiting = [(since, index) for indices, since in filter(None, self._at) for index in indices]
        if self._processes is not None:
            waiting += [(since / 1e9, index) for index, since in self._processes.tolist() if index >= 0]
        waiting.sort()
        late = [index for since, index in waiting if now - since >= SAY_SECONDS]
        if not late:
            return  # slow, but going on
        seconds = now - waiting[0][0]
        text = f"step {step:,} waits for {join_names(map(name, late), NAMED)}: not read within {seconds:.0f} s"
        if seconds >= FAIL_SECONDS:
            raise DataError(f"{text}. Its disk or mount does not answer: mend it, then give the same command again.")
        print(escape_text(f"paceline: {text}; still waiting"), file=sys.stderr, flush=True)
