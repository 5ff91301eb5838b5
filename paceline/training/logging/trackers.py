"""Trackers: W&B, MLflow and TensorBoard as sinks, and what makes the sinks that a command asks for.

A resumed run continues under the same name in its tracker, which gets no step twice: W&B refuses steps that run backwards, and
MLflow would keep two values. RUN/wandb.json and RUN/mlflow.json hold what each has.
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from paceline._utils.atomic_write import atomic_write
from paceline._utils.commands import install_command
from paceline._utils.errors import PacelineError
from paceline._utils.names import flatten
from paceline._utils.reporter import Reporter
from paceline._utils.safe_read import parse_json, read_entry
from paceline._utils.user_code import is_in_file, load_from_file
from paceline.config.run import MAX_BYTES, RunOptions, read_run
from paceline.training.logging.callbacks import AsyncLogger, Callback, Event, Logger
from paceline.training.logging.events import get_numbers

# (the run's folder with its run.json, the step that a resumed run starts from or None, reporter) -> Follower
Maker = Callable[[Path, int | None, Reporter], Callback]
# --logger NAME: the package that it needs, which is an extra of the same name.
TRACKERS = ("wandb", "mlflow")
# MLflow's words for a run's end; an interrupted run may resume, and is RUNNING again then.
ENDS = {"interrupted": "KILLED", "failed": "FAILED"}
# Parameters that MLflow takes at once, and characters of one.
MAX_PARAMS, MAX_LETTERS = 100, 500


def tracker_makers(options: RunOptions, explicit: Collection[str] = ()) -> list[Maker]:
    """What makes the sinks that the command names, those that may refuse first.

    explicit  the options that the user named: TensorBoard, which is on by default, may be absent where nobody asked for it
    Raises PacelineError for an unknown name, a package that is not installed, a Python file without such a function.
    """
    results: list[Maker] = []
    for name in options.logger:
        if options.logger.count(name) > 1:
            raise PacelineError(f"--logger {name}: the logger is given more than once. Remove the duplicate.")
        results.append(_beside(name, _tracker(name)))
    if options.tensorboard:
        if "tensorboard" in explicit:
            _check_installed("tensorboard", "--tensorboard")
        results.append(_tensorboard)
    return results


def _tracker(name: str) -> Callable[[Path, int | None], Logger]:
    if name in TRACKERS:
        _check_installed(name, f"--logger {name}")
        return WeightsAndBiases if name == "wandb" else MLflow
    if not is_in_file(name):
        raise PacelineError(
            f"--logger {name}: logger not found. Choose one of {', '.join(TRACKERS)}, or pass a custom one: ./file.py:name"
        )
    make: Any = load_from_file(name, "sink")
    if callable(make):
        return make  # pyright: ignore[reportReturnType]: its result is checked when it is made
    raise PacelineError(f"--logger {name}: must be a function (run, resumed_at) -> logger, got a {type(make).__name__}.")


def _is_installed(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None  # a folder of that name here, as W&B makes one, is no package


def _check_installed(name: str, flag: str) -> None:
    if not _is_installed(name):
        raise PacelineError(f"{flag}: the package {name} is not installed. Install it:  {install_command(name)}")


def _beside(name: str, make: Callable[[Path, int | None], Logger]) -> Maker:
    return lambda run, resumed_at, reporter: AsyncLogger(name, lambda: make(run, resumed_at), reporter)


def _tensorboard(run: Path, resumed_at: int | None, reporter: Reporter) -> Callback:
    if _is_installed("tensorboard"):
        return TensorBoard(run / "tensorboard", purge_step=resumed_at)
    reporter.line(f"no TensorBoard files (events.jsonl has the values). To get them:  {install_command('tensorboard')}")
    return Callback()


class TrackerRun:
    """A tracker's name for a run, and the newest step of each kind that it has; kept in a small file.

    id   the tracker's name for this run; empty for a fresh one
    A killed run resumes at its checkpoint and takes steps again that the tracker has: those events are not new, and the tracker
    keeps its first values. A run without a checkpoint starts over, under another name.
    Raises PacelineError for a file that is none of ours.
    """

    def __init__(self, file: Path, resumed_at: int | None) -> None:
        self._file = file
        self.id, self._steps = "", {}
        if resumed_at is None:
            return
        try:
            facts = parse_json(read_entry(file, MAX_BYTES))
            self.id, self._steps = facts["id"], facts["steps"]
            if not isinstance(self.id, str) or not all(type(step) is int for step in self._steps.values()):
                raise ValueError("unexpected content")
        except FileNotFoundError:
            return  # the tracker is new to this run
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
            raise PacelineError(
                f"{file}: the file is not readable ({problem}). Remove it to start a new W&B run at this step."
            ) from None

    def is_new(self, event: Event) -> bool:
        """Whether the tracker lacks this event's step, of this kind."""
        return event["step"] > self._steps.get(event["event"], -1)

    def note(self, run: str, event: Event | None = None) -> None:
        """The tracker's name for the run is `run`, and it has this event."""
        self.id = run
        if event is not None:
            self._steps[event["event"]] = event["step"]
        atomic_write(self._file, json.dumps({"id": self.id, "steps": self._steps}) + "\n")


def tracker_config(run: Path) -> dict[str, Any]:
    """What decided the run's result, from its run.json: recipe, plan and system."""
    facts = read_run(run).as_dict()
    return {name: facts[name] for name in ("name", "recipe", "plan", "system_name", "system")}


class WeightsAndBiases:
    """`--logger wandb`, one W&B run: train/... and eval/... over the optimizer step; in its summary best/... and the status.

    W&B's variables name the place: WANDB_PROJECT, WANDB_ENTITY, WANDB_MODE, ... Offline (WANDB_MODE=offline) each start of a run
    leaves a folder in RUN/wandb, and `wandb sync` joins those of one run.

    run         the run's folder; its name is the W&B run's, unless WANDB_NAME is set
    resumed_at  the step that a resumed run starts from
    Raises whatever wandb raises where it cannot begin: no key, no server.
    """

    def __init__(self, run: Path, resumed_at: int | None) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        self._sent = TrackerRun(run / "wandb.json", resumed_at)
        name = self._sent.id or os.environ.get("WANDB_RUN_ID") or secrets.token_hex(4)
        self._run: Any = wandb.init(
            id=name,
            resume="allow",
            project=os.environ.get("WANDB_PROJECT", "paceline"),
            name=os.environ.get("WANDB_NAME", run.name),
            dir=os.environ.get("WANDB_DIR", str(run)),
            # The console is ours, with a line that is drawn again and again; and a run's last lines are short.
            settings=wandb.Settings(console="off", quiet=True),
        )
        self._run.config.update(tracker_config(run), allow_val_change=True)
        self._sent.note(name)
        self._code = 1  # until it has ended well

    def write(self, event: Event) -> None:
        """Log the numbers of a new event, and how the run ended."""
        if event["event"] == "end":
            best = {f"best/{name}": value for name, value in event["best"].items()}
            self._run.summary.update({**best, "status": event["status"], "reason": event["reason"]})
            self._code = int(event["status"] == "failed")
        elif (numbers := get_numbers(event)) and self._sent.is_new(event):
            # An evaluation whose result a kill cut off comes after its step is closed there: it goes into the next step.
            step = event["step"] if event["event"] == "train" else max(event["step"], self._run.step)
            self._run.log({**numbers, "epoch": event["epoch"]}, step=step)
            self._sent.note(self._sent.id, event)

    def close(self) -> None:
        """Send what is pending; a run without an end is a failed one for W&B too."""
        self._run.finish(exit_code=self._code)


class MLflow:
    """`--logger mlflow`, one MLflow run: metrics train/... and eval/... over the optimizer step, best/... at the end; recipe, plan and
    system as parameters. MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME name the place.

    run         the run's folder; its name is the MLflow run's
    resumed_at  the step that a resumed run starts from
    Raises whatever mlflow raises where it cannot begin, and PacelineError where the server lacks the run that is resumed.
    """

    def __init__(self, run: Path, resumed_at: int | None) -> None:
        from mlflow.entities import Metric, Param, RunTag  # pyright: ignore[reportMissingImports]
        from mlflow.exceptions import MlflowException  # pyright: ignore[reportMissingImports]
        from mlflow.tracking import MlflowClient  # pyright: ignore[reportMissingImports]

        self._metric, self._tag = Metric, RunTag
        self._sent = TrackerRun(run / "mlflow.json", resumed_at)
        self._client = MlflowClient()
        if self._sent.id:
            try:
                self._client.update_run(self._sent.id, status="RUNNING")
            except MlflowException as problem:
                raise PacelineError(
                    f"{run / 'mlflow.json'}: the run in this file was not found on {self._client.tracking_uri} "
                    f"({str(problem).splitlines()[0]}). Set MLFLOW_TRACKING_URI to the server of the run, or remove the file."
                ) from None
        else:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "paceline")
            experiment = self._client.get_experiment_by_name(name)
            number = experiment.experiment_id if experiment else self._client.create_experiment(name)
            begun = self._client.create_run(number, run_name=run.name, tags={"paceline.run": str(run)})
            self._sent.note(begun.info.run_id)
            params = [Param(key, str(value)[:MAX_LETTERS]) for key, value in flatten(tracker_config(run)).items()]
            for first in range(0, len(params), MAX_PARAMS):
                self._client.log_batch(self._sent.id, params=params[first : first + MAX_PARAMS])
        self._status = "FAILED"  # until it has ended well

    def write(self, event: Event) -> None:
        """Log the numbers of a new event, and how the run ended."""
        if event["event"] == "end":
            self._log({f"best/{name}": value for name, value in event["best"].items()}, event)
            tags = [self._tag(f"paceline.{name}", str(event[name])) for name in ("status", "reason")]
            self._client.log_batch(self._sent.id, tags=tags)
            self._status = ENDS.get(event["status"], "FINISHED")
        elif (numbers := get_numbers(event)) and self._sent.is_new(event):
            self._log(numbers, event)
            self._sent.note(self._sent.id, event)

    def close(self) -> None:
        """End the MLflow run; a run without an end is a failed one for MLflow too."""
        self._client.set_terminated(self._sent.id, self._status)

    def _log(self, numbers: dict[str, float], event: Event) -> None:
        now = int(1000 * time.time())
        metrics = [self._metric(name, float(value), now, event["step"]) for name, value in numbers.items()]
        self._client.log_batch(self._sent.id, metrics=metrics)


class TensorBoard(Callback):
    """Writes the numbers of events into `folder`, such as RUN/tensorboard/, as train/loss, eval/top1, ... Rank 0 has one.

    events.jsonl holds the same numbers, so a file that cannot be written ends nothing: that is printed once.

    purge_step  the step that a resumed run starts from: what an earlier process wrote past it is hidden; None for a fresh run
    """

    def __init__(self, folder: Path, *, purge_step: int | None = None) -> None:
        # Imported here: it takes half a second, which `paceline --help` does not have, and some of its own imports
        # warn about things that no user of ours can mend.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torch.utils.tensorboard.writer import SummaryWriter

            # TensorBoard hides steps >= purge_step; the checkpoint's own step stays.
            purge = None if purge_step is None else purge_step + 1
            others = set(threading.enumerate())
            self._writer: Any = SummaryWriter(str(folder), purge_step=purge)
        self._lost = False
        # Its thread writes the file, and passes an error on to the next call here; it need not print it too.
        self._threads = set(threading.enumerate()) - others
        self._hook, threading.excepthook = threading.excepthook, self._on_thread_error

    def write(self, event: Mapping[str, Any]) -> None:
        """Add the numbers of one event; kinds other than train and eval have none."""
        if self._lost:
            return
        try:
            for name, value in get_numbers(event).items():
                self._writer.add_scalar(name, value, event["step"])
            if event["event"] == "eval":
                self._writer.flush()  # TensorBoard's own two minutes are longer than a small run
        except OSError as error:
            self._lose(error)

    def close(self) -> None:
        """Write what is pending and close the file; a second call does nothing."""
        try:
            self._writer.close()
        except OSError as error:
            self._lose(error)
        if threading.excepthook == self._on_thread_error:
            threading.excepthook = self._hook

    def _lose(self, error: OSError) -> None:
        if not self._lost:
            self._lost = True
            print(f"paceline: writing the TensorBoard file failed ({error.strerror or error})", file=sys.stderr)

    def _on_thread_error(self, arguments: threading.ExceptHookArgs) -> None:
        if arguments.thread not in self._threads:
            self._hook(arguments)
