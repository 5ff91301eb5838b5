"""Who is told what happens in a run: the moments there are, and the sinks that `--sink` names.

A sink of somebody's own has `write(event)` and `close()`, and is made by `(run, resumed_at)`; it lives in a thread of its own
(beside.py). The house's own are told in the loop itself, of moments that are no events too.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.config.commands import to_install
from paceline.config.errors import UserError
from paceline.config.python_file import from_file, is_in_file
from paceline.config.run import Controls
from paceline.log.follower import Follower, Sink

# (the run's folder with its run.json, the step that a resumed run goes on from or None, says a line) -> Follower
Maker = Callable[[Path, int | None, Callable[[str], None]], Follower]
# --sink NAME: the package that it needs, which is an extra of the same name.
TRACKERS = ("wandb", "mlflow")


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
        if name == "wandb":
            from paceline.log.wandb import WeightsAndBiases as Tracker
        else:
            from paceline.log.mlflow import MLflow as Tracker
        return Tracker
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
