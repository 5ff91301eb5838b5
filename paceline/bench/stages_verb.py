"""`paceline bench input RECIPE --data DIR`: a recipe's input, stage by stage; with --emulate, whether it feeds an accelerator."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.command.flags import parse_recipe
from paceline.command.printing import answer, say
from paceline.config.errors import RecipeError
from paceline.config.own_file import check_output
from paceline.config.reporting import Lines
from paceline.config.run import Controls
from paceline.training.opening import check_request, open_task

# Columns of a table that nobody's terminal limits.
PIPED = 160


@dataclass(frozen=True)
class StageFlags:
    """What to measure."""

    data: str = ""  # data set, as for train; empty = the built-in shapes
    emulate: str = ""  # feed a sleeping accelerator: a100:8 (of any recipe), h100 (a classifier's), ..., or images a second, as 2500
    seconds: float = 2.0  # of each measurement
    json: Path | None = None  # also write what was found here


def run_stages(arguments: Sequence[str]) -> int:
    """Measure, print a table and a line of advice."""
    asked = parse_recipe(
        arguments,
        StageFlags(),
        verb="bench input",
        description="What each stage of this recipe's input costs, alone and together, its bare limits, and what to change.",
    )
    flags = asked.controls
    check_output(flags.json or "", "--json")
    if not 0 < flags.seconds <= 600:
        raise RecipeError(f"--seconds {flags.seconds:g}: must be above 0, and 600 at most.")
    from paceline.bench.accelerators import demand

    wanted = demand(flags.emulate, asked.recipe.task) if flags.emulate else None
    check_request(asked.recipe, flags.data)

    from rich.console import Console

    from paceline.bench.harness import machine_facts
    from paceline.bench.input_advice import advice, emulated, gap, table
    from paceline.bench.input_stages import bench_task_recipe, measure_stages
    from paceline.machine.machine import choose_device, set_threads
    from paceline.ranks.launcher import read_launch
    from paceline.ranks.world import open_world
    from paceline.training.local_copies import photos_in_memory

    recipe, device = bench_task_recipe(asked.recipe), choose_device(asked.system, 0)
    with open_world(read_launch({}), device=device) as world:
        task = open_task(recipe, Controls(data=flags.data), world, Lines(say))
        threads = set_threads(asked.system, world, say)["loader"]
        say(
            f"{task.train_images:,} photos, {recipe.input.decoder}, {threads} loader threads, {flags.seconds:g} s a measurement"
        )
        bare = task.train_index.records
        with photos_in_memory(task, asked.system, world, Lines(say)):
            found = measure_stages(
                task, asked.system, bare=bare, threads=threads, device=device, seconds=flags.seconds, wanted=wanted
            )
    report = {
        "recipe": asked.name,
        **found,
        "advice": advice(found),
        "machine": machine_facts(device),
    }
    answer(report, out=str(flags.json or ""), printed=False, flag="--json")
    # What is piped has no width; a table that is cut there is of no use.
    Console(width=None if sys.stdout.isatty() else PIPED).print(table(report))
    for line in filter(None, (gap(report), emulated(report), report["advice"])):
        say(line)
    return 0
