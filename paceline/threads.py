"""Threads of our own: a start that cannot wait for ever, and errors that end in the thread that asked for the work."""

from __future__ import annotations

import threading

# How often, and how many times, a new thread's first sign of life is looked for. Looks, not a clock: a machine that was
# suspended meanwhile wakes up without a false alarm.
LOOK_SECONDS, LOOKS = 0.1, 100


class Thread(threading.Thread):
    """threading.Thread, whose start() raises RuntimeError where the new thread never begins.

    A thread that gets no memory for its first lines dies in silence, and Python's own start() then waits for its sign of
    life without end.
    """

    def __init__(self, **arguments) -> None:
        super().__init__(**arguments)
        self._started = _Begun()


class _Begun(threading.Event):
    """What start() waits for, and the new thread sets."""

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is not None:
            return super().wait(timeout)
        for _ in range(LOOKS):
            if super().wait(LOOK_SECONDS):
                return True
        raise RuntimeError("can't start new thread: it never began")


def failure_in_thread(error: BaseException) -> Exception:
    """What to raise elsewhere for an error that ended a thread's work.

    SystemExit and KeyboardInterrupt would end the process there as if somebody had asked for that.
    """
    if isinstance(error, Exception):
        return error
    failure = RuntimeError(f"thread {threading.current_thread().name} was ended by {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
