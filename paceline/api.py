"""Training as a call: `paceline.train`, and `train_request`, which it shares with the command line."""

from __future__ import annotations

import difflib
import numbers
import os
import shlex
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from paceline._utils.commands import format_command
from paceline._utils.errors import PacelineError
from paceline._utils.names import CHECKPOINTS, flatten
from paceline.cli.printing import format_prepared
from paceline.config.constraints import convert_checked, get_hints
from paceline.config.foreign_flags import find_equivalent
from paceline.config.mlperf import Submission
from paceline.config.recipe import NO_FLAG, Recipe, override
from paceline.config.run import RunOptions, RunSpec, from_json
from paceline.distributed.comm.launcher import read_launch
from paceline.distributed.device.systems import choose_system
from paceline.models.workload import WorkloadSpec
from paceline.training.checkpoint.layout import LAST
from paceline.training.eval_history import TrainResult
from paceline.training.logging.console import Console, open_console
from paceline.training.previous_run import FinishedError
from paceline.training.request import Request, validate
from paceline.training.run_arguments import choose_recipe
from paceline.training.trainer import run_training


def train(
    recipe: str | Recipe,
    *,
    data: str | Path = "",
    out: str | Path = "",
    system: str = "auto",
    changes: Mapping[str, Any] | None = None,
    **keywords: Any,
) -> TrainResult:
    """Train a recipe to its quality target, or as long as is asked; -> how the run ended.

        trained = paceline.train("classify-demo", data="photos", out="runs/first", steps=500)
        trained = paceline.train("ssd-finetune", data="coco", weights="resnet34", global_batch=16, changes={"optim.lr": 0.005})
        trained.status, trained.best, trained.run        # "success", {"box_ap": 0.41, ...}, "/home/me/runs/first"
        paceline.load(trained.run).predict("cat.jpg")

    `paceline train` does the same: the run prints its progress, writes a checkpoint an epoch and a report. Called again with the
    same `out` it resumes an interrupted run, and continues a finished one where it is given more steps.

    recipe    a name from `paceline train --help`, e.g. "classify-demo", "ssd-finetune", "maskrcnn-demo"; "./file.py:function"; or a
              Recipe
    data      the data set: class folders, COCO, Pascal VOC or YOLO; "" is the recipe's built-in pictures
    out       the run's folder; one with an unfinished run resumes it; "" makes runs/NAME-001, -002, ...
    system    where it runs: auto, cpu, gpu, ... (`paceline plan RECIPE` tells)
    changes   fields of the recipe by their dotted names: {"optim.lr": 0.1, "model.depth": 18}; and "mlperf.submitter"

    Keywords of the run (paceline.config.run.RunOptions says what each means):
        weights steps time_budget fit_schedule auto patience limit_train limit_val val_half lint folds fold fold_seed fold_group
        log_every save_every eval_every eval_ranks keep keep_every mirror overfit_one_batch synthetic stage exact profile quiet
        json sink tensorboard mlperf
        sink is a list of names: ["wandb", "./file.py:name"].
        mlperf is a dict of paceline.config.mlperf.Submission's fields: {"submitter": "Us", "cache_cleared": True}.
    Keywords of the recipe, each a field of it (paceline.config.recipe.Recipe):
        global_batch epochs images_seen bn_span ema seed sampler repeat_threshold epoch_steps target_data, and whole parts:
        model input optim schedule quality.
        A changed global_batch needs its learning rate named again, changes={"optim.lr": ...}: none is scaled.

    return    a TrainResult: status, "success" where the target or the end was reached, reason in words, step, best value of each
              metric, and run, the folder that paceline.load opens
    Raises PacelineError, with one of its kinds, for anything that a user can mend: an unknown name, a value that cannot be, data
    that cannot be used, a folder that is finished or in use. paceline.PacelineError is their common class.
    """
    from paceline.config.published import system_for

    if not isinstance(recipe, str | Recipe):
        raise PacelineError(f"paceline.train({recipe!r:.60}): the first argument is a recipe's name, or a Recipe.")
    chosen = choose_recipe(recipe) if isinstance(recipe, str) else recipe
    controls, changed = split_keywords(chosen, {"data": data, "out": out, **keywords}, changes or {})
    request = Request(
        name=recipe if isinstance(recipe, str) else "custom",
        recipe=override(chosen, changed),
        system_name=system,
        system=system_for(str(recipe), system, choose_system(system), changed),
        controls=controls,
        given=frozenset(changed) | ({"system"} if system != "auto" else set()),
    )
    validate(request, read_launch(os.environ))
    return train_request(request)


def train_request(request: Request, console: Console | None = None) -> TrainResult:
    """Train what `validate` has passed on this rank, and write the report of the run.

    console   closed here; None: a new one, by the request's controls
    """
    console = console or open_console(request.controls, read_launch(os.environ).rank)
    console.describe = format_prepared
    try:
        return run_training(request, console, on_end=report_run)
    except FinishedError as finished:
        raise PacelineError(f"{finished}{write_missing_report(finished.folder)}") from None


def report_run(ending: TrainResult, run: RunSpec, workload: WorkloadSpec, console: Console) -> None:
    """Write RUN/report.html, and print what comes next; where a report fails, a warning is printed, and the ending stays the same."""
    from paceline.tools.report.run_report import write_report

    folder = Path(ending.run)
    try:
        console.warning(f"report: {write_report(folder, workload)}")
    except (PacelineError, OSError) as error:
        again = f"paceline report {shlex.quote(ending.run)}"
        console.warning(f"no report ({' '.join(str(error).split())}) The run is whole; once that is mended:  {again}")
    if ending.status != "interrupted" and not run.controls.synthetic and (folder / CHECKPOINTS / LAST).exists():
        console.line(f"next:   {format_command('predict', folder, 'PHOTOS')}")


def write_missing_report(folder: Path) -> str:
    """Write the report of a finished run that was killed before it had one; -> a line about it, or ""."""
    if (folder / "report.html").exists():
        return ""
    from paceline.tools.report.run_report import write_report

    try:
        return f"\nIts report was missing and is written now: {write_report(folder)}"
    except (PacelineError, OSError) as error:
        return f"\nIts report is missing and cannot be written: {error}"


# Keywords of the Python call: run controls and fields of a recipe, checked as flags are.

# Keywords of the call itself.
OWN = ("data", "out", "system", "changes")


def split_keywords(
    recipe: Recipe, keywords: Mapping[str, Any], changes: Mapping[str, Any]
) -> tuple[RunOptions, dict[str, Any]]:
    """What the call's keywords ask of the run, and every change of the recipe: dotted names, as `override` takes them.

    changes  dotted names that were given as such
    Raises PacelineError for a keyword that is neither, naming its nearest neighbors, and for a value of another type.
    """
    if not isinstance(changes, Mapping) or not all(isinstance(name, str) for name in changes):
        raise PacelineError('changes is a dict of dotted names, as changes={"optim.lr": 0.01}.')
    hints = get_hints(RunOptions)
    of_recipe = {entry.name for entry in fields(recipe)} - {NO_FLAG}
    controls: dict[str, Any] = {}
    of_mlperf = {name.partition(".")[2]: value for name, value in changes.items() if name.startswith("mlperf.")}
    if of_mlperf and "mlperf" in keywords:
        raise PacelineError("mlperf is given as a keyword and in changes: give it once.")
    if of_mlperf:
        keywords = {**keywords, "mlperf": of_mlperf}
    changed = {name: _plain(value) for name, value in changes.items() if not name.startswith("mlperf.")}
    for name, value in keywords.items():
        if name == "mlperf":
            controls[name] = _submission(value)
        elif name == "sink" and isinstance(value, str):
            controls[name] = (value,)
        elif name in hints:
            controls[name] = convert_checked(hints[name], _plain(value), name)
        elif name not in of_recipe:
            raise PacelineError(f"there is no keyword {name!r}.{_nearest(name, recipe)}")
        elif name in changes:
            raise PacelineError(f"{name} is given as a keyword and in changes: give it once.")
        else:
            changed[name] = _plain(value)
    return RunOptions(**controls), changed


def _submission(value: Any) -> Submission:
    """mlperf=... as a dict of its fields, or as a Submission."""
    facts = asdict(value) if isinstance(value, Submission) else value
    known = [entry.name for entry in fields(Submission)]
    if not isinstance(facts, Mapping):
        raise PacelineError(f'mlperf is {value!r:.60}: must be a dict of its fields, as mlperf={{"submitter": "Us"}}.')
    if unknown := [name for name in facts if name not in known]:
        raise PacelineError(f"mlperf has no field {unknown[0]!r:.60}. Known: {', '.join(known)}.")
    return from_json(Submission(), {name: _plain(one) for name, one in facts.items()}, "mlperf")


def _plain(value: Any) -> Any:
    """Paths as text, and other libraries' numbers (numpy's) as Python's."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else value


def _nearest(name: str, recipe: Recipe) -> str:
    below = {name: name.rpartition(".")[2] for name in flatten(recipe) if "." in name}
    of_recipe = (entry.name for entry in fields(recipe) if entry.name != NO_FLAG)
    whole = [*OWN, *(entry.name for entry in fields(RunOptions)), *of_recipe]
    same, _ = find_equivalent(name.replace("_", "-"), [f"--{one.replace('_', '-')}" for one in (*whole, *below)])
    near = [flag.removeprefix("--").replace("-", "_") for flag in same]
    near = near or [dotted for dotted, last in below.items() if last == name]
    near = near or difflib.get_close_matches(name, [*whole, *below], n=2, cutoff=0.5)
    ways = [f'changes={{"{one}": ...}}' if "." in one else f"{one}=..." for one in near[:3]]
    hint = f" Did you mean {' or '.join(ways)}?" if ways else ""
    return f"{hint} Keywords: {', '.join(dict.fromkeys(whole))}; fields below these, as optim.lr, go into changes."
