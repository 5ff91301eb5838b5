"""What a launch refuses before anything waits in a queue: a plan that cannot be, too many ranks, a busy port, no time."""

from __future__ import annotations

import re
import socket
from typing import Any

from paceline.cli.flags import Asked
from paceline.config.errors import RecipeError, UserError
from paceline.config.plan import Plan, make_plan
from paceline.config.recipe import DATA_IMAGES
from paceline.config.system import System
from paceline.launch.walltime import minutes_in
from paceline.workloads import workload_of


def check_plan(asked: Asked, flags: Any) -> tuple[System, Plan | None]:
    """The nodes' system, and the Plan of the whole job; None where the number of images is known to the data alone.

    Raises RecipeError for a batch that does not divide over these ranks, and where this machine would be asked in place of the
    nodes.
    """
    told = "system.per_node" in asked.given
    if flags.through != "local" and asked.asks and not told and asked.system_name != "cpu":
        raise RecipeError(
            f"--system {asked.system_name} asks the machine that this command runs on, and --through {flags.through} "
            "starts on others. Name theirs: paceline list systems; or say how many ranks a node has: --system.per-node 8"
        )
    system = asked.system
    images = DATA_IMAGES.get(asked.recipe.target_data, (0, 0))
    if not images[0]:
        return system, None
    from paceline.tasks.memory import images_that_fit, memory_of

    recipe = asked.recipe
    memory = memory_of(workload_of(recipe.task), recipe, system, 0)
    plan = make_plan(
        recipe,
        system,
        world=flags.nodes * system.per_node,
        most=images_that_fit(memory, system),
        train_images=flags.limit_train or images[0],
        val_images=flags.limit_val or images[1],
    )
    return system, plan


def check_devices(system_name: str, system: System, flags: Any) -> None:
    """Refuse more ranks a node than it has devices, where that can be known from here.

    Raises UserError with both numbers.
    """
    if system.accelerator == "cpu":
        return
    if flags.through == "local" and flags.container == "none":
        have = _devices_here(system.accelerator)
        if system.per_node > have:
            raise UserError(
                f"--system {system_name} starts {system.per_node} ranks on a node, and this machine has {have} "
                f"{system.accelerator} device{'s'[: have != 1]}. Start fewer (--system.per-node), or on other machines: "
                "--through slurm or hostfile."
            )
    asked = re.fullmatch(r"(?:.*,)?gpu:(?:[^:,]+:)?(\d+)(?:,.*)?", flags.slurm.gres)
    if flags.through == "slurm" and asked and system.per_node > int(asked[1]):
        raise UserError(
            f"--slurm.gres {flags.slurm.gres} asks for {asked[1]} devices a node, and --system {system_name} starts "
            f"{system.per_node} ranks there."
        )


def _devices_here(accelerator: str) -> int:
    import torch

    if accelerator == "cuda":
        return torch.cuda.device_count()
    present = torch.accelerator.current_accelerator()
    return torch.accelerator.device_count() if present is not None and present.type == accelerator else 0


def check_port(flags: Any) -> None:
    """Raises UserError where rank 0 runs here and --port is taken."""
    if flags.through != "local" or not flags.port:
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", flags.port))
        except OSError as problem:
            raise UserError(
                f"--port {flags.port}: cannot be listened at here ({problem.strerror}). Choose another one, or leave --port "
                "away: a free one is found."
            ) from None


def walltime_of(asked: Asked, system: System, plan: Plan | None, flags: Any) -> int:
    """Minutes to ask for; 0 for none. A prediction is said with its reason.

    Raises UserError where --walltime auto has nothing to go by.
    """
    if flags.walltime != "auto":
        return minutes_in(flags.walltime)
    raise UserError(
        f"--walltime auto: no rate is known of {asked.name} on --system {asked.system_name}. Say one: --walltime 2h"
    )
