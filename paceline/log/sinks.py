"""Who is told what happens in a run: the moments there are, and the sinks that `--sink` names.

A sink of somebody's own has `write(event)` and `close()`, and is made by `(run, resumed_at)`; it lives in a thread of its own
(beside.py). The house's own are told in the loop itself, of moments that are no events too.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from paceline.config.commands import to_install
from paceline.config.errors import UserError
from paceline.config.lazily import lazily
from paceline.config.python_file import from_file, is_in_file
from paceline.config.run import Controls

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
    """All that a sink of the house can be told; what it does not listen to passes by. Raising ends the run."""

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


# (the run's folder with its run.json, the step that a resumed run goes on from or None, says a line) -> Follower
Maker = Callable[[Path, int | None, Callable[[str], None]], Follower]
# --sink NAME: what makes a Sink of (run, resumed_at), and the package that it needs, which is an extra of the same name.
TRACKERS: dict[str, Callable[[Path, int | None], Sink]] = {
    "wandb": lazily("paceline.log.wandb:WeightsAndBiases"),
    "mlflow": lazily("paceline.log.mlflow:MLflow"),
}


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


def makers(controls: Controls) -> list[Maker]:
    """What makes the sinks that were asked for, those that may refuse first.

    Raises UserError for a name that is none, a package that is not installed, a Python file without such a function.
    """
    found: list[Maker] = []
    for name in controls.sink:
        if controls.sink.count(name) > 1:
            raise UserError(f"--sink {name}: named twice; it would be told everything twice.")
        found.append(_beside(name, _tracker(name)))
    return [*found, _tensorboard] if controls.tensorboard else found


def _tracker(name: str) -> Callable[[Path, int | None], Sink]:
    if name in TRACKERS:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # a folder of that name here, as W&B makes one, is no package
            raise UserError(f"--sink {name}: the package {name} is not installed: {to_install(name)}")
        return TRACKERS[name]
    if not is_in_file(name):
        raise UserError(
            f"--sink {name}: there is no such sink. Known: {', '.join(TRACKERS)}, or your own: ./file.py:name"
        )
    make: Any = from_file(name, "sink")
    if callable(make):
        return make  # pyright: ignore[reportReturnType]: what it makes is looked at when it does
    raise UserError(
        f"--sink {name}: that is a {type(make).__name__}, and must be a function (run, resumed_at) -> sink."
    )


def _beside(name: str, make: Callable[[Path, int | None], Sink]) -> Maker:
    from paceline.log.beside import Beside

    return lambda run, resumed_at, say: Beside(name, lambda: make(run, resumed_at), say)


def _tensorboard(run: Path, resumed_at: int | None, say: Callable[[str], None]) -> Follower:
    from paceline.log.tensorboard import TensorBoard

    return TensorBoard(run / "tensorboard", purge_step=resumed_at)
