"""Run = Recipe + System + Plan + run options + provenance: everything that decides a result, as `run.json` keeps it.

`paceline train RUN/run.json` repeats it. Only the standard library here: reading a run must not need torch.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from paceline._utils.commands import format_command
from paceline._utils.errors import PacelineError, RecipeError
from paceline._utils.safe_read import has_valid_checksum, parse_json, read_plain, with_checksum
from paceline._utils.text import parse_duration
from paceline.config import model_card
from paceline.config.constraints import Count, Help, Whole, check_bounds, check_kinds, convert_checked, get_hints
from paceline.config.plan import BatchPlan
from paceline.config.published import Submission
from paceline.config.recipe import Recipe
from paceline.config.system import System, check_system

FORMAT = 1
# Of a run.json: twenty thousand names of classes are one.
MAX_BYTES = 16 << 20
_BUCKET_FOLDER = re.compile(r"((s3|gs|az)://[^/\s]+|file://)(/[^/\s?#]+)+/?")
Node = TypeVar("Node")


@dataclass(frozen=True)
class RunOptions:
    """What a person asks of one run, beside recipe and system: where from, where to, how long, how often to look."""

    data: Annotated[str, Help("dataset: folder with train/ and val/ or a manifest.json; empty: built-in shapes")] = ""
    output_dir: Annotated[str, Help("run folder; an unfinished run is resumed; empty: runs/NAME-NNN")] = ""
    copy_data_to: Annotated[str, Help("folder on a local disk of each node to copy the images to; empty: no copy")] = ""
    weights: Annotated[str, Help("initial weights: file, run (best checkpoint), checkpoint, published name, or none")] = ""
    max_steps: Annotated[Whole, Help("stop after this many steps; 0: the recipe's length")] = 0
    max_train_images: Annotated[Whole, Help("use only N training images, evenly spaced; 0: all")] = 0
    max_val_images: Annotated[Whole, Help("use only N validation images, evenly spaced; 0: all")] = 0
    val_subset: Annotated[Literal["", "tune", "test"], Help("half of the validation images, by file name; empty: all")] = ""
    lint: Annotated[bool, Help("check the dataset first, like `data lint`, and stop at serious problems")] = False
    num_folds: Annotated[Whole, Help("number of folds of the training images; train on all except one; 0: no folds")] = 0
    fold: Annotated[Whole, Help("fold to evaluate on, from 1 to --num-folds")] = 0
    fold_seed: Annotated[Whole, Help("random seed of the folds; independent of --seed")] = 0
    group_by: Annotated[str, Help("regular expression: images with the same captured text are in one fold")] = ""
    max_time: Annotated[str, Help("time limit with a graceful stop: 90 (seconds), 30m, 2h; includes earlier starts")] = ""
    auto_config: Annotated[bool, Help("set image size, boxes, batch, length, and evaluations for the dataset")] = False
    rescale_schedule: Annotated[bool, Help("shorten the whole schedule to fit --max-steps or --max-time")] = False
    patience: Annotated[Whole, Help("stop after this many evaluations without improvement; 0: never")] = 0
    log_every: Annotated[Whole, Help("steps between train events; 0: about 200 per run, at most 100 steps apart")] = 0
    save_every: Annotated[Whole, Help("steps between checkpoints; 0: one per epoch")] = 0
    eval_every: Annotated[Whole, Help("steps between evaluations; 0: as in the recipe")] = 0
    dedicated_eval_ranks: Annotated[Whole, Help("number of ranks (the last ones) that only evaluate; 0: all do both")] = 0
    keep_checkpoints: Annotated[Count, Help("number of newest checkpoints to keep, in addition to the best")] = 2
    sync_to: Annotated[str, Help("bucket folder to copy the run to and resume from: s3://BUCKET/PREFIX")] = ""
    keep_checkpoint_every: Annotated[Whole, Help("also keep checkpoints whose step is a multiple of N; 0: none")] = 0
    overfit_one_batch: Annotated[bool, Help("train repeatedly on the first batch, which is read once")] = False
    synthetic: Annotated[bool, Help("train on synthetic batches to measure speed without input; nothing is scored")] = False
    deterministic: Annotated[bool, Help("make runs bitwise reproducible; slower on accelerators")] = False
    profile: Annotated[str, Help("write a profiler trace of steps A+1 to B, as A:B; for Nsight Systems: nvtx:A:B")] = ""
    quiet: Annotated[bool, Help("print only warnings, the result, and the path of the report")] = False
    json: Annotated[bool, Help("print events to stdout, one JSON object per line, and all other output to stderr")] = False
    logger: Annotated[tuple[str, ...], Help("experiment trackers: wandb, mlflow, ./file.py:name")] = ()
    tensorboard: Annotated[bool, Help("write TensorBoard files to the run folder during training")] = True
    mlperf: Annotated[Submission, Help("submission details in MLPerf's log")] = field(default_factory=Submission)


# Which photos are evaluated, and the others learned.
FOLD = ("val_subset", "num_folds", "fold", "fold_seed", "group_by")


@dataclass(frozen=True)
class RunSpec:
    """One training run."""

    name: str  # recipe's name on the command line
    recipe: Recipe
    system_name: str  # system's name on the command line
    system: System
    plan: BatchPlan
    options: RunOptions
    provenance: Mapping[str, Any] = field(default_factory=dict)  # versions, command, host, git commit, data, weights

    def record(self) -> RunRecord:
        """The record that run.json holds."""
        parts = {name: asdict(getattr(self, name)) for name in ("recipe", "system", "plan", "options")}
        return RunRecord(
            name=self.name, world_size=self.plan.world_size, system_name=self.system_name, **parts, **self.provenance
        )


@dataclass(frozen=True)
class RunRecord:
    """A run.json, or the card of a file of weights (config/model_card.py).

    Settings are dicts, as they were written: their classes depend on the workload, and `from_json` reads them.
    """

    name: str = ""  # the recipe's
    world_size: int = 1  # ranks that train
    recipe: dict[str, Any] = field(default_factory=dict)
    system_name: str = "auto"
    system: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    command: str = ""
    git_commit: str = ""
    host: dict[str, Any] = field(default_factory=dict)
    launcher: str = ""
    threads: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)  # Task.facts
    classes: list[str] = field(default_factory=list)
    memory_estimate: dict[str, Any] = field(default_factory=dict)  # tasks.memory.MemoryEstimate
    started: str = ""
    cpu_binding: dict[str, Any] = field(default_factory=dict)  # cores of the ranks, where they are bound to some
    rescaled_schedule: dict[str, Any] = field(default_factory=dict)  # of --rescale-schedule
    step_variants: str | None = None  # why the step has its forms
    input_rate: dict[str, Any] = field(default_factory=dict)  # training.input_rate.InputRate
    auto_config: dict[str, Any] | None = None  # fields that --auto-config set
    sha256: str | None = None  # of all the rest
    # Only on a card:
    step: int | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    best_f1: dict[str, Any] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)
    graph: dict[str, Any] = field(default_factory=dict)
    color_order: str | None = None
    averaged: bool | None = None

    def as_dict(self) -> dict[str, Any]:
        """The fields that are set, by name. An empty `auto` is kept: it says that --auto-config changed nothing."""
        return {name: value for name, value in vars(self).items() if value is not None and (value != {} or name == "auto")}

    def to_json(self) -> str:
        """The text of run.json."""
        return json.dumps(with_checksum({"format": FORMAT, **self.as_dict()}), indent=2) + "\n"


# Key of a run.json -> its type; and the keys that every one has.
KINDS = {
    name: next(get_origin(one) or one for one in (get_args(kind) if isinstance(kind, UnionType) else (kind,)))
    for name, kind in get_hints(RunRecord).items()
}
NEEDED = ("format", "name", "world_size", "recipe", "system", "plan", "options")


def read_run(path: Path, *, changed: Callable[[str], None] | None = None) -> RunRecord:
    """The record in a run.json (or in the run folder that holds one), or on the card of a file of weights (config/model_card.py).

    changed   told, in a line, of a file whose content is not what was written; None: such a file is refused
    Raises PacelineError when it is not there, is not one, or was changed.
    """
    file = run_file(path)
    if file.suffix in model_card.SUFFIXES:
        return RunRecord(**model_card.read_card(file))
    try:
        facts = parse_json(read_plain(file, MAX_BYTES, links=not path.is_dir()))
    except FileNotFoundError:
        raise PacelineError(
            f"{path}: run.json not found. Use a run folder that `paceline train --output-dir RUN` wrote."
        ) from None
    except (OSError, ValueError) as problem:
        why = getattr(problem, "strerror", None) or problem
        raise PacelineError(f"{file}: not a readable run ({why}). Start a run in another --output-dir.") from None
    if lacking := [name for name in NEEDED if not isinstance(facts, dict) or name not in facts]:
        raise PacelineError(f"{file}: is not a paceline run (missing keys: {', '.join(lacking)}).")
    if facts["format"] != FORMAT:
        raise PacelineError(
            f"{file}: format {facts['format']!r} is not supported. This version of paceline reads format {FORMAT}."
        )
    check_kinds(facts, KINDS, str(file))
    if not has_valid_checksum(facts):
        what = f"{file}: checksum mismatch; the file was edited or is damaged"
        if changed is None:
            raise PacelineError(
                f"{what}. Restore the original file, or start a new run with the edited settings:  "
                f"{format_command('train', file, '--output-dir', 'NEW_RUN')}"
            )
        changed(f"{what}. The edited settings are used.")
    return RunRecord(**{name: facts[name] for name in KINDS if name in facts})


def relative_data(facts: RunRecord) -> str:
    """What a saved run's --data is called from the working folder: as it was named where that is there, or has an address.

    A relative path was one from another folder: of the places that the run noted, the one that ends like it.
    """
    named = facts.options.get("data")
    if not isinstance(named, str) or "://" in named or Path(named).expanduser().is_absolute() or Path(named).exists():
        return named if isinstance(named, str) else ""
    end = tuple(part for part in Path(named).parts if part != "..")
    noted = [facts.data.get(name) for name in ("manifest", "root")]
    locations = [
        location for location in noted if isinstance(location, str) and end and Path(location).parts[-len(end) :] == end
    ]
    return next((position for position in locations if Path(position).is_dir()), named)


def refuse_synthetic(facts: RunRecord, run: Path, nothing: str) -> None:
    """Raises PacelineError for a run on made-up batches; nothing: what there is nothing for."""
    if facts.options.get("synthetic"):
        raise PacelineError(f"{run}: the run was trained on synthetic batches, so there is nothing to {nothing}.")


def run_file(path: Path) -> Path:
    """The run.json that `path` means: itself, or the one in this run folder."""
    return path / "run.json" if path.is_dir() else path


def run_folder(path: Path) -> Path:
    """The run folder that `path` means: itself, or the one that this run.json is in."""
    return path.parent if path.name == "run.json" and path.is_file() else path


def saved_system(facts: RunRecord, path: Path) -> System:
    """The system in the run.json that is, or is in, `path`.

    Raises RecipeError for a key of another version, and for a value that cannot describe a machine.
    """
    try:
        system = from_json(System(), facts.system, "system")
        check_system(system)
    except RecipeError as problem:
        raise RecipeError(f"{run_file(path)}: {problem}") from None
    return system


def saved_classes(facts: RunRecord, folder: Path) -> tuple[str, ...]:
    """The class names in a run.json, or on a card. Raises PacelineError where there are none, or invalid ones."""
    classes = facts.classes
    if not classes:
        raise PacelineError(f"{folder}: run.json has no classes, because the run ended before training started.")
    ids = facts.data.get("category_ids") or [1] * len(classes)
    whole = isinstance(ids, list) and len(ids) == len(classes) and all(type(number) is int for number in ids)
    if not whole or not all(isinstance(name, str) for name in classes):
        raise PacelineError(
            f"{run_file(folder)}: classes and category_ids must be lists of the same length, of names and of integers."
        )
    return tuple(classes)


def from_json(template: Node, facts: Mapping[str, Any], where: str) -> Node:
    """`template` (a frozen dataclass) with its fields taken from parsed JSON; lists become tuples, unknown keys are refused.

    Raises RecipeError naming the key, also for a value that is not of its field's type.
    """
    known = {entry.name: getattr(template, entry.name) for entry in fields(template)}  # type: ignore[arg-type]
    unknown = sorted(set(facts) - set(known))
    if unknown:
        raise RecipeError(f"{where}: unknown key {unknown[0]!r}, written by another version of paceline.")
    hints = get_hints(type(template))
    changes = {
        name: from_json(known[name], convert_checked(dict, value, f"{where}.{name}"), f"{where}.{name}")
        if is_dataclass(known[name])
        else convert_checked(hints.get(name), value, f"{where}.{name}")
        for name, value in facts.items()
    }
    return replace(template, **changes)  # type: ignore[type-var]


def with_defaults(facts: Mapping[str, Any], template: Any) -> dict[str, Any]:
    """Parsed JSON of a frozen dataclass, with `template`'s values for the fields that came after it was written."""
    return _joined(asdict(template), facts)


def _joined(known: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    inner = {
        name: _joined(known[name], value)
        for name, value in facts.items()
        if isinstance(value, Mapping) and isinstance(known.get(name), Mapping)
    }
    return {**known, **facts, **inner}


def parse_time_budget(text: str) -> float:
    """Seconds in a --max-time, as `parse_duration` reads it; empty is 0.

    Raises RecipeError for anything else.
    """
    seconds = parse_duration(text)
    if text and not seconds:
        raise RecipeError(f"--max-time {text!r}: must be a number above 0 with s, m, h, or d. Examples: 90s, 30m, 2h")
    return seconds


def parse_profile_steps(text: str) -> tuple[range, bool]:
    """--profile FIRST:END or nvtx:FIRST:END -> its steps, 0-based, and whether they are for Nsight; "" is no step.

    Raises RecipeError for anything else.
    """
    if not text:
        return range(0), False
    match = re.fullmatch(r"(nvtx:)?(\d+):(\d+)", text)
    if match is None or int(match[2]) >= int(match[3]):
        raise RecipeError(
            f"--profile {text!r}: must be FIRST:END with FIRST below END. Examples: 50:53 (steps 51, 52, and 53), nvtx:50:53"
        )
    return range(int(match[2]), int(match[3])), match[1] is not None


def check_run_options(options: RunOptions) -> None:
    """Refuse run options that cannot be meant.

    Raises RecipeError naming the flag.
    """
    check_bounds(options)
    if options.sync_to and not _BUCKET_FOLDER.fullmatch(options.sync_to):
        raise RecipeError(
            f"--sync-to {options.sync_to}: must be a folder in a bucket: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, "
            "az://CONTAINER/PREFIX, or file:///PATH."
        )
    for name in ("data", "copy_data_to", "lint", "auto_config", "num_folds") if options.synthetic else ():
        if value := getattr(options, name):
            flag = f"--{name.replace('_', '-')} {value}".removesuffix(" True")
            raise RecipeError(f"--synthetic and {flag}: a run on synthetic batches reads no data. Remove one of them.")
    check_fold(options)
    if options.rescale_schedule and not (options.max_steps or options.max_time):
        raise RecipeError("--rescale-schedule: requires a length. Add --max-steps N or --max-time T.")
    parse_time_budget(options.max_time)
    parse_profile_steps(options.profile)


def check_fold(options: RunOptions) -> None:
    """Raises RecipeError for a fold that cannot be."""
    folds, fold = options.num_folds, options.fold
    if options.val_subset and (folds or options.synthetic):
        other = f"--num-folds {folds}" if folds else "--synthetic"
        raise RecipeError(
            f"--val-subset {options.val_subset}: not supported with {other}, which reads no validation images. Remove one of them."
        )
    if not folds:
        for flag, value in (("fold", fold), ("fold-seed", options.fold_seed), ("group-by", options.group_by)):
            if value:
                raise RecipeError(f"--{flag} {value}: requires --num-folds. Example: --num-folds 5 --fold 1")
        return
    if folds < 2:
        raise RecipeError("--num-folds 1: must be 2 or more, because a run trains on all folds except one. 5 is usual.")
    if not 1 <= fold <= folds:
        explicit = f"--fold {fold}" if fold else f"--num-folds {folds} without --fold"
        raise RecipeError(f"{explicit}: a run evaluates on one fold. Set --fold to a number from 1 to {folds}.")


# --weights none: random values, meant.
NONE = "none"


def get_initial_weights(options: RunOptions) -> str:
    """What --weights names; "" where a run starts from random values."""
    return "" if options.weights == NONE else options.weights


def check_initial_weights(name: str, recipe: Recipe, options: RunOptions, requested: str = "", fit: str = "") -> None:
    """Refuse to begin a recipe of pretrained weights from random values that nobody asked for.

    name   the recipe's name
    requested  the command that asks; "" = Python
    fit    the weights that fit its trunk; "": the recipe's own
    Made-up batches teach nothing, and need no weights. Raises RecipeError, in a line with both ways out.
    """
    if options.weights or options.synthetic or not recipe.pretrained:
        return
    data, fit = "" if options.data else " --data DIR", fit or recipe.pretrained
    ways = f"{requested}{data} --weights {shlex.quote(fit)}", f"--weights {NONE}"
    if not requested:
        data = options.data or "DIR"
        ways = f'paceline.train("{name}", data="{data}", weights="{fit}")', f'weights="{NONE}"'
    raise RecipeError(
        f"{name} starts from pretrained weights, which are required:  {ways[0]}  (to train from scratch:  {ways[1]})"
    )
