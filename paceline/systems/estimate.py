"""What a plan will take, on paper: a step, an epoch, the run; and a walltime to ask a scheduler for.

Pure functions of plan and machine. Every number is an estimate: `Estimate.basis` says of what, docs/estimate.md how good it is.
Letters: N nodes   f images per forward   A forwards a step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from paceline.config.plan import Plan
from paceline.config.recipe import Recipe
from paceline.config.system import System
from paceline.systems.exchange import LINK_GBIT, exchange_seconds, exposed_seconds
from paceline.systems.speed import Speed, published_speed

# Processes, interpreters, networks compiled, the index read, the step that is thrown away: minutes reserved for every start.
START_MINUTES = 5.0
# Least part of the computed time that is added to it: what jobs are commonly given, and more than most errors seen.
LEAST_MARGIN = 0.25


@dataclass(frozen=True)
class Estimate:
    """Seconds and images per second of a plan; minutes to its ends."""

    step_seconds: float
    compute_seconds: float  # forwards, backwards and update of one step
    exchange_seconds: float  # one all-reduce between the nodes; 0 on one node, or where links are unknown
    exposed_seconds: float  # what of it the step waits for, beyond what the computing speed contains
    links_known: bool  # False: several nodes, and nothing is known of the links between them: times are too short
    images_per_second: float  # of all ranks
    evaluation_seconds: float  # one evaluation, taken to be as fast as training
    minutes: float  # to the end of the recipe's length (or of --steps), evaluations included
    basis: str  # where the computing speed comes from
    slow: float  # known errors of the rate, as shares; both 0 = unknown
    fast: float
    checked: str  # on what they were seen

    def minutes_to(self, steps: float, evaluations: int) -> float:
        """Minutes that so many steps and evaluations take."""
        return (steps * self.step_seconds + evaluations * self.evaluation_seconds) / 60


@dataclass(frozen=True)
class Walltime:
    """What to ask a scheduler for, and why."""

    minutes: int
    reason: str


def estimate(
    plan: Plan, system: System, speed: Speed, *, parameters: int, system_name: str = "", link_gbit: float = 0.0
) -> Estimate:
    """The times of `plan` at a known speed.

    parameters  trainable numbers of the network: what travels between nodes each step
    link_gbit   a node's links to others together, Gbit/s; 0 = the system's, where known
    """
    gbit = link_gbit or LINK_GBIT.get(system_name, 0.0)
    bytes_each = 4 if system.compress == "none" else 2
    gradient = float(parameters * bytes_each)
    compute = plan.forwards * plan.images_per_forward / speed.rate + speed.fixed
    known = plan.nodes <= speed.nodes or gbit > 0
    whole = exposed = 0.0
    if plan.nodes > 1 and gbit > 0:
        # DDP's buckets are counted in gradients as they are kept, before they are compressed.
        bucket = system.bucket_mib * 2**20 * bytes_each / 4
        beside = plan.images_per_forward / speed.rate
        whole = exchange_seconds(plan.nodes, gradient, gbit)
        waited, contained = (
            exposed_seconds(nodes, gradient, gbit, compute_seconds=beside, bucket_bytes=bucket)
            for nodes in (plan.nodes, speed.nodes)
        )
        exposed = max(0.0, waited - contained)
    step = compute + exposed
    evaluation = plan.val_images / (plan.world * speed.rate)
    evaluations = len([due for due in plan.eval_steps if due <= plan.stop_after])
    return Estimate(
        step_seconds=step,
        compute_seconds=compute,
        exchange_seconds=whole,
        exposed_seconds=exposed,
        links_known=known,
        images_per_second=plan.global_batch / step,
        evaluation_seconds=evaluation,
        minutes=(plan.stop_after * step + evaluations * evaluation) / 60,
        basis=speed.basis,
        slow=speed.slow,
        fast=speed.fast,
        checked=speed.checked,
    )


def predicted_minutes(
    recipe: Recipe,
    plan: Plan,
    system: System,
    *,
    parameters: int,
    system_name: str = "",
    speed: Speed | None = None,
    link_gbit: float = 0.0,
) -> Walltime | None:
    """What `--walltime auto` asks for: the whole length of the plan, its target not counted on, a start and a margin.

    speed   measured or given; None = as published for the chip
    return  None where nothing is known of the speed, or of the links between several nodes
    """
    speed = speed or published_speed(recipe, system.chip)
    if speed is None:
        return None
    told = estimate(plan, system, speed, parameters=parameters, system_name=system_name, link_gbit=link_gbit)
    if not told.links_known:
        return None
    # A predicted rate that is too high by a share means a time too short by it.
    margin = max(LEAST_MARGIN, told.fast)
    minutes = math.ceil(told.minutes * (1 + margin) + START_MINUTES)
    return Walltime(
        minutes,
        f"walltime {minutes} min: {plan.stop_after:,} steps of {1e3 * told.step_seconds:.3g} ms and evaluations are about "
        f"{told.minutes:.3g} min (estimate, from {told.basis}), {100 * margin:.0f} % margin, {START_MINUTES:g} min for the start",
    )
