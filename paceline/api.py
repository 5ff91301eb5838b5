"""Train from Python.

`train` is the public function `paceline.train`. The command line calls `train_request` directly.
"""

from __future__ import annotations

import difflib
import numbers
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from paceline._utils.commands import format_command
from paceline._utils.errors import PacelineError
from paceline._utils.names import CHECKPOINTS, flatten
from paceline.cli.printing import format_prepared
from paceline.config.constraints import convert_checked, get_hints
from paceline.config.foreign_flags import find_equivalent
from paceline.config.published import Submission
from paceline.config.recipe import NO_FLAG, EpochRounding, Evaluation, Optim, Recipe, Sampler, Targets, override
from paceline.config.run import RunOptions, RunSpec, from_json
from paceline.config.schedule import Schedule
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

if TYPE_CHECKING:
    from typing_extensions import Unpack


class TrainOptions(TypedDict, total=False):
    """List the keyword arguments that `paceline.train` accepts in addition to its named parameters.

    All of them are optional.

    Settings of the run, which are also flags of ``paceline train``:
        copy_data_to (str or Path): folder on a local disk of each node to copy the images to. Default: no copy
        weights (str or Path): initial weights: a weight file, a run (its best checkpoint), a checkpoint, the name of published
            weights, or ``"none"``.
        max_steps (int): stop after this many optimizer steps. Default: 0 (the length of the recipe)
        max_time (str): stop after this time: ``"90"`` (seconds), ``"30m"``, or ``"2h"``. Earlier starts of the run count.
        rescale_schedule (bool): shorten the complete schedule to fit `max_steps` or `max_time`. Default: False
        auto_config (bool): choose image size, boxes, batch size, length, and evaluations by the dataset. Default: False
        patience (int): stop after this many evaluations without improvement. Default: 0 (never)
        max_train_images (int): use only this many training images, evenly spaced. Default: 0 (all)
        max_val_images (int): use only this many validation images, evenly spaced. Default: 0 (all)
        val_subset (str): evaluate on half of the validation images, selected by file name: ``"tune"`` or ``"test"``.
        lint (bool): check the dataset first, like ``paceline data lint``, and stop at serious problems. Default: False
        num_folds (int): number of cross-validation folds of the training images. Default: 0 (no folds)
        fold (int): fold to evaluate on, from 1 to `num_folds`. The run trains on all other folds.
        fold_seed (int): random seed of the folds. It does not depend on `seed`. Default: 0
        group_by (str): regular expression. Images with the same captured text are in the same fold.
        log_every (int): steps between training events. Default: 0 (about 200 events per run, at most 100 steps apart)
        save_every (int): steps between checkpoints. Default: 0 (one checkpoint per epoch)
        eval_every (int): steps between evaluations. Default: 0 (as in the recipe)
        dedicated_eval_ranks (int): number of last ranks that only evaluate. Default: 0 (all ranks train and evaluate)
        keep_checkpoints (int): number of newest checkpoints to keep, in addition to the best one. Default: 2
        keep_checkpoint_every (int): also keep checkpoints whose step is a multiple of this number. Default: 0 (none)
        sync_to (str): bucket folder to copy the run to and to resume it from, such as ``"s3://BUCKET/PREFIX"``.
        overfit_one_batch (bool): train repeatedly on the first batch, which is read once. Default: False
        synthetic (bool): train on synthetic batches to measure the speed without input. Nothing is scored. Default: False
        deterministic (bool): make runs bitwise reproducible, which is slower on accelerators. Default: False
        profile (str): write a profiler trace of steps A+1 to B: ``"A:B"``, or ``"nvtx:A:B"`` for Nsight Systems.
        quiet (bool): print only warnings, the result, and the path of the report. Default: False
        json (bool): print events to stdout, one JSON object per line, and all other output to stderr. Default: False
        logger (str or Sequence[str]): experiment trackers: ``"wandb"``, ``"mlflow"``, or ``"./file.py:name"``.
        tensorboard (bool): write TensorBoard files to the run folder. Default: True
        mlperf (Submission or Mapping[str, Any]): submission details for the MLPerf log.

    Fields of the recipe, whose defaults depend on the recipe:
        model, input: dataclasses of the task. `Recipe` describes all fields.
        optim (Optim), schedule (Schedule), eval (Evaluation): complete groups of fields.
        target, target_data, global_batch_size, epochs, max_images, epoch_rounding, bn_batch_size, ema_decay, sampler,
            repeat_threshold, seed: top-level fields.
    """

    # Settings of the run
    copy_data_to: str | Path
    weights: str | Path
    max_steps: int
    max_train_images: int
    max_val_images: int
    val_subset: Literal["", "tune", "test"]
    lint: bool
    num_folds: int
    fold: int
    fold_seed: int
    group_by: str
    max_time: str
    auto_config: bool
    rescale_schedule: bool
    patience: int
    log_every: int
    save_every: int
    eval_every: int
    dedicated_eval_ranks: int
    keep_checkpoints: int
    sync_to: str
    keep_checkpoint_every: int
    overfit_one_batch: bool
    synthetic: bool
    deterministic: bool
    profile: str
    quiet: bool
    json: bool
    logger: str | Sequence[str]
    tensorboard: bool
    mlperf: Submission | Mapping[str, Any]
    # Fields of the recipe
    model: Any
    input: Any
    target_data: str
    global_batch_size: int
    epochs: float
    max_images: int
    epoch_rounding: EpochRounding
    bn_batch_size: int
    optim: Optim
    schedule: Schedule
    eval: Evaluation
    target: Targets
    ema_decay: float
    sampler: Sampler
    repeat_threshold: float
    seed: int


def train(
    recipe: str | Recipe,
    *,
    data: str | Path = "",
    output_dir: str | Path = "",
    system: str = "auto",
    overrides: Mapping[str, Any] | None = None,
    **options: Unpack[TrainOptions],
) -> TrainResult:
    """Train a recipe and return a summary of the run.

    The run ends when it reaches the target of the recipe, or at the end of the recipe's schedule. As the command ``paceline train``
    does, this function prints the progress, and writes checkpoints and a report to the run folder. If `output_dir` is the folder of
    an interrupted run, training resumes. If it is the folder of a finished run, a larger `max_steps` continues training.

    Example::

        result = paceline.train("classify-demo", data="photos", output_dir="runs/first", max_steps=500)
        print(result.status, result.best_metrics)  # for example: stopped_early {'top1': 0.81, 'top5': 1.0}
        predictor = paceline.load(result.run_dir)

        # Fine-tune with a different batch size. The learning rate is not scaled automatically, so set it, too.
        paceline.train("ssd-finetune", data="coco", weights="resnet34", global_batch_size=16, overrides={"optim.lr": 0.005})

    Args:
        recipe (str or Recipe): what to train: the name of a recipe, such as ``"classify-demo"`` (``paceline list recipes`` prints
            all of them), the name of a published configuration (``paceline list configs``), a function in a Python file
            (``"./file.py:function"``), or a `Recipe`.
        data (str or Path): dataset in class folders or in the format of COCO, Pascal VOC, or YOLO. Default: the built-in images of
            the recipe
        output_dir (str or Path): run folder. Default: a new folder, such as ``runs/NAME-001``
        system (str): hardware to train on, such as ``"cpu"`` or ``"gpu"``. Default: ``"auto"``
        overrides (Mapping[str, Any], optional): values of nested recipe fields by dotted name, such as
            ``{"optim.lr": 0.1, "model.depth": 18}``. Names that start with ``mlperf.`` set fields of `mlperf`.
        **options: settings of the run and top-level fields of the recipe. `TrainOptions` describes them.

            Settings of the run: weights, max_steps, max_time, rescale_schedule, auto_config, patience, max_train_images,
            max_val_images, val_subset, lint, num_folds, fold, fold_seed, group_by, log_every, save_every, eval_every,
            dedicated_eval_ranks, keep_checkpoints, keep_checkpoint_every, sync_to, overfit_one_batch, synthetic, copy_data_to,
            deterministic, profile, quiet, json, logger, tensorboard, mlperf. For example, ``logger=["wandb", "./file.py:name"]``
            and ``mlperf={"submitter": "Us", "cache_cleared": True}``.

            Fields of the recipe: global_batch_size, epochs, max_images, bn_batch_size, ema_decay, seed, sampler, repeat_threshold,
            epoch_rounding, target, target_data, and the complete groups model, input, optim, schedule, and eval.

    Returns:
        TrainResult: status, reason, number of steps, best metrics, and run folder.

    Raises:
        PacelineError: if you can fix the error. Examples are an unknown name, an invalid value, an unusable dataset, and a run
            folder that is finished or in use. Subclasses: `RecipeError`, `DataError`, and `CheckpointError`.
    """
    from paceline.config.published import system_for

    if not isinstance(recipe, str | Recipe):
        raise PacelineError(f"paceline.train({recipe!r:.60}): expected a Recipe or the name of a recipe.")
    chosen = choose_recipe(recipe) if isinstance(recipe, str) else recipe
    run_options, changed = split_keywords(chosen, {"data": data, "output_dir": output_dir, **options}, overrides or {})
    request = Request(
        name=recipe if isinstance(recipe, str) else "custom",
        recipe=override(chosen, changed),
        system_name=system,
        system=system_for(str(recipe), system, choose_system(system), changed),
        options=run_options,
        given=frozenset(changed) | ({"system"} if system != "auto" else set()),
    )
    validate(request, read_launch(os.environ))
    return train_request(request)


def train_request(request: Request, console: Console | None = None) -> TrainResult:
    """Train a request that `validate` accepted on this rank, and write the report of the run.

    Args:
        request (Request): the run to train.
        console (Console, optional): destination of the messages, which is closed at the end. Default: a new console, configured by
            the options of the request

    Returns:
        TrainResult: summary of the run.

    Raises:
        PacelineError: if the run is already finished. Its missing report is written first.
    """
    console = console or open_console(request.options, read_launch(os.environ).rank)
    console.describe = format_prepared
    try:
        return run_training(request, console, on_end=report_run)
    except FinishedError as finished:
        raise PacelineError(f"{finished}{write_missing_report(finished.folder)}") from None


def report_run(ending: TrainResult, run: RunSpec, workload: WorkloadSpec, console: Console) -> None:
    """Write RUN/report.html, and print the path and the next command.

    If the report fails, print a warning. The result of the run stays the same.
    """
    from paceline.tools.report.run_report import write_report

    folder = Path(ending.run_dir)
    try:
        console.warning(f"report: {write_report(folder, workload)}")
    except (PacelineError, OSError) as error:
        again = f"paceline report {shlex.quote(ending.run_dir)}"
        console.warning(
            f"warning: the run is complete, but has no report: {' '.join(str(error).split())} To retry:  {again}"
        )
    if ending.status != "interrupted" and not run.options.synthetic and (folder / CHECKPOINTS / LAST).exists():
        built_in = None if run.options.data else Path(run.provenance["data"]["root"])
        images = next(built_in.glob("val*"), "IMAGES") if built_in is not None else "IMAGES"
        console.line(f"next:   {format_command('predict', folder, images)}")


def write_missing_report(folder: Path) -> str:
    """Write the report of a finished run that was killed before it had one.

    Returns:
        str: a line about the report, or "" if the report exists.
    """
    if (folder / "report.html").exists():
        return ""
    from paceline.tools.report.run_report import write_report

    try:
        return f"\nIts missing report has been written: {write_report(folder)}"
    except (PacelineError, OSError) as error:
        return f"\nFailed to write its missing report: {error}"


# Keyword arguments of `train`: options of the run and fields of a recipe, checked as flags are.

# Its named parameters.
OWN = ("data", "output_dir", "system", "overrides")


def split_keywords(
    recipe: Recipe, keywords: Mapping[str, Any], overrides: Mapping[str, Any]
) -> tuple[RunOptions, dict[str, Any]]:
    """Split keyword arguments into options of the run and fields of the recipe.

    Args:
        recipe (Recipe): recipe whose top-level fields are accepted.
        keywords (Mapping[str, Any]): keyword arguments of `train`.
        overrides (Mapping[str, Any]): values of recipe fields by dotted name.

    Returns:
        tuple[RunOptions, dict[str, Any]]: the options of the run, and the changed fields by dotted name, as `override` accepts them.

    Raises:
        PacelineError: if a keyword is unknown (the message suggests similar ones), given twice, or has a value of a wrong type.
    """
    if not isinstance(overrides, Mapping) or not all(isinstance(name, str) for name in overrides):
        raise PacelineError('overrides: must be a dict with dotted names as keys: overrides={"optim.lr": 0.01}.')
    hints = get_hints(RunOptions)
    of_recipe = {entry.name for entry in fields(recipe)} - {NO_FLAG}
    run_options: dict[str, Any] = {}
    of_mlperf = {name.partition(".")[2]: value for name, value in overrides.items() if name.startswith("mlperf.")}
    if of_mlperf and "mlperf" in keywords:
        raise PacelineError("mlperf: given both as a keyword argument and in overrides. Remove one of them.")
    if of_mlperf:
        keywords = {**keywords, "mlperf": of_mlperf}
    changed = {name: _plain(value) for name, value in overrides.items() if not name.startswith("mlperf.")}
    for name, value in keywords.items():
        if name == "mlperf":
            run_options[name] = _submission(value)
        elif name == "logger" and isinstance(value, str):
            run_options[name] = (value,)
        elif name in hints:
            run_options[name] = convert_checked(hints[name], _plain(value), name)
        elif name not in of_recipe:
            raise PacelineError(f"{name}: unknown keyword argument.{_nearest(name, recipe)}")
        elif name in overrides:
            raise PacelineError(f"{name}: given both as a keyword argument and in overrides. Remove one of them.")
        else:
            changed[name] = _plain(value)
    return RunOptions(**run_options), changed


def _submission(value: Any) -> Submission:
    """Convert the value of `mlperf`, a dict of fields or a Submission, to a Submission."""
    facts = asdict(value) if isinstance(value, Submission) else value
    known = [entry.name for entry in fields(Submission)]
    if not isinstance(facts, Mapping):
        raise PacelineError(f'mlperf: must be a dict of its fields, as mlperf={{"submitter": "Us"}}, got {value!r:.60}.')
    if unknown := [name for name in facts if name not in known]:
        raise PacelineError(f"mlperf: unknown field {unknown[0]!r:.60}. Known: {', '.join(known)}.")
    return from_json(Submission(), {name: _plain(one) for name, one in facts.items()}, "mlperf")


def _plain(value: Any) -> Any:
    """Convert paths to text, and numbers of other libraries, such as NumPy, to numbers of Python."""
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
    ways = [f'overrides={{"{one}": ...}}' if "." in one else f"{one}=..." for one in near[:3]]
    hint = f" Did you mean {' or '.join(ways)}?" if ways else ""
    return f"{hint} Keywords: {', '.join(dict.fromkeys(whole))}; pass nested fields, such as optim.lr, in overrides."
