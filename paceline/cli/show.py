"""`paceline show RECIPE|RUN [--data DIR] [--system NAME] [--world N]`: recipe, system, plan, memory; needs no accelerator."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from paceline.command.choose import MARK, is_folder, published_there, ranks_of
from paceline.command.estimate import check_rates, estimate_of, not_known, speed_for, speed_of_run
from paceline.command.flags import Asked, explain, parse_recipe
from paceline.command.printing import PRINTER, print_error, say
from paceline.config.bounds import Whole
from paceline.config.card import SUFFIX, in_words
from paceline.config.commands import command
from paceline.config.errors import RecipeError
from paceline.config.graph_file import GRAPHS
from paceline.config.plan import make_plan, training_ranks
from paceline.config.recipe import DATA_IMAGES, Recipe
from paceline.config.reporting import SILENT
from paceline.config.run import FOLD, Controls, check_fold, run_file, run_folder
from paceline.config.system import System
from paceline.log.events import read_events
from paceline.log.prose import where_time_goes
from paceline.recipes.rows import LIKE, Row
from paceline.store.fold import fold_in_words
from paceline.tasks.workloads import workload_of
from paceline.training.few_photos import refuse_auto, refuse_few, report_length
from paceline.training.named_run import saved_count, saved_request
from paceline.training.opening import check_request, open_task
from paceline.training.pixels import settle_pixels
from paceline.training.plan_text import describe

ABOUT = """Print what `train` would do: recipe, system, plan (steps, batches, learning rate, evaluations) and an estimate of the
memory. Needs no accelerator: --system names the machine to plan for. RECIPE is a name (paceline list recipes), a published row
(paceline list rows), planned on the machine that it ran on, or ./file.py:function; RUN is a run's folder or run.json (./NAME where
it is called like a recipe), or a file that `paceline export` wrote, whose card is shown too. Every flag of the recipe may follow, as
for train: paceline show RECIPE --help lists them.
--workload ./file.py:name names the file of a RUN whose workload is your own."""


@dataclass(frozen=True)
class ShowFlags:
    """What `show` plans for."""

    data: str = ""  # plan for this data set: its images, classes and shapes; empty = the recipe's own, or the run's
    nodes: int = 1  # machines that take part
    world: int = 0  # ranks; 0 = nodes x ranks of one node
    eval_ranks: int = 0  # of these, the last N only evaluate
    train_images: int = 0  # training images; 0 = those of the data set
    val_images: int = 0  # validation images; 0 = those of the data set
    folds: Whole = 0  # with --data: divide its training images into so many parts, as train does
    fold: Whole = 0  # which of them is evaluated
    auto: bool = False  # with --data: choose by its images, as train does, and print the command that says so by flags
    rate: float = 0.0  # estimate: images per second of one rank at this plan's batch; 0 = measured or published
    link_gbit: float = 0.0  # estimate: Gbit/s of all of a node's links to other nodes together; 0 = the system's
    json: bool = False  # print one JSON object instead of text


def run(arguments: Sequence[str]) -> int:
    """Print what would run, and return 0."""
    base, defaults, controls, classes, run_path, facts = None, ShowFlags(), Controls(), 0, Path(), {}
    if arguments and arguments[0] in ("-h", "--help"):
        explain("show RECIPE|RUN", ABOUT, ShowFlags())
    if arguments and (is_folder(arguments[0]) or arguments[0].endswith((".json", SUFFIX, *GRAPHS))):
        run_path = Path(arguments[0])
        base, controls, facts, arguments = saved_request(run_path, arguments[1:], "show")
        defaults = _of_run(facts, controls)
        classes = len(facts.get("classes", ()))
    card = facts if run_path.suffix == SUFFIX else {}  # of a file, which has no events to read
    arguments, about_row = on_its_machine(arguments)
    asked = parse_recipe(arguments, defaults, verb="show", base=base)
    flags, recipe = asked.controls, asked.recipe
    if base is not None and flags.data:
        # Their images, within the run's limits, as `train RUN/run.json --data DIR` takes them.
        limits = {"train_images": controls.limit_train, "val_images": controls.limit_val}
        flags = replace(flags, **{name: limit for name, limit in limits.items() if name not in asked.given})
    if flags.nodes < 1 or flags.world < 0:
        raise RecipeError("--nodes must be 1 or more, --world 0 (automatic) or more.")
    check_rates(flags.rate, flags.link_gbit)
    controls = _with_fold(controls, flags, asked.given)
    if flags.auto:
        refuse_auto(asked.name, repeats=base is not None)
    check_request(recipe, flags.data)
    if base is None:
        recipe = settle_pixels(recipe, recipe.pretrained, asked.given, SILENT if flags.json else PRINTER)
        asked = replace(asked, recipe=recipe)
    for line in about_row:
        (print_error if flags.json else say)(line)
    system = asked.system
    if not (flags.world or base) and (note := published_there(asked)):
        (print_error if flags.json else say)(note)
    from paceline.tasks.memory import images_that_fit, memory_of

    if flags.data:
        task, recipe = _opened(asked, flags, controls, system, words=arguments, repeats=base is not None)
        facts = {**facts, "data": task.facts}
        memory, images = task.memory(system), (task.train_images, task.val_images)
    else:
        usual = DATA_IMAGES.get(recipe.target_data, (0, 0))
        images = flags.train_images or usual[0], flags.val_images or usual[1]
        if not images[0]:
            raise RecipeError(
                f"how many images has {recipe.target_data}? Name the data set with --data DIR, or say it with "
                "--train-images N --val-images N."
            )
        memory = memory_of(workload_of(recipe.task), recipe, system, classes)
    plan = make_plan(
        recipe,
        system,
        world=training_ranks(ranks_of(flags, asked.given, system.per_node), flags.eval_ranks),
        most=images_that_fit(memory, system),
        train_images=images[0],
        val_images=images[1],
        eval_ranks=flags.eval_ranks,
    )
    if flags.data and base is None and not flags.auto:
        planned = Controls(data=flags.data, limit_train=flags.train_images)
        refuse_few(asked.name, recipe, plan, planned, asked.given, system.accelerator)
        about = SILENT if flags.json else PRINTER
        report_length(asked.name, recipe, plan, asked.given, system.accelerator == "cpu", about)
    own = None
    if base is not None and not card and not asked.given & {"system"}:
        own = speed_of_run(run_path, facts, recipe, system.chip)
    speed = speed_for(recipe, asked.name, asked.system_name, system, plan, rate=flags.rate, run=own)
    lines, estimate = estimate_of(
        asked.name, recipe.task, asked.system_name, system, plan, memory.parameters, speed, flags.link_gbit
    )
    if flags.json:
        parts = {"recipe": recipe, "system": system, "plan": plan, "memory": memory}
        more = {"estimate": estimate} | ({"card": in_words(card)} if card else {})
        print(json.dumps({name: asdict(part) for name, part in parts.items()} | more, indent=2))
        return 0
    said = [f"{head:<9}{line}" for head, line in in_words(card).items()]
    said += describe(asked.name, recipe, asked.system_name, system, plan, memory, weights=controls.weights)
    lines = lines or ([] if card else not_known(asked.name if base is None else run_file(run_path)))
    for line in [*said, *_fold(facts), *lines, *([] if base is None or card else _time(run_path))]:
        say(line)
    return 0


def _of_run(facts: Mapping[str, Any], controls: Controls) -> ShowFlags:
    """The ranks and images of a run; a file that was never trained here has none."""
    if not facts["plan"]:
        return ShowFlags()
    evaluating = saved_count(facts, "eval_ranks") if facts["plan"].get("eval_ranks") else 0
    return ShowFlags(
        world=facts["world"] + evaluating,
        eval_ranks=evaluating,
        train_images=saved_count(facts, "train_images"),
        # Made-up batches are not evaluated: what is planned for are the images of the recipe's own data.
        val_images=0 if controls.synthetic else saved_count(facts, "val_images"),
    )


def _fold(facts: Mapping[str, Any]) -> list[str]:
    """The line about the fold that a run.json names."""
    fold = fold_in_words(facts.get("data", {}).get("fold"))
    return [f"fold     {fold}: the training images of the others are learned, its own evaluated"] if fold else []


def _time(run: Path) -> list[str]:
    """Where the time of a run went."""
    went = where_time_goes(read_events(run_folder(run) / "events.jsonl"))
    return [f"{head:<9}{name} {took}: {shares}" for head, (name, (took, shares)) in zip(("time", ""), went.items())]


def _with_fold(controls: Controls, flags: ShowFlags, given: Collection[str]) -> Controls:
    """The controls of a run, or of none, with the fold that this command names; raises RecipeError for one that cannot be."""
    named = {name: getattr(flags, name) for name in ("folds", "fold") if name in given}
    if flags.auto and not flags.data:
        raise RecipeError("--auto chooses by the images of a data set: name it with --data DIR.")
    if named and not flags.data:
        raise RecipeError("--folds and --fold divide the training images of a data set: name it with --data DIR.")
    controls = replace(controls, **named)
    check_fold(controls)
    return controls


def _opened(
    asked: Asked, flags: ShowFlags, own: Controls, system: System, *, words: Sequence[str], repeats: bool
) -> tuple[Any, Recipe]:
    """The task on --data, opened as training opens it (an unprepared data set is prepared for that), and the recipe with the
    target that a run on these data has.

    --train-images and --val-images take so many of its images, as --limit-train and --limit-val of `train` do.
    """
    import torch

    from paceline.launch.verb import without
    from paceline.ranks.launcher import read_launch
    from paceline.ranks.world import open_world
    from paceline.training.look import command_without, look
    from paceline.training.opening import opened_again, settle_target

    fold = {name: getattr(own, name) for name in FOLD}
    controls = Controls(data=flags.data, limit_train=flags.train_images, limit_val=flags.val_images, **fold)
    reporter = SILENT if flags.json else PRINTER
    with open_world(read_launch({}), device=torch.device("cpu")) as world:
        task = open_task(asked.recipe, controls, world, reporter)
    if flags.auto:
        cpu, ranks = (
            system.accelerator == "cpu",
            training_ranks(ranks_of(flags, asked.given, system.per_node), flags.eval_ranks),
        )
        found = look(task, asked.recipe, controls, asked.given, cpu=cpu, ranks=ranks, reporter=reporter)
        task = opened_again(task, found.recipe, controls)
        typed = command("train", *without(words, flags, ShowFlags, ()), "--data", flags.data)
        reporter.line(f"to train so:  {command_without(typed, found.facts)}")
    return task, settle_target(task.recipe, controls, asked.given, task, reporter, repeats=repeats)


# A published row is planned on its own machine, given as flags. Flag of the user -> flag of that machine which it replaces too:
# --world names ranks instead of nodes, and a loss scale belongs to its number format.
GIVES_WAY = {"--world": "--nodes", "--system.precision": "--system.loss-scale"}


def on_its_machine(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """A command's words, with the flags that describe a row's machine behind them, and lines about it.

    A flag among the words takes its own place alone; --system NAME that of the whole machine, which a line says. No
    line and the words as they are where the first is no row or help is asked.
    Raises RecipeError for a row whose machine no System describes.
    """
    from paceline.recipes.rows import ROWS

    row = ROWS.get(words[0]) if words and MARK in words[0] else None
    names = {word.partition("=")[0].replace("_", "-") for word in words if word.startswith("-")}
    if row is None or names & {"-h", "--help"}:
        return list(words), []
    if "--system" in names:
        return list(words), [f"{row.name}: planned on your --system; its own machine, {row.machine}, is not taken."]
    if row.chip not in LIKE:
        raise RecipeError(
            f"{row.name} was published on {row.machine}, and no system here describes a {row.chip}. Plan it elsewhere: name "
            "--system and --nodes (paceline list systems)."
        )
    flags = machine_flags(row)
    yours = sorted(names & (flags.keys() | GIVES_WAY.keys()))
    replaced = {*yours, *(GIVES_WAY[name] for name in yours if name in GIVES_WAY)}
    kept = {name: value for name, value in flags.items() if name not in replaced}
    added = [word for pair in kept.items() for word in pair]
    ours = f" Not published, so ours: {row.ours}." if row.ours else ""
    about = f"{row.name}: {row.source}, on {row.machine}.{ours}"
    there = f"planned there but for your {' and '.join(yours)}" if yours else "planned there"
    return [*words, *added], [about, f"{there}: {' '.join(added)}"]


def machine_flags(row: Row) -> dict[str, str]:
    """The flags of the machine that a row ran on, and of how it ran there, with their values."""
    system, memory = LIKE[row.chip]
    return {
        "--system": system,
        "--nodes": str(row.nodes),
        "--system.per-node": str(row.per_node),
        "--system.memory-gib": f"{memory:g}",
        "--system.chip": row.chip,
        "--system.images-per-forward": str(row.images),
        "--system.precision": row.precision,
        "--system.loss-scale": f"{row.loss_scale:g}",
    }
