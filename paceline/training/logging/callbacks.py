"""Sinks follow a run: the callbacks they have, and the thread in which a sink named by --logger runs.

A user's sink has `write(event)` and `close()` and is made by `(run, resumed_at)`. However slow it is and however it fails,
training continues: it lives in a thread of its own. The package's own sinks (`Callback`) are called in the training loop itself,
at moments that are no events too.
"""

from __future__ import annotations

import copy
import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from paceline._utils.errors import PacelineError
from paceline._utils.reporter import Reporter
from paceline._utils.threads import Thread

# As training/logging/events.py describes it, and as read_events gives it: numbers that are not finite are floats.
Event = Mapping[str, Any]
# Events that may wait for a sink; a run has some hundreds. A sink that falls back further is dropped: memory is finite.
MAX_WAITING = 10_000
# How long the end of a run waits for a sink to take the waiting events, and to close.
CLOSE_SECONDS = 60.0


class Logger(Protocol):
    """Somebody who follows events.jsonl as it is written: a tracker."""

    def write(self, event: Event) -> None:
        """One event."""
        ...

    def close(self) -> None:
        """The run is over, one way or another."""
        ...


class Callback:
    """The callbacks of the package's own sinks; every one is optional. An exception ends the run."""

    def start(self, step: int, seconds: float) -> None:
        """Everything is built; training starts or resumes at `step`."""

    def passed(self, step: int, seconds: float) -> None:
        """After every step."""

    def evaluation_begins(self, step: int) -> None:
        """An evaluation after `step` steps starts."""

    def training_goes_on(self) -> None:
        """Training continues beside the scoring of the evaluation that began last."""

    def result(self, step: int, metrics: Mapping[str, float], *, headline: str, went_on: float, ends: bool) -> None:
        """The result of an evaluation, before its event is written; arguments as for Recorder.evaluation."""

    def write(self, event: Event) -> None:
        """An event of a kind that has no method below."""

    def train(self, event: Event, *, eta_seconds: float) -> None:
        """A train event."""
        self.write(event)

    def evaluation(self, event: Event, *, best: bool) -> None:
        """An eval event; best: whether its result is the best so far."""
        self.write(event)

    def end(self, event: Event, *, target_met: bool) -> None:
        """The end event."""
        self.write(event)

    def close(self) -> None:
        """Flush what is pending; a second call does nothing."""


@dataclass(frozen=True)
class RunInfo:
    """The facts of a run that the logs need before it starts."""

    target: str  # in words, for the console
    total_steps: int
    global_batch_size: int
    steps_per_epoch: float
    eval_steps: Sequence[int]
    train_images: int
    val_images: int
    submission: Mapping[str, Any]  # MLPerf's benchmark, org, division, status, platform, and its number of accelerators
    cache_cleared: bool  # for MLPerf: whether the systems' caches were cleared before
    mllog: Mapping[str, Any]  # MLPerf keys and values, in order
    weights: Iterable[str]  # names of the tensors that were initialized
    accuracy: Callable[[Mapping[str, float]], Any]  # an evaluation's metrics -> MLPerf's eval_accuracy


class AsyncLogger(Callback):
    """Passes events on to a sink in another thread, where it is made, called and closed.

    So whatever the sink opens (a database, a connection) stays with one thread. A sink that raises is reported once and gets no
    further event.

    name      as --logger has it, for messages
    make      makes the sink; called in that thread, and waited for
    reporter  gets a warning where the sink fails or lags, in the thread that calls this object
    Raises PacelineError where the sink cannot be made, or is none.
    """

    def __init__(self, name: str, make: Callable[[], Logger], reporter: Reporter) -> None:
        self._name, self._reporter = name, reporter
        self._events: queue.Queue[Event | None] = queue.Queue(MAX_WAITING)
        self._begun = threading.Event()
        self._refusal: PacelineError | None = None
        self._failure = ""  # why the sink gets no more events
        self._lags = False  # so nobody waits for it any more
        self._reported = False
        # A daemon: a sink that hangs must not keep the process from ending.
        self._thread = Thread(target=self._live, args=(make,), name=f"sink {name}", daemon=True)
        self._thread.start()
        self._begun.wait()
        if self._refusal is not None:
            raise self._refusal

    def write(self, event: Event) -> None:
        """Queue an event, and return at once."""
        try:
            self._events.put_nowait(copy.deepcopy(event))  # the sink may change its own copy
        except queue.Full:
            self._failure = self._failure or f"the logger is {MAX_WAITING:,} events behind"
            self._lags = True
        self._report_failure()

    def passed(self, step: int, seconds: float) -> None:
        """Report a failure of the sink since the last call."""
        self._report_failure()

    def close(self) -> None:
        """Wait until the sink has taken everything and is closed, no longer than CLOSE_SECONDS."""
        if self._thread.is_alive() and not self._lags:
            with suppress(queue.Full):  # reported below
                if not self._failure:
                    self._events.put(None, timeout=CLOSE_SECONDS)
                self._thread.join(CLOSE_SECONDS)  # for a failed sink too: it is being closed
            self._lags = self._thread.is_alive()
            if self._lags:
                self._failure = self._failure or f"the logger was still busy {CLOSE_SECONDS:g} s after the end of the run"
        self._report_failure()

    def _report_failure(self) -> None:
        if self._failure and not self._reported:
            self._reported = True
            self._reporter.warning(
                f"warning: --logger {self._name}: {self._failure}. The logger is disabled; training continues without it."
            )

    def _live(self, make: Callable[[], Logger]) -> None:
        sink = self._made(make)
        self._begun.set()
        if sink is None:
            return
        try:
            while (event := self._events.get()) is not None:
                if self._failure:
                    break
                sink.write(event)
        except BaseException as problem:  # SystemExit too: it must not end the process
            self._failure = _in_a_line(problem)
        try:
            sink.close()
        except BaseException as problem:
            self._failure = self._failure or _in_a_line(problem)

    def _made(self, make: Callable[[], Logger]) -> Logger | None:
        try:
            sink = make()
        except PacelineError as problem:
            self._refusal = PacelineError(f"--logger {self._name}: {problem}")
        except BaseException as problem:
            self._refusal = PacelineError(f"--logger {self._name}: the logger failed to start ({_in_a_line(problem)}).")
        else:
            if all(callable(getattr(sink, method, None)) for method in ("write", "close")):
                return sink
            self._refusal = PacelineError(
                f"--logger {self._name}: the returned {type(sink).__name__} has no method write(event) or close()."
            )
        return None


def _in_a_line(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {problem}".splitlines()[0].removesuffix(": ")
