"""Who follows a run, and what is told: the moments of a run, and the facts known before it starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

# As log/events.py describes it, and as read_events gives it: numbers that are not finite are floats.
Event = Mapping[str, Any]


class Sink(Protocol):
    """Somebody who follows events.jsonl as it is written: a tracker."""

    def write(self, event: Event) -> None:
        """One event."""
        ...

    def close(self) -> None:
        """The run is over, one way or another."""
        ...


class Follower:
    """What the package's own sinks are called with; every callback is optional. Raising ends the run."""

    def start(self, step: int, seconds: float) -> None:
        """Everything is built; training goes on from `step`."""

    def passed(self, step: int, seconds: float) -> None:
        """After every step."""

    def evaluation_begins(self, step: int) -> None:
        """An evaluation after `step` steps starts."""

    def training_goes_on(self) -> None:
        """Training goes on beside the scoring of the evaluation that began last."""

    def result(self, step: int, metrics: Mapping[str, float], *, headline: str, went_on: float, ends: bool) -> None:
        """An evaluation's, before its event is written; as for Recorder.evaluation."""

    def write(self, event: Event) -> None:
        """An event, of whatever kind that no method below is there for."""

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
class Facts:
    """What the logs say of a run before it starts."""

    target: str  # in words, for the console
    total_steps: int
    global_batch: int
    steps_per_epoch: float
    eval_steps: Sequence[int]
    train_images: int
    val_images: int
    submission: Mapping[str, Any]  # MLPerf's benchmark, org, division, status, platform, and its number of accelerators
    cache_cleared: bool  # for MLPerf: whether the systems' caches were cleared before
    mllog: Mapping[str, Any]  # MLPerf keys and values, in order
    weights: Iterable[str]  # names of the tensors that were initialised
    accuracy: Callable[[Mapping[str, float]], Any]  # an evaluation's metrics -> MLPerf's eval_accuracy
