"""Somebody's own sink in a thread of its own: however slow it is, and however it fails, training goes on.

It is made, told and closed in that thread, so that what it opens (a database, a connection) stays with one thread. Where it
raises while the run goes on, that is said once and it is told nothing more.
"""

from __future__ import annotations

import copy
import queue
import threading
from collections.abc import Callable
from contextlib import suppress

from paceline.config.errors import UserError
from paceline.log.follower import Event, Follower, Sink
from paceline.threads import Thread

# Events that may wait for a sink; a run has some hundreds. One that falls back further is left alone: memory is finite.
MOST_WAITING = 10_000
# How long the end of a run waits for a sink to take what is still waiting, and to close.
CLOSE_SECONDS = 60.0


class Beside(Follower):
    """Hands events on to a sink in another thread.

    name   as --sink has it, for messages
    make   makes it; called in that thread, and waited for
    say    is told a line where it fails or lags, from the thread that tells this object
    Raises UserError where it cannot be made, or is no sink.
    """

    def __init__(self, name: str, make: Callable[[], Sink], say: Callable[[str], None]) -> None:
        self._name, self._say = name, say
        self._events: queue.Queue[Event | None] = queue.Queue(MOST_WAITING)
        self._begun = threading.Event()
        self._refusal: UserError | None = None
        self._failure = ""  # why it is left alone, once it is
        self._lags = False  # so that nobody waits for it any more
        self._alone = False  # and that was said
        # A daemon: a sink that hangs must not keep the process from ending.
        self._thread = Thread(target=self._live, args=(make,), name=f"sink {name}", daemon=True)
        self._thread.start()
        self._begun.wait()
        if self._refusal is not None:
            raise self._refusal

    def write(self, event: Event) -> None:
        """Hand an event over, and return at once."""
        try:
            self._events.put_nowait(copy.deepcopy(event))  # its own: what it does to it is nobody else's
        except queue.Full:
            self._failure = self._failure or f"it is {MOST_WAITING:,} events behind"
            self._lags = True
        self._tell()

    def passed(self, step: int, seconds: float) -> None:
        """Say it where the sink has failed meanwhile."""
        self._tell()

    def close(self) -> None:
        """Wait until the sink has taken everything and is closed, no longer than CLOSE_SECONDS."""
        if self._thread.is_alive() and not self._lags:
            with suppress(queue.Full):  # said below
                if not self._failure:
                    self._events.put(None, timeout=CLOSE_SECONDS)
                self._thread.join(CLOSE_SECONDS)  # of one that has failed, too: it is being closed
            self._lags = self._thread.is_alive()
            if self._lags:
                self._failure = self._failure or f"it was still busy {CLOSE_SECONDS:g} s after the end of the run"
        self._tell()

    def _tell(self) -> None:
        if self._failure and not self._alone:
            self._alone = True
            self._say(
                f"--sink {self._name}: {self._failure}; it is told nothing more of this run, which does not need it"
            )

    def _live(self, make: Callable[[], Sink]) -> None:
        sink = self._made(make)
        self._begun.set()
        if sink is None:
            return
        try:
            while (event := self._events.get()) is not None:
                if self._failure:
                    break
                sink.write(event)
        except BaseException as problem:  # SystemExit too: it is nobody else's end
            self._failure = _in_a_line(problem)
        try:
            sink.close()
        except BaseException as problem:
            self._failure = self._failure or _in_a_line(problem)

    def _made(self, make: Callable[[], Sink]) -> Sink | None:
        try:
            sink = make()
        except UserError as problem:
            self._refusal = UserError(f"--sink {self._name}: {problem}")
        except BaseException as problem:
            self._refusal = UserError(f"--sink {self._name}: it cannot be begun ({_in_a_line(problem)}).")
        else:
            if all(callable(getattr(sink, method, None)) for method in ("write", "close")):
                return sink
            self._refusal = UserError(
                f"--sink {self._name}: what it made, a {type(sink).__name__}, lacks write(event) or close()."
            )
        return None


def _in_a_line(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {problem}".splitlines()[0].removesuffix(": ")
