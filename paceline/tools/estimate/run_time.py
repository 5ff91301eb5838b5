"""What a plan will take, on paper: how fast a rank computes, a step, an epoch, the run; and a walltime to ask a scheduler for.

Pure functions of plan and machine. Every number is an estimate: `Estimate.basis` has its source,
docs/how-to/cluster/estimate-training-time.md how good it is. A step of b images takes b / R + t0 seconds on a rank, and what it waits
for of the exchange between nodes. t0 is what a step costs whatever its size: many small kernels, the optimizer, gaps between
launches. R and t0 of a workload on a chip (published_speeds.json) were fitted to published rows of 8 and 64 devices alone; how wrong
that is at 384 and more is kept beside them. Rows, provenance and fit: results/estimate, scripts/fit_estimate.py. They are other
programs' speeds: paceline's own are in results/.
The exchange is an alpha-beta model of one all-reduce, and of what a backward hides of it. What ranks of one node exchange among
themselves is part of a rate that was measured on whole nodes, so it is not counted. Seconds and bytes throughout. Source of the
form: Thakur, Rabenseifner and Gropp 2005 (ring for the bytes, tree for the hops); of the two constants: results/estimate.
Letters: N nodes   G bytes of gradients   B bytes a second that a node's links to other nodes carry   alpha seconds a hop
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from paceline.config.constraints import read_menu
from paceline.config.plan import BatchPlan
from paceline.config.published import PublishedResult
from paceline.config.recipe import Recipe
from paceline.config.system import System

# Processes, interpreters, networks compiled, the index read, the step that is thrown away: minutes reserved for every start.
START_MINUTES = 5.0
# Least part of the computed time that is added to it: what jobs are commonly given, and more than most errors seen.
MIN_MARGIN = 0.25
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


@dataclass(frozen=True)
class RankSpeed:
    """b images on one rank take b / rate + fixed seconds, the exchange inside its node included."""

    rate: float  # R, images per second
    fixed: float  # t0, seconds
    basis: str  # its source, in words
    slow: float = 0.0  # largest known error of a predicted rate below the published one, as a share: -0.12
    fast: float = 0.0  # the same above it: 0.2; both 0 = not known
    checked: str = ""  # on what the errors were seen, in words
    nodes: int = 1  # of the machine that it was measured on: the exchange between so many is in it already
    others: bool = False  # another program's speed

    def seconds(self, images: float) -> float:
        """Of a forward, a backward and an update over `images` images of one rank."""
        return images / self.rate + self.fixed


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
    minutes: float  # to the end of the recipe's length (or of --max-steps), evaluations included
    basis: str  # where the computing speed comes from
    slow: float  # known errors of the rate, as shares; both 0 = unknown
    fast: float
    checked: str  # on what they were seen


@dataclass(frozen=True)
class Walltime:
    """What to ask a scheduler for, and why."""

    minutes: int
    reason: str


# (workload, how the chip's name begins) -> fit.
PUBLISHED: dict[tuple[str, str], RankSpeed] = {
    (workload, chip): speed
    for name, speed in read_menu(Path(__file__).with_name("published_speeds.json"), RankSpeed).items()
    for workload, chip in [name.split("/")]
}
# What makes these networks' cost: of (part of the recipe, field), the value. Others have a speed of their own.
NETWORKS: dict[str, tuple[tuple[str, str, object], ...]] = {
    "classification": (("model", "backbone", "resnet"), ("model", "depth", 50), ("model", "width", 64), ("input", "image_size", 224)),
    "detection": (("model", "backbone", "resnet"), ("model", "depth", 34), ("model", "width", 64), ("input", "image_size", 300)),
    "instance-segmentation": (
        ("model", "backbone", "resnet"), ("model", "depth", 50), ("model", "width", 64), ("model", "fpn_channels", 256),
        ("model", "masks", True), ("input", "min_size", (800,)), ("input", "max_size", 1333),
    ),
}  # fmt: skip


def published_speed(recipe: Recipe, chip: str) -> RankSpeed | None:
    """The fit for a recipe's workload on a chip; None where too little was published, or for another network or input."""
    if not has_published_network(recipe):
        return None
    result = (speed for (task, name), speed in PUBLISHED.items() if task == recipe.task and chip.startswith(name))
    speed = next(result, None)
    return replace(speed, others=True) if speed else None


def has_published_network(recipe: Recipe) -> bool:
    """Whether a recipe trains the network that rates were published for, on photos of the same size."""
    return recipe.task in NETWORKS and all(
        getattr(getattr(recipe, part), name) == value for part, name, value in NETWORKS[recipe.task]
    )


def published_row_speed(result: PublishedResult, *, exactly: bool = False) -> RankSpeed:
    """A published row alone: its rate, whatever the size of a step.

    exactly  the row is of the very plan: recipe, system, nodes and cut
    """
    what = "published for exactly this configuration" if exactly else "one published configuration"
    return RankSpeed(result.rate, 0.0, f"{what}, {result.source}", nodes=result.nodes, others=True)


def given_speed(rate: float) -> RankSpeed:
    """--images-per-second: images per second of one rank, at this plan's images a step."""
    return RankSpeed(rate, 0.0, f"--images-per-second {rate:g} (per rank)")


def measured_speed(
    images_per_second: float, images: float, published: RankSpeed | None, what: str, nodes: int = 1
) -> RankSpeed:
    """A run's own speed.

    images_per_second  of one rank
    images             of one of its steps
    published          whose share of fixed cost is taken, so that other sizes of step follow; None: the rate is taken as constant
    """
    share = published.fixed / published.seconds(images) if published else 0.0
    seconds = images / images_per_second
    fixed = share * seconds
    return RankSpeed(images / (seconds - fixed), fixed, what, nodes=nodes)


def estimate(
    plan: BatchPlan, system: System, speed: RankSpeed, *, parameters: int, system_name: str = "", link_gbit: float = 0.0
) -> Estimate:
    """The times of `plan` at a known speed.

    parameters  trainable numbers of the network: what travels between nodes each step
    link_gbit   a node's links to others together, Gbit/s; 0 = the system's, where known
    """
    gbit = link_gbit or LINK_GBIT.get(system_name, 0.0)
    bytes_each = 4 if system.grad_compression == "none" else 2
    gradient = float(parameters * bytes_each)
    compute = plan.micro_batches * plan.micro_batch_size / speed.rate + speed.fixed
    known = plan.nodes <= speed.nodes or gbit > 0
    whole = exposed = 0.0
    if plan.nodes > 1 and gbit > 0:
        # DDP's buckets are counted in gradients as they are kept, before they are compressed.
        bucket = system.ddp_bucket_mib * 2**20 * bytes_each / 4
        beside = plan.micro_batch_size / speed.rate
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
        images_per_second=plan.global_batch_size / step,
        evaluation_seconds=evaluation,
        minutes=run_minutes(plan, plan.stop_after, step, evaluation),
        basis=speed.basis,
        slow=speed.slow,
        fast=speed.fast,
        checked=speed.checked,
    )


def run_minutes(plan: BatchPlan, steps: float, step_seconds: float, evaluation_seconds: float) -> float:
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
    plan: BatchPlan,
    system: System,
    *,
    parameters: int,
    system_name: str = "",
    speed: RankSpeed | None = None,
    link_gbit: float = 0.0,
) -> Walltime | None:
    """What `--walltime auto` asks for: the whole length of the plan, its target not counted on, a start and a margin.

    speed   measured or given; None = as published for the chip
    return  None where nothing is known of the speed, or of the links between several nodes
    """
    speed = speed or published_speed(recipe, system.device_name)
    if speed is None:
        return None
    expected = estimate(plan, system, speed, parameters=parameters, system_name=system_name, link_gbit=link_gbit)
    if not expected.links_known:
        return None
    # A predicted rate that is too high by a share means a time too short by it.
    margin = max(MIN_MARGIN, expected.fast)
    minutes = math.ceil(expected.minutes * (1 + margin) + START_MINUTES)
    return Walltime(
        minutes,
        f"walltime {minutes} min: {plan.stop_after:,} steps of {1e3 * expected.step_seconds:.3g} ms and the evaluations need about "
        f"{expected.minutes:.3g} min (estimate: {expected.basis}), plus a margin of {100 * margin:.0f}% and {START_MINUTES:g} min "
        "for the start",
    )


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
