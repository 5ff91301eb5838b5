"""Whether a run that has ended goes on: what the new command asks, beside where the run stands.

A run ends at its target, at its length, at --steps, at --time-budget or by --patience. The same folder goes on where the
command asks for more than that: each of the five that would end it at once is named otherwise.
Standard library and small readers only: a refusal must not wait for torch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paceline.config.commands import to_go_on
from paceline.config.errors import CheckpointError, UserError
from paceline.config.length import length_in_steps
from paceline.config.python_file import same_workload
from paceline.config.recipe import Recipe
from paceline.config.run import Controls, read_run, seconds_in
from paceline.log.events import metrics_of, read_events
from paceline.log.prose import duration
from paceline.tasks.metrics.target import in_words, reached

# Of an `end` event: the run did what it was asked, and only more of it is a reason to go on.
ENDED = ("success", "ran_out", "stopped_early")


class FinishedError(UserError):
    """The named run is finished, and nothing more of it was asked; `folder` is where it lies."""

    def __init__(self, text: str, folder: Path) -> None:
        super().__init__(text)
        self.folder = folder


def stand_of(
    path: Path, name: str, recipe: Recipe, controls: Controls, given: Collection[str], *, repeats: bool
) -> tuple[dict[str, Any], str]:
    """-> (run.json of the run in `path`, the status with which it ended; empty where it did not end).

    name    the recipe's name
    given   dotted names of the recipe's fields set by hand
    repeats whether recipe and controls come from a run.json
    Raises FinishedError, with the ways to go on, where the command asks for no more than the run has; CheckpointError for a
    run of another task, fitted to another length, or where one is on data and the other synthetic; UserError where the folder
    cannot be read.
    """
    saved = read_run(path)
    task = str(saved["recipe"].get("task"))
    if not same_workload(task, recipe.task):
        raise CheckpointError(f"{is_another(path, saved, name)} {how_to_go_on(path, task)}")
    if controls.synthetic != bool(saved["controls"].get("synthetic")):
        on = "data" if controls.synthetic else "synthetic batches"
        raise CheckpointError(f"{path} was trained on {on}; choose another --out.")
    events = read_events(path / "events.jsonl")
    ends = [event for event in events if event["event"] == "end"]
    ended = ends[-1]["status"] if ends and ends[-1]["status"] in ENDED else ""
    asked, had = fitted_to(controls), saved.get("fitted", {}).get("asked", "")
    if asked != had and (asked or not repeats):
        to = [f"fitted to {length}" if length else "not fitted" for length in (had, asked)]
        raise CheckpointError(
            f"{path}: the schedule of this run is {to[0]}, this command's is {to[1]}. "
            f"{how_to_go_on(path, task)}{_longer(saved, ended) if ended else ''}"
        )
    if not ended:
        return saved, ""
    end = ends[-1]
    scored = [event for event in events if event["event"] == "eval" and event["step"] == end["step"]]
    try:
        ways = _ways(end, metrics_of(scored[-1]) if scored else {}, saved, recipe, controls, given)
    except (KeyError, TypeError, ValueError, ArithmeticError) as problem:
        raise UserError(
            f"{path}: run.json holds what no run of ours has ({problem!r}). Choose another --out."
        ) from None
    if ways:
        raise FinishedError(
            f"--out {controls.out or path}: this run is finished ({end['status'].replace('_', ' ')}: {end.get('reason', '')}).\n"
            f"It goes on with {', and '.join(ways)}. Or start a new run: another --out, or none.",
            path,
        )
    return saved, end["status"]


def fitted_to(controls: Controls) -> str:
    """What --fit-schedule fits a schedule to, as flags; empty without it."""
    if not controls.fit_schedule:
        return ""
    return f"--steps {controls.steps}" if controls.steps else f"--time-budget {controls.time_budget}"


def is_another(path: Path, saved: Mapping[str, Any], name: str) -> str:
    """In words: the run in `path` is not one of the recipe `name`."""
    return f"{path} is a {saved['recipe'].get('task')} run (recipe {saved['name']}), not {name}."


def how_to_go_on(path: Path, task: str) -> str:
    """The command that goes on with the run in `path` as it was asked for; task: its recipe's."""
    return f"To go on with it:\n  {to_go_on(path, task)}"


def _longer(saved: Mapping[str, Any], ended: str) -> str:
    """Flags with which a run that has ended goes on, for twice its length."""
    flag = "epochs" if saved["recipe"].get("epochs") else "images_seen"
    words = f" --{flag.replace('_', '-')} {2 * (saved['recipe'].get(flag) or 0):g}"
    words += " --quality.targets" if ended == "success" else ""
    return words + (" --patience 0" if saved["controls"].get("patience") else "")


def _ways(
    end: Mapping[str, Any],
    metrics: Mapping[str, float],
    saved: Mapping[str, Any],
    recipe: Recipe,
    controls: Controls,
    given: Collection[str],
) -> list[str]:
    """What must be asked otherwise, in words; [] where the run can go on."""
    ways = []
    # Without the flag the run's own counts: the recipe's may have been left out for data that it was not set for.
    targets = recipe.quality.targets if "quality.targets" in given else saved["recipe"]["quality"]["targets"]
    if reached(targets, metrics):
        ways.append(f"another --quality.targets than {in_words(targets)} (or the flag alone: none)")
    length = length_in_steps(asdict(recipe), saved["plan"])
    asked = min(length, controls.steps or length)
    if controls.fit_schedule:  # its length is the number of steps that was found when it began
        length = asked = int(saved["plan"]["total_steps"])
    if end["step"] >= asked:
        if end["step"] < length:  # it may stand further than this command asks
            ways.append(f"--steps above {end['step']:,} (or without: {length:,})")
        elif controls.fit_schedule:
            ways.append("`paceline train RUN/run.json --out RUN` and more --epochs or --images-seen")
        else:
            flag = "epochs" if recipe.epochs else "images_seen"
            most = max(getattr(recipe, flag), saved["recipe"][flag])
            ways.append(f"--{flag.replace('_', '-')} above {most:g}")
            if asked < length:
                ways.append(f"--steps above {end['step']:,} (or without)")
    budget = 0.0 if controls.fit_schedule and not controls.steps else seconds_in(controls.time_budget)
    if 0 < budget <= end["seconds"]:
        ways.append(
            f"--time-budget above {controls.time_budget} (or without; {duration(end['seconds'])} of the run are used, all its "
            "processes together)"
        )
    if 0 < controls.patience <= end.get("evaluations_since_best", 0):
        ways.append(f"--patience above {controls.patience} (or without)")
    return ways
