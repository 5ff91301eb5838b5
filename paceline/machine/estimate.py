"""What a plan will take, on paper: a step, an epoch, the run; and a walltime to ask a scheduler for.

Pure functions of plan and machine. Every number is an estimate: `Estimate.basis` says of what, docs/estimate.md how good it is.
Letters: N nodes   f images per forward   A forwards a step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from paceline.config.plan import Plan
from paceline.config.recipe import Recipe
from paceline.config.system import System
from paceline.machine.exchange import LINK_GBIT, exchange_seconds, exposed_seconds
from paceline.machine.speed import Speed, published_speed

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
    evaluation = plan.val_images / (plan.evaluators * speed.rate)
    return Estimate(
        step_seconds=step,
        compute_seconds=compute,
        exchange_seconds=whole,
        exposed_seconds=exposed,
        links_known=known,
        images_per_second=plan.global_batch / step,
        evaluation_seconds=evaluation,
        minutes=run_minutes(plan, plan.stop_after, step, evaluation),
        basis=speed.basis,
        slow=speed.slow,
        fast=speed.fast,
        checked=speed.checked,
    )


def run_minutes(plan: Plan, steps: float, step_seconds: float, evaluation_seconds: float) -> float:
    """Minutes that so many steps take, with the evaluations that fall among them.

    Training waits for each evaluation; where ranks do nothing else, only for what of it the steps to the next one do not cover.
    """
    due = [point for point in plan.eval_steps if point <= math.ceil(steps)]
    if plan.eval_ranks:
        gaps = [(later - point) * step_seconds for point, later in pairwise(due)]
        waited = sum(max(0.0, evaluation_seconds - gap) for gap in gaps) + (evaluation_seconds if due else 0.0)
    else:
        waited = len(due) * evaluation_seconds
    return (steps * step_seconds + waited) / 60


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
