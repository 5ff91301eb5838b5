"""`paceline eval RUN [--data DIR] [--checkpoint best|last|all|step-N]`: score a trained run, on any number of ranks.

Also `paceline eval WEIGHTS --data DIR [--recipe NAME]`: a file of weights, anybody's, or the name of published ones; and
`paceline eval FILE.onnx --data DIR`: an exported graph (.onnx, .xml, .pt2), by its own package; and `paceline eval --predictions
FILE --data DIR`: answers that any model has written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline._utils.atomic_write import KEY, write_user_file
from paceline._utils.commands import format_command
from paceline._utils.errors import DataError, PacelineError, RecipeError
from paceline._utils.formatting import approximation_warning
from paceline._utils.reporter import Lines, Reporter
from paceline._utils.text import format_count
from paceline.cli.eval_flags import DETECT, IN_GRAPH, EvalFlags, check_flags, read_external_predictions
from paceline.cli.eval_table import evaluation_record, format_evaluation
from paceline.cli.flags import parse
from paceline.cli.printing import Printer, format_prepared
from paceline.config.model_card import GRAPHS
from paceline.config.plan import evaluation_batch
from paceline.config.recipe import Recipe, override
from paceline.config.run import (
    FOLD,
    RunOptions,
    RunRecord,
    check_fold,
    check_run_options,
    from_json,
    refuse_synthetic,
    relative_data,
    run_folder,
    saved_system,
)
from paceline.config.system import System
from paceline.data.index.splits import format_fold, format_half
from paceline.distributed.comm.launcher import read_launch
from paceline.distributed.device.systems import choose_system
from paceline.models.registry import get_workload
from paceline.training.logging.console import open_console
from paceline.training.request import check_request
from paceline.training.run_arguments import is_weights_argument, open_run, parse_named_recipe, read_saved_count

if TYPE_CHECKING:
    from paceline.data.index.manifest import Manifest
    from paceline.distributed.comm.world import DistContext
    from paceline.inference.external_scores import ExternalScores
    from paceline.models.task import EvalResult, Task


@dataclass(frozen=True)
class EvalSubject:
    """A run, or a file of weights, to score."""

    recipe: Recipe  # the run's, or the one that the weights fit
    facts: RunRecord | None  # run.json's; None for weights
    system: System  # where to compute
    options: RunOptions  # data set, images and fold of the run's own evaluations
    checkpoints: Sequence[str]  # their names


def run(printer: Printer, arguments: Sequence[str]) -> int:
    """Print each asked checkpoint's metrics."""
    if not arguments:
        raise PacelineError("a run is required: paceline eval RUN")
    flags = parse(printer, arguments, EvalFlags(), "eval", "Evaluate a checkpoint of a run, or a weight file.")
    flags = replace(flags, run=run_folder(flags.run))
    check_flags(flags)
    launch = read_launch(os.environ)
    if answers := read_external_predictions(flags, launch.world) if flags.predictions else None:
        subject = _scored_alone(answers)
    elif is_weights_argument(flags.run, flags.recipe):
        flags, subject = _weights(printer, flags, launch.world)
    else:
        subject = _run(flags, launch.world)
    _refuse_early(subject.recipe, flags.data if launch.world == 1 else "")

    from paceline.cli.eval_weights import describe_class_source
    from paceline.distributed.comm.environment import apply_environment
    from paceline.distributed.comm.world import open_distributed
    from paceline.distributed.device.affinity import bind_cores, choose_adapter
    from paceline.distributed.device.setup import choose_device, set_threads
    from paceline.models.metrics.bootstrap import confidence_intervals
    from paceline.models.task import InputRank
    from paceline.training.evaluate import make_predictions
    from paceline.training.rank_consistency import data_fingerprint, request_fingerprint, weight_fingerprint
    from paceline.training.step_variants import choose_kernels

    system = subject.system
    device = choose_device(system, launch.local_rank, launch.local_world)
    choose_kernels(system)
    options = _chosen_photos(flags, subject)
    requested = {"checkpoint": flags.checkpoint, "batch": flags.batch_size, "split": flags.split}
    alike = request_fingerprint("eval", subject.recipe, system, options, **requested) if launch.world > 1 else None
    with apply_environment(system, launch, named=False) as notes, ExitStack() as to_the_end:
        choose_adapter(system, launch, os.environ)
        world = to_the_end.enter_context(open_distributed(launch, device=device, facts=alike, secret_folder=flags.run))
        # With --json stdout is for objects alone.
        reporter = Lines(printer.note if world.is_main else str, format_prepared)
        for note in notes:
            reporter.line(note)
        placed = to_the_end.enter_context(bind_cores(system, world, reporter))
        threads = set_threads(system, world, reporter, placed.share)
        task = _open(flags, subject, options, world, reporter)
        world.assert_equal(data_fingerprint(task), "data")
        source = [describe_class_source(flags.run, task)] if subject.facts is None and not answers else []
        for line in filter(None, answers.notes(task) if answers else source):
            reporter.line(line)
        for name in subject.checkpoints:
            evaluate, model, label, step = _model(flags, subject, name, task, device, reporter, answers)
            if world.world > 1:
                which = {} if subject.facts is None else {"scored checkpoint": label}
                world.assert_equal({**which, **weight_fingerprint(model.state_dict(), name)}, f"weights of {name}")
            with open_console(RunOptions(json=flags.json), world.rank) as console:
                console.doing(f"scoring {label}", task.data.val_images)
                result = evaluate(
                    model,
                    task,
                    key=name,
                    batch=flags.batch_size or _batch(subject, task, world.world),
                    system=system,
                    rank_info=InputRank(world.rank, world.world, device, threads["loader"]),
                    world=world,
                    passed=lambda images: console.done(images * world.world),
                )
            if not world.is_main:
                continue
            own = subject.facts.metrics if subject.facts and is_graph(flags.run) else {}
            ends = confidence_intervals(result.draws()) if flags.confidence_intervals else {}
            if flags.json:
                print(json.dumps({"checkpoint": label, "step": step} | evaluation_record(result, own, ends)))
            else:
                printer.say(f"{label}  {format_count(result.images, 'image')} from {_where(flags, task)}")
                for line in format_evaluation(result, own, ends):
                    printer.say(line)
            for kind, count in result.approximated.items():
                if count:
                    reporter.line(approximation_warning(kind, count))
            if flags.output:
                write_user_file(flags.output, json.dumps({KEY: "eval", "step": step, **make_predictions(task, result)}))
    return 0


def _run(flags: EvalFlags, world: int) -> EvalSubject:
    """A run folder, or a file of weights with a card."""
    if flags.run.is_file():
        _need_data(flags)
    if graph := is_graph(flags.run):
        if world > 1:
            raise PacelineError(f"{flags.run}: an exported graph runs in one process. Do not use a launcher.")
        usual = EvalFlags()
        for name in IN_GRAPH:
            if (value := getattr(flags, name)) != getattr(usual, name):
                flag = f"--{name.replace('_', '-')} {value}"
                raise PacelineError(f"{flag}: not supported for the graph {flags.run}, which runs on the CPU. Remove it.")
    facts, recipe = open_run(flags.run, verb="eval", recipe=flags.recipe, workload=flags.task_file)
    saved = from_json(RunOptions(), facts.options, f"{flags.run}: options")
    check_run_options(saved)
    if facts.plan:
        read_saved_count(facts, "micro_batch_size")
    names = [flags.checkpoint]
    if flags.checkpoint == "all" and flags.run.is_dir():
        from paceline.training.checkpoint.layout import list_steps, step_name

        names = [step_name(step) for step in list_steps(flags.run / "checkpoints")]
        if not names:
            raise PacelineError(f"{flags.run}: has no checkpoint yet.")
    system = choose_system("cpu") if graph else _system(flags.run, facts, flags.system)
    own = {name: getattr(saved, name) for name in ("max_val_images", *FOLD)}
    return EvalSubject(_detecting(recipe, flags), facts, system, RunOptions(data=relative_data(facts), **own), names)


def _scored_alone(answers: ExternalScores) -> EvalSubject:
    """Answers, whose task any recipe of their kind has."""
    recipe = parse_named_recipe(answers.recipe)[0][answers.recipe]
    return EvalSubject(recipe, None, choose_system("cpu"), RunOptions(), [str(answers.path)])


def _chosen_photos(flags: EvalFlags, subject: EvalSubject) -> RunOptions:
    """Which photos are scored. Raises RecipeError for a half of a fold's."""
    own = RunOptions(data=flags.data or subject.options.data) if flags.elsewhere else subject.options
    limit, half = flags.max_val_images or own.max_val_images, flags.val_subset or own.val_subset
    check_fold(options := replace(own, max_val_images=limit, val_subset=half))
    return options


def is_graph(path: Path) -> bool:
    """Whether an exported graph is named."""
    return path.suffix in GRAPHS and path.is_file()


def _need_data(flags: EvalFlags) -> None:
    if not flags.elsewhere:
        raise PacelineError(
            f"{flags.run}: a weight file has no dataset. Pass the one to score on:  "
            f"{format_command('eval', flags.run, '--data', 'DIR')}"
        )


def _weights(printer: Printer, flags: EvalFlags, world: int) -> tuple[EvalFlags, EvalSubject]:
    """A file of weights, in the network of --recipe, else in the one that it fits -> the flags with the file, and it."""
    if flags.task_file:
        raise PacelineError(f"--task-file {flags.task_file}: not supported for the weight file {flags.run}. Use --recipe.")
    _need_data(flags)
    requested, explicit = parse_named_recipe(flags.recipe)
    for recipe in requested.values():  # before torch is loaded
        _refuse_early(_detecting(recipe, flags), flags.data if world == 1 else "")
    from paceline.cli.eval_weights import match_weights

    path, called, recipe = match_weights(printer, flags.run, requested, explicit, world)
    flags = replace(flags, run=path, recipe=called)
    return flags, EvalSubject(
        _detecting(recipe, flags), None, choose_system(flags.system or "auto"), RunOptions(), ["weights"]
    )


def _detecting(recipe: Recipe, flags: EvalFlags) -> Recipe:
    """The recipe with the asked thresholds. Raises RecipeError for one that cannot be, or a network without any."""
    changes = {f"model.detect.{name}": value for name in DETECT if (value := getattr(flags, name)) is not None}
    model = asdict(recipe.model)
    known = model.get("detect", {}).keys() - ({"mask_threshold"} if not model.get("masks", True) else set())
    for name in (name.removeprefix("model.detect.") for name in changes):
        if name not in known:
            raise RecipeError(f"--{name.replace('_', '-')}: not supported by this network. Remove it.")
    with _own_flags():
        return override(recipe, changes)


def _refuse_early(recipe: Recipe, data: str) -> None:
    """Refuse before torch is loaded thresholds that cannot be and a data folder that is not there. Raises PacelineError."""
    with _own_flags():
        check_request(recipe, data, scored=True)


@contextmanager
def _own_flags() -> Iterator[None]:
    """Shorten the flags that a recipe's checks name to those of `eval`."""
    try:
        yield
    except RecipeError as problem:
        raise RecipeError(str(problem).replace("--model.detect.", "--")) from None


def _open(flags: EvalFlags, subject: EvalSubject, options: RunOptions, world: DistContext, reporter: Reporter) -> Task:
    from paceline.training.open_data import open_task

    if subject.facts is not None:
        refuse_synthetic(subject.facts, flags.run, "score")
    try:
        manifest = _held_out(flags, subject, world, reporter) if flags.elsewhere else None
        task = open_task(subject.recipe, options, world, reporter, manifest=manifest, scored=True)
    except PacelineError as problem:
        if flags.elsewhere or not subject.options.data:
            raise
        raise DataError(
            f"{flags.run}: the dataset {subject.options.data!r} in its run.json is not usable. Use --data DIR. {problem}"
        ) from None
    if subject.facts is not None and manifest is None:
        check_classes(task, subject.facts, options.data)
    return task


def _held_out(flags: EvalFlags, subject: EvalSubject, world: DistContext, reporter: Reporter) -> Manifest:
    """The data to score on, prepared once on each node, in the run's classes."""
    from paceline.data.index.splits import map_classes
    from paceline.data.prepare.auto_prepare import EvalSplit, prepare_eval_split
    from paceline.training.open_data import prepare_once

    kind = get_workload(subject.recipe.task).kind
    wanted = EvalSplit(flags.data, flags.split, flags.images_dir, flags.annotations)
    manifest = prepare_once(world, lambda: prepare_eval_split(wanted, kind, reporter=reporter))
    return manifest if subject.facts is None else map_classes(manifest, subject.facts)


def _model(
    flags: EvalFlags,
    subject: EvalSubject,
    checkpoint: str,
    task: Task,
    device: Any,
    reporter: Reporter,
    answers: ExternalScores | None,
) -> tuple[Callable[..., EvalResult], Any, str, int]:
    """-> what scores it; the model in eval mode, the opened graph or the answers; the name of its weights, their step, or 0."""
    if answers:
        from paceline.inference.external_scores import score_external

        return score_external, answers, checkpoint, 0
    if is_graph(flags.run):
        from paceline.inference.graph.evaluate import evaluate_file
        from paceline.inference.graph.graph_model import open_graph

        opened = open_graph(flags.run, allow_code_execution=flags.allow_code_execution)
        return evaluate_file, opened, opened.checkpoint, opened.step
    from paceline.training.evaluate import evaluate

    if subject.facts is None:
        from paceline.cli.eval_weights import load_weighted_network

        return evaluate, load_weighted_network(task, flags.run, flags.recipe, device), str(flags.run), 0
    from paceline.inference.trained_model import open_trained

    trained = open_trained(flags.run, checkpoint=checkpoint, device=device, recipe=subject.recipe, reporter=reporter)
    return evaluate, trained.model, trained.checkpoint, trained.step


def _batch(subject: EvalSubject, task: Task, world: int) -> int:
    """Images in one forward, as the run did; for weights, as training would."""
    if subject.facts is not None and subject.facts.plan:
        return evaluation_batch(read_saved_count(subject.facts, "micro_batch_size"), task.data.val_images, world)
    from paceline.models.memory_estimate import max_images_per_forward

    most = max_images_per_forward(task.memory(subject.system), subject.system)
    return evaluation_batch(min(most, subject.recipe.global_batch_size), task.data.val_images, world)


def _where(flags: EvalFlags, task: Task) -> str:
    """Which images were scored: the JSON, or the data set and its split, by its folder where it has one."""
    if flags.annotations:
        return flags.annotations
    manifest = task.data.manifest
    if fold := format_fold(task.facts.get("fold")):
        return f"{manifest.called}, {fold}"
    split, request = manifest.splits["val"], manifest.request or {}
    # Pascal VOC has one folder for all.
    telling = any(name in split.folder.lower() for name in ("train", "val", "test"))
    folder = f"{split.folder}/" if telling and not request.get("val_fraction") else flags.split or "val"
    named = f"{flags.split}: {folder}" if flags.split not in ("", folder.rstrip("/")) else folder
    if flags.data and split.folder == Path(os.path.realpath(os.path.expanduser(flags.data))).name:
        named = ""  # class folders alone, whose manifest lies in the cache
    return ", ".join(filter(None, (flags.data or str(manifest.called), named, format_half(manifest.half))))


def check_classes(task: Task, facts: RunRecord, data: str) -> None:
    """The data's classes must be the run's, in the same order; of class folders, those of the folders.

    Raises DataError naming the difference.
    """
    now, then = list(task.data.classes), list(facts.classes)
    folders = task.facts.get("class_folders")
    if now == then or (folders is not None and folders == facts.data.get("class_folders")):
        return
    missing, extra = sorted(set(map(str, then)) - set(now)), sorted(set(now) - set(map(str, then)))
    raise DataError(
        f"--data {data or facts.options['data']}: its classes differ from those of the run. "
        f"Missing: {', '.join(missing[:5]) or 'none'}; unknown: {', '.join(extra[:5]) or 'none'}; "
        f"{len(now)} classes in the dataset, {len(then)} in the run. Use a dataset with the same classes."
    )


def _system(run: Path, facts: RunRecord, requested: str) -> System:
    """Where to compute: as asked; else the run's own system, so that the run's own numbers come out, where it is to be had."""
    if requested:
        return choose_system(requested)
    own = saved_system(facts, run)
    if own.device == "cpu":
        return own
    from paceline.distributed.device.accelerators import count_devices

    return own if count_devices(own.device) else choose_system("auto")
