"""Threads whose start cannot block for ever, and errors that are raised in the thread that started the work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

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
    raise RuntimeError("can't start new thread: it never began")


def failure_in_thread(error: BaseException) -> Exception:
    """The exception to raise in another thread for an error that ended this one's work.

    SystemExit and KeyboardInterrupt would end the process there as if the user had requested it.
    """
    if isinstance(error, Exception):
        return error
    failure = RuntimeError(f"thread {threading.current_thread().name} was ended by {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
