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


# How long gradients travel between nodes: an alpha-beta model of one all-reduce, and what of it a backward hides.
#
# Letters: N nodes   G bytes of gradients   B bytes a second that a node's links to other nodes carry   alpha seconds a hop
# What ranks of one node exchange among themselves is part of a rate that was measured on whole nodes, so it is not counted here.
# Seconds and bytes throughout. Source of the form: Thakur, Rabenseifner and Gropp 2005 (ring for the bytes, tree for the hops).
# Where the two constants come from: results/estimate.


# Seconds of one hop of the tree, software included. Rows of 8 and 64 devices cannot tell it from a step's fixed cost; an order
# of magnitude of today's fabrics, which results/estimate varies: at 448 nodes it is 0.2 ms of a step.
HOP_SECONDS = 10e-6
# What is left of a link's nominal rate: one Omni-Path adapter a node beside two, eight A100 in two nodes (results/estimate).
LINK_SHARE = 0.68
# The backward's part of a step's computing: two products where the forward has one.
BACKWARD_SHARE = 2 / 3
# A node's links to others in Gbit/s, by system: eight NDR400 (the submission's systems/*.json), and the makers' data sheets:
# eight HDR adapters of 200 in a DGX A100, eight EDR of 100 in a DGX-2, four in a DGX-1, one of 100 in a p3dn.
LINK_GBIT = {"dgx-h100": 3200.0, "dgx-a100": 1600.0, "dgx2": 800.0, "dgx1": 400.0, "dgx1-16gb": 400.0, "p3dn": 100.0}


def exchange_seconds(nodes: int, gradient_bytes: float, link_gbit: float) -> float:
    """One all-reduce over `nodes` nodes: 2 (N-1)/N G/B + 2 ceil(log2 N) alpha. One node: 0."""
    if nodes <= 1:
        return 0.0
    bytes_per_second = LINK_SHARE * link_gbit * 1e9 / 8
    hops = 2 * math.ceil(math.log2(nodes))
    return 2 * (nodes - 1) / nodes * gradient_bytes / bytes_per_second + hops * HOP_SECONDS


def exposed_seconds(
    nodes: int, gradient_bytes: float, link_gbit: float, *, compute_seconds: float, bucket_bytes: float
) -> float:
    """What of the exchange a step waits for, where gradients travel in buckets while the backward goes on.

    compute_seconds  of the forward and backward that the exchange runs beside: of several accumulated ones the last alone
    bucket_bytes     0 = one exchange after the backward, which hides nothing
    The last bucket is complete when the backward ends, so it is never hidden; the others hide behind what comes before it.
    """
    whole = exchange_seconds(nodes, gradient_bytes, link_gbit)
    if not bucket_bytes:
        return whole
    last = min(bucket_bytes, gradient_bytes)
    hidden = BACKWARD_SHARE * compute_seconds * (1 - last / gradient_bytes)
    return max(exchange_seconds(nodes, last, link_gbit), whole - hidden)
