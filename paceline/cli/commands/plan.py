"""`paceline plan RECIPE|RUN [--data DIR] [--system NAME] [--world-size N]`: recipe, system, plan, memory; needs no accelerator."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from paceline._utils.commands import format_command
from paceline._utils.errors import RecipeError
from paceline._utils.formatting import format_step_times
from paceline._utils.reporter import SILENT, Reporter
from paceline._utils.text import Row, format_definitions, text_width
from paceline.cli.flags import ParsedArgs, explain, parse_run_args
from paceline.cli.help import HELP
from paceline.cli.printing import Printer
from paceline.cli.recipe_text import base_recipe, differing_cells, format_grid, format_recipe_table, list_cells
from paceline.cli.saved_request import saved_request
from paceline.config.constraints import Help, Whole
from paceline.config.model_card import GRAPHS, SUFFIX, format_card
from paceline.config.plan import BatchPlan, count_ranks, count_training_ranks, make_plan
from paceline.config.recipe import DATA_CLASSES, DATA_IMAGES, Recipe, differing_fields
from paceline.config.recipes.published_rows import LIKE
from paceline.config.recipes.published_rows import PublishedRecipe as PublishedRow
from paceline.config.run import FOLD, NONE, RunOptions, RunRecord, check_fold, run_file, run_folder
from paceline.data.index.splits import format_fold, format_half
from paceline.models.registry import get_workload
from paceline.models.weights.download import pretrained_for
from paceline.tools.estimate.summary import check_rates, choose_speed, estimate_rows, measure_run_speed, unknown_rows
from paceline.training.input_stats import resolve_pixel_stats
from paceline.training.logging.events import read_events
from paceline.training.open_data import open_task
from paceline.training.plan_text import describe
from paceline.training.request import check_request
from paceline.training.run_arguments import MARK, choose_recipe, is_folder, read_saved_count
from paceline.training.small_data import check_auto, check_image_count, report_length

if TYPE_CHECKING:
    from paceline.models.memory_estimate import MemoryEstimate

ABOUT = """Print what `train` would do: recipe, system, plan (steps, batches, learning rate, evaluations), and estimated memory.
No accelerator is needed; --system is the machine to plan for. RECIPE is a name (paceline list recipes), a published configuration
(paceline list configs), which is planned on its machine, or ./file.py:function. RUN is a run folder or run.json (./NAME if a recipe
has this name), or a file of `paceline export`, whose metadata is also printed. All flags of the recipe are supported, as for train:
paceline plan RECIPE --help lists them.
--task-file ./file.py:name is the custom task of a RUN."""


@dataclass(frozen=True)
class PlanFlags:
    """What `plan` plans for."""

    data: Annotated[str, Help("dataset to plan for; empty: of the recipe or the run")] = ""
    nodes: Annotated[int, Help("number of nodes")] = 1
    world_size: Annotated[int, Help("number of ranks; 0: nodes x ranks per node")] = 0
    dedicated_eval_ranks: Annotated[int, Help("number of ranks (the last ones) that only evaluate")] = 0
    train_images: Annotated[int, Help("number of training images; 0: of the dataset")] = 0
    val_images: Annotated[int, Help("number of validation images; 0: of the dataset")] = 0
    num_folds: Annotated[Whole, Help("number of folds of the training images, as in train; requires --data")] = 0
    fold: Annotated[Whole, Help("fold to evaluate on, from 1 to --num-folds")] = 0
    auto_config: Annotated[bool, Help("choose settings for the --data dataset, as in train, and print the flags")] = False
    images_per_second: Annotated[float, Help("images per second per rank at this batch size; 0: measured or published")] = (
        0.0
    )
    network_gbit: Annotated[float, Help("network speed of a node, over all links (Gbit/s); 0: of the system")] = 0.0
    weights: Annotated[str, Help("initial weights to check; published weights are not downloaded")] = ""
    verbose: Annotated[bool, Help("print all values of the recipe, not only those that differ")] = False
    compare_with: Annotated[str, Help("print only the differences from this recipe or run")] = ""
    json: Annotated[bool, Help("print one JSON object instead of text")] = False


@dataclass(frozen=True)
class ShowArgs:
    """What a command line asks to see."""

    asked: ParsedArgs  # the parsed flags
    words: Sequence[str]  # of the command line, with those of a published row's machine
    options: RunOptions  # of the run
    run: Path  # the run, or a file that `export` wrote; empty: a recipe
    facts: RunRecord  # its run.json, or its card
    about_row: Sequence[str]  # of a published row

    @property
    def repeats(self) -> bool:
        """Whether a run is shown."""
        return bool(self.facts.name)

    @property
    def card(self) -> Mapping[str, Any]:
        """Of a file, which has no events to read."""
        return self.facts.as_dict() if self.run.suffix == SUFFIX else {}


def run(printer: Printer, arguments: Sequence[str]) -> int:
    """Print what would run, and return 0."""
    if arguments and arguments[0] in HELP:
        explain("plan RECIPE|RUN", ABOUT, PlanFlags(), arguments)
    shown = _read(printer, arguments)
    args, flags = shown.asked, shown.asked.options
    if flags.compare_with:
        return _print_difference(printer, shown)
    if flags.nodes < 1 or flags.world_size < 0:
        raise RecipeError("--nodes must be 1 or more, and --world-size must be 0 (automatic) or more.")
    check_rates(flags.images_per_second, flags.network_gbit)
    options = _with_fold(shown.options, flags, args.given)
    if flags.auto_config:
        check_auto(args.name, repeats=shown.repeats)
    check_request(args.recipe, flags.data)
    reporter = SILENT if flags.json else printer
    if not shown.repeats:
        first = flags.weights or pretrained_for(args.recipe)
        args = replace(args, recipe=resolve_pixel_stats(args.recipe, first, args.given, reporter))
    for line in shown.about_row:
        printer.note(line)
    if not (flags.world_size or shown.repeats) and (text := args.note_published()):
        printer.note(text)
    recipe, plan, memory, facts, to_train = _planned(replace(shown, asked=args), options, reporter)
    if shown.facts.plan.get("nodes") and not args.given & {"nodes", "world_size", "system", "system.ranks_per_node"}:
        plan = replace(plan, nodes=read_saved_count(shown.facts, "nodes"))
    own = None
    if shown.repeats and not shown.card and not args.given & {"system"}:
        own = measure_run_speed(shown.run, facts, recipe, args.system.device_name)
    speed = choose_speed(recipe, args.name, args.system_name, args.system, plan, rate=flags.images_per_second, run=own)
    lines, estimate = estimate_rows(
        args.name, recipe.task, args.system_name, args.system, plan, memory.parameters, speed, flags.network_gbit
    )
    card = format_card(shown.card)
    if flags.json:
        parts = {"recipe": recipe, "system": args.system, "plan": plan, "memory": memory}
        more = {"estimate": estimate} | ({"card": card} if card else {})
        print(json.dumps({name: asdict(part) for name, part in parts.items()} | more, indent=2))
        return 0
    rows: list[Row] = [(head, [line] if head == "model" else line.split(", ")) for head, line in card.items()]
    named = flags.weights or options.weights
    rows += describe(args.name, recipe, args.system_name, args.system, plan, memory, weights=named)
    rows += _fold(facts)
    measured = run_file(shown.run) if shown.repeats else args.name
    rows += lines or ([] if card else unknown_rows(measured, args.system.precision))
    rows += _time(shown.run) if shown.repeats and not card else []
    for line in [*format_definitions(rows, text_width()), *_values(args.name, recipe, everything=flags.verbose)]:
        printer.say(line)
    if to_train:
        for line in ("", f"to train:  {to_train}"):
            reporter.line(line)
    return 0


def _read(printer: Printer, arguments: Sequence[str]) -> ShowArgs:
    """The command line, and the run.json that it names. Raises PacelineError as `parse_run_args` and `saved_request`."""
    base, defaults, options, path, facts = None, PlanFlags(), RunOptions(), Path(), RunRecord()
    if arguments and _is_run(arguments[0]):
        path = Path(arguments[0])
        base, options, facts, arguments = saved_request(path, arguments[1:], "plan")
        defaults = _of_run(facts, options)
    words, about_row = with_machine_flags(arguments)
    args = parse_run_args(words, defaults, verb="plan", base=base, printer=printer)
    flags = args.options
    if base is not None and flags.data:
        # Their images, within the run's limits, as `train RUN/run.json --data DIR` takes them.
        limits = {"train_images": options.max_train_images, "val_images": options.max_val_images}
        flags = replace(flags, **{name: limit for name, limit in limits.items() if name not in args.given})
    return ShowArgs(replace(args, options=flags), tuple(words), options, path, facts, about_row)


def _is_run(word: str) -> bool:
    return is_folder(word) or word.endswith((".json", SUFFIX, *GRAPHS))


def _planned(
    shown: ShowArgs, options: RunOptions, reporter: Reporter
) -> tuple[Recipe, BatchPlan, MemoryEstimate, RunRecord, str]:
    """-> (the recipe with the target that a run here has, its plan, its memory, the facts of the run with those of the data, of
    --auto-config the command that trains so)."""
    from paceline.models.memory_estimate import estimate_recipe_memory, max_images_per_forward
    from paceline.training.factory import check_weights

    args, flags, facts = shown.asked, shown.asked.options, shown.facts
    recipe, system, classes = args.recipe, args.system, len(shown.facts.classes)
    workload = get_workload(recipe.task)
    task, to_train = None, ""
    if flags.data:
        task, recipe, to_train = _opened(shown, options, reporter)
        facts = replace(facts, data=task.facts)
        data, memory = task.data, task.memory(system)
        images, classes = (data.train_images, data.val_images), len(data.classes)
    else:
        usual = DATA_IMAGES.get(recipe.target_data, (0, 0))
        images = flags.train_images or usual[0], flags.val_images or usual[1]
        if not images[0]:
            raise RecipeError(
                f"the size of the dataset {recipe.target_data} is unknown. Add --data DIR, or "
                "--train-images N --val-images N."
            )
        memory = estimate_recipe_memory(workload, recipe, system, classes)
    plan = make_plan(
        recipe,
        system,
        world=count_training_ranks(count_ranks(flags, args.given, system.ranks_per_node), flags.dedicated_eval_ranks),
        most=max_images_per_forward(memory, system),
        train_images=images[0],
        val_images=images[1],
        eval_ranks=flags.dedicated_eval_ranks,
    )
    if flags.data and not shown.repeats and not flags.auto_config:
        planned = RunOptions(data=flags.data, max_train_images=flags.train_images)
        check_image_count(args.name, recipe, plan, planned, args.given, system.device)
        report_length(args.name, recipe, plan, args.given, system.device == "cpu", reporter)
    if flags.weights not in ("", NONE):
        labels = None if task is None else task.data.labels()
        check_weights(flags.weights, recipe, classes or DATA_CLASSES.get(recipe.target_data, 0), labels, reporter)
    return recipe, plan, memory, facts, to_train


def _print_difference(printer: Printer, shown: ShowArgs) -> int:
    """The values in which the recipe differs from that of --compare-with, which is a recipe or a run."""
    name, one, flags = shown.asked.name, shown.asked.recipe, shown.asked.options
    if _is_run(flags.compare_with):
        (other_name, other, _, _), *_ = saved_request(Path(flags.compare_with), (), "plan")
    else:
        other_name, other = flags.compare_with, choose_recipe(flags.compare_with)
    heads = [str(shown.run) if shown.repeats else name, flags.compare_with if _is_run(flags.compare_with) else other_name]
    if flags.json:
        print(json.dumps({"recipes": heads, "differences": differing_fields(one, other)}, indent=2))
        return 0
    results = differing_cells(one, other)
    for line in (
        format_recipe_table(results, heads, text_width())
        if results
        else [f"{heads[0]} and {heads[1]} have the same values"]
    ):
        printer.say(line)
    return 0


def _values(name: str, recipe: Recipe, *, everything: bool) -> list[str]:
    """The recipe's values: all of them, or those that differ from what it is built on."""
    other_name, other = base_recipe(name, recipe)
    if everything:
        return ["", f"all values; * differs from {other_name}", *format_grid(list_cells(recipe, other), text_width())]
    results = differing_cells(recipe, other)
    if not results:
        return ["", f"same values as {other_name}; --verbose prints them"]
    # A longer table would hide the plan above it.
    if len(results) > 12 and other_name != name:
        return ["", f"{len(results)} values differ from {other_name} (--verbose marks them)"]
    heads = "changed" if other_name == name else name, other_name
    title = f"differs from {other_name} (--verbose prints all values)"
    return ["", title, *format_recipe_table(results, heads, text_width())]


def _of_run(facts: RunRecord, options: RunOptions) -> PlanFlags:
    """The ranks and images of a run; a file that was never trained here has none."""
    if not facts.plan:
        return PlanFlags()
    evaluating = read_saved_count(facts, "eval_ranks") if facts.plan.get("eval_ranks") else 0
    return PlanFlags(
        world_size=facts.world_size + evaluating,
        dedicated_eval_ranks=evaluating,
        train_images=read_saved_count(facts, "train_images"),
        # Made-up batches are not evaluated: what is planned for are the images of the recipe's own data.
        val_images=0 if options.synthetic else read_saved_count(facts, "val_images"),
    )


def _fold(facts: RunRecord) -> list[Row]:
    """The line about the fold, or the half of the validation images, that a run.json names."""
    data = facts.data
    fold, half = format_fold(data.get("fold")), format_half(data.get("half"))
    rows = (
        (fold, "trains on the other folds and evaluates on this one"),
        (half, "only this half of the validation images"),
    )
    return [("evaluated", [f"{words}: {what}"]) for words, what in rows if words]


def _time(run: Path) -> list[Row]:
    """Where the time of a run went."""
    went = format_step_times(read_events(run_folder(run) / "events.jsonl"))
    return [(head, [f"{name} {took}: {shares}"]) for head, (name, (took, shares)) in zip(("time", ""), went.items())]


def _with_fold(options: RunOptions, flags: PlanFlags, explicit: Collection[str]) -> RunOptions:
    """The options of a run, or of none, with the fold that this command names; raises RecipeError for one that cannot be."""
    named = {name: getattr(flags, name) for name in ("num_folds", "fold") if name in explicit}
    if flags.auto_config and not flags.data:
        raise RecipeError("--auto-config: requires a dataset. Add --data DIR.")
    if named and not flags.data:
        raise RecipeError("--num-folds and --fold: require a dataset. Add --data DIR.")
    options = replace(options, **named)
    check_fold(options)
    return options


def _opened(shown: ShowArgs, own: RunOptions, reporter: Reporter) -> tuple[Any, Recipe, str]:
    """The task on --data, opened as training opens it (an unprepared data set is prepared for that), the recipe with the target
    that a run on these data has, and the command that trains what --auto-config chose.

    --train-images and --val-images take so many of its images, as --max-train-images and --max-val-images of `train` do.
    """
    import torch

    from paceline.cli.commands.launch import remove_flags
    from paceline.distributed.comm.launcher import read_launch
    from paceline.distributed.comm.world import open_distributed
    from paceline.training.auto_config import apply_auto, command_without
    from paceline.training.open_data import reopen_task
    from paceline.training.resolve import resolve_targets

    args, flags, system = shown.asked, shown.asked.options, shown.asked.system
    fold = {name: getattr(own, name) for name in FOLD}
    options = RunOptions(data=flags.data, max_train_images=flags.train_images, max_val_images=flags.val_images, **fold)
    to_train = ""
    with open_distributed(read_launch({}), device=torch.device("cpu")) as world:
        task = open_task(args.recipe, options, world, reporter)
    if flags.auto_config:
        ranks = count_training_ranks(count_ranks(flags, args.given, system.ranks_per_node), flags.dedicated_eval_ranks)
        cpu = system.device == "cpu"
        result = apply_auto(task, args.recipe, options, args.given, cpu=cpu, ranks=ranks, reporter=reporter)
        task = reopen_task(task, result.recipe, options)
        first = flags.weights or pretrained_for(args.recipe)
        weights = ("--weights", first) if first else ()
        typed = format_command("train", *remove_flags(shown.words, flags, PlanFlags, ()), "--data", flags.data, *weights)
        to_train = command_without(typed, result.facts)
    return task, resolve_targets(task.recipe, options, args.given, task, reporter, repeats=shown.repeats), to_train


# A published row is planned on its own machine, given as flags. Flag of the user -> flag of that machine which it replaces too:
# --world-size names ranks instead of nodes, and a loss scale belongs to its number format.
GIVES_WAY = {"--world-size": "--nodes", "--system.precision": "--system.loss-scale"}


def with_machine_flags(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """A command's words, with the flags that describe a row's machine behind them, and lines about it.

    A flag among the words takes its own place alone; --system NAME that of the whole machine, which a line says. No
    line and the words as they are where the first is no row or help is asked.
    Raises RecipeError for a row whose machine no System describes.
    """
    from paceline.config.recipes.published_rows import ROWS

    row = ROWS.get(words[0]) if words and MARK in words[0] else None
    names = {word.partition("=")[0].replace("_", "-") for word in words if word.startswith("-")}
    if row is None or names & set(HELP):
        return list(words), []
    if "--system" in names:
        return list(words), [f"{row.name}: planned on your --system instead of its machine, {row.machine}."]
    if row.chip not in LIKE:
        raise RecipeError(
            f"{row.name}: was published on {row.machine}, and paceline has no system with {row.chip}. "
            "Add --system and --nodes (paceline list systems)."
        )
    flags = machine_flags(row)
    yours = sorted(names & (flags.keys() | GIVES_WAY.keys()))
    replaced = {*yours, *(GIVES_WAY[name] for name in yours if name in GIVES_WAY)}
    kept = {name: value for name, value in flags.items() if name not in replaced}
    added = [word for pair in kept.items() for word in pair]
    ours = f" Not published, so chosen by paceline: {row.ours}." if row.ours else ""
    about = f"{row.name}: {row.source}, on {row.machine}.{ours}"
    there = f"planned on that machine, except for your {' and '.join(yours)}" if yours else "planned on that machine"
    return [*words, *added], [about, f"{there}: {' '.join(added)}"]


def machine_flags(row: PublishedRow) -> dict[str, str]:
    """The flags of the machine that a row ran on, and of how it ran there, with their values."""
    system, memory = LIKE[row.chip]
    return {
        "--system": system,
        "--nodes": str(row.nodes),
        "--system.ranks-per-node": str(row.per_node),
        "--system.memory-gib": f"{memory:g}",
        "--system.device-name": row.chip,
        "--system.micro-batch-size": str(row.images),
        "--system.precision": row.precision,
        "--system.loss-scale": f"{row.loss_scale:g}",
    }
