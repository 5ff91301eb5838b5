"""What a launch refuses before anything waits in a queue: a plan that cannot be, too many ranks, a busy port, no time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline._utils.errors import PacelineError, RecipeError
from paceline.cli.flags import ParsedArgs
from paceline.cli.printing import Printer
from paceline.config.plan import BatchPlan, count_training_ranks, limit_steps, make_plan
from paceline.config.published import recipe_for_nodes
from paceline.config.recipe import DATA_IMAGES
from paceline.config.run import read_run
from paceline.config.system import System
from paceline.distributed.device.accelerators import count_devices
from paceline.launch.config import parse_walltime
from paceline.launch.host_probe import explain_taken_port
from paceline.models.registry import get_workload
from paceline.tools.estimate.run_time import predicted_minutes
from paceline.tools.estimate.summary import choose_speed, measure_run_speed


@dataclass(frozen=True)
class PlannedJob:
    """What the whole job is, as far as it is known before it starts."""

    system: System  # of the nodes
    plan: BatchPlan | None  # None where the number of images is known to the data alone
    parameters: int = 0  # trainable numbers of the network


def check_plan(printer: Printer, args: ParsedArgs, flags: Any, *, repeats: bool = False) -> PlannedJob:
    """The nodes' system, and the Plan of the whole job. What was published on so many nodes is said, as `plan` says it.

    repeats  a run.json is launched again: its recipe may be another by now than the published one of its name

    Raises RecipeError for a batch that does not divide over these ranks, and where this machine would be asked in place of the
    nodes.
    """
    told = "system.ranks_per_node" in args.given
    if flags.scheduler != "local" and args.asks and not told and args.system_name != "cpu":
        raise RecipeError(
            f"--system {args.system_name}: describes this machine, but --scheduler {flags.scheduler} starts ranks on others. "
            "Use the name of their system (paceline list systems), or set the ranks per node: --system.ranks-per-node 8"
        )
    system = args.system
    if not repeats and (note := args.note_published()):
        printer.say(note)
    world = count_training_ranks(flags.nodes * system.ranks_per_node, flags.dedicated_eval_ranks)
    images = DATA_IMAGES.get(args.recipe.target_data, (0, 0))
    if not images[0]:
        return PlannedJob(system, None)
    from paceline.models.memory_estimate import estimate_recipe_memory, max_images_per_forward

    recipe = args.recipe
    memory = estimate_recipe_memory(get_workload(recipe.task), recipe, system, 0)
    try:
        plan = make_plan(
            recipe,
            system,
            world=world,
            most=max_images_per_forward(memory, system),
            train_images=flags.max_train_images or images[0],
            val_images=flags.max_val_images or images[1],
            eval_ranks=flags.dedicated_eval_ranks,
        )
    except RecipeError as problem:
        published = recipe_for_nodes(recipe.task, args.system_name, flags.nodes)  # or its own refusal, with two neighbors
        if published is None or published.recipe == args.name:
            raise
        raise RecipeError(
            f"{problem}\nOn {flags.nodes} nodes of {args.system_name}, use the published configuration {published.recipe}."
        ) from None
    return PlannedJob(system, limit_steps(plan, steps=flags.max_steps, eval_every=flags.eval_every), int(memory.parameters))


def check_devices(system_name: str, system: System, flags: Any) -> None:
    """Refuse more ranks a node than it has devices, where that can be known from here.

    Raises PacelineError with both numbers.
    """
    if system.device == "cpu":
        return
    if flags.scheduler == "local" and flags.container_runtime == "none":
        have = count_devices(system.device)
        if system.ranks_per_node > have:
            raise PacelineError(
                f"--system {system_name}: starts {system.ranks_per_node} ranks per node, but this machine has {have} "
                f"{system.device} device{'s'[: have != 1]}. Reduce --system.ranks-per-node, or use other machines with "
                "--scheduler slurm or hostfile."
            )
    requested = re.fullmatch(r"(?:.*,)?gpu:(?:[^:,]+:)?(\d+)(?:,.*)?", flags.slurm.gres)
    if flags.scheduler == "slurm" and requested and system.ranks_per_node > int(requested[1]):
        raise PacelineError(
            f"--slurm.gres {flags.slurm.gres}: requests {requested[1]} devices per node, but --system {system_name} starts "
            f"{system.ranks_per_node} ranks per node."
        )


def check_port(flags: Any) -> None:
    """Raises PacelineError where rank 0 runs here and --master-port is taken."""
    if flags.scheduler != "local" or not flags.master_port:
        return
    if why := explain_taken_port(flags.master_port):
        raise PacelineError(
            f"--master-port {flags.master_port}: not available on this machine ({why}). Choose another port, or remove "
            f"--master-port to use a free port."
        )


def choose_walltime(printer: Printer, args: ParsedArgs, planned: PlannedJob, flags: Any) -> int:
    """Minutes to ask for; 0 for none. A prediction is said with its reason: from --images-per-second, the run's own speed, published
    ones.

    Raises PacelineError where --walltime auto has nothing to go by.
    """
    if flags.walltime != "auto":
        return parse_walltime(flags.walltime)
    told = None
    if planned.plan is not None:
        system, plan, run = planned.system, planned.plan, Path(flags.output_dir or "no run").expanduser() / "run.json"
        own = measure_run_speed(run, read_run(run), args.recipe, system.device_name) if run.is_file() else None
        speed = choose_speed(args.recipe, args.name, args.system_name, system, plan, rate=flags.images_per_second, run=own)
        told = predicted_minutes(
            args.recipe,
            plan,
            system,
            parameters=planned.parameters,
            system_name=args.system_name,
            speed=speed,
            link_gbit=flags.network_gbit,
        )
    if told is None:
        raise PacelineError(
            f"--walltime auto: the speed of {args.name} on {flags.nodes} node{'s'[: flags.nodes > 1]} of {args.system_name} "
            "is unknown. Set --images-per-second IMG/S (per rank), with --network-gbit N for multiple nodes, or --walltime 2h"
        )
    printer.say(told.reason)
    return told.minutes
