"""What was published on which machine: recipe, number of nodes, images a forward, number format, results; what other nodes get. And
what the MLPerf log of a run says of its submitter.

A Pairing is one configuration file of a submission, a row of published.json; its results are rows of published_results.json.
Sources are named as SUBMITTER:file, of MLPerf Training v0.7 (SSD) and v3.0 (ResNet-50, Mask R-CNN), Habana's Model-References 1.5.0
and GluonCV's benchmark of Mask R-CNN.

ResNet-50 had fp16 without a loss scale: gradients were sums over an accelerator's images. Ours are means, so that number is the scale.
SSD had a static scale of 128, and bind.sh bound to a NUMA node unless told otherwise; config_DGX1 does not say which DGX-1.
NCCL_ALGO=COLLNETCHAIN of the 448 nodes is left out: today's NCCL refuses broadcasts under it.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from paceline._utils.errors import RecipeError
from paceline.config.constraints import AboveZero, Count, Help, Whole, ZeroOrMore, convert_checked, get_hints, read_rows
from paceline.config.plan import split_batch
from paceline.config.recipe import Recipe
from paceline.config.system import Binding, Precision, System

Workload = Literal["classification", "detection", "instance-segmentation"]


@dataclass(frozen=True)
class PublishedConfig:
    """One recipe on one number of nodes of one system, as published."""

    workload: Workload  # what is learned
    system: str  # name in SYSTEMS
    nodes: Count  # machines
    accelerators: Count  # that train; those that only evaluate come on top
    recipe: str  # name in RECIPES
    micro_batch_size: Count  # images of one forward on one accelerator: its whole share of a step
    global_batch_size: Count  # images of one step
    precision: Precision  # number format of the matrix products
    source: str  # configuration file
    loss_scale: ZeroOrMore = 0.0  # fp16: a fixed loss scale; 0 = dynamic
    bn_ranks: Count = 1  # accelerators that share BatchNorm statistics
    bind: Binding | Literal[""] = ""  # how ranks were bound to cores; empty = not published
    evaluation_ranks: Whole = 0  # accelerators that only evaluated
    env: tuple[str, ...] = ()  # variables of this size alone that still mean something, NAME=VALUE
    slurm_network: str = ""  # sbatch --network

    @property
    def loss_normalizer_images(self) -> int:
        """Images whose losses are normalized together: Mask R-CNN's are those of an accelerator; 0 = no matter."""
        return self.micro_batch_size if self.workload == "instance-segmentation" else 0

    @property
    def ranks_per_node(self) -> int:
        """Accelerators of one node, those that only evaluate included."""
        return -(-(self.accelerators + self.evaluation_ranks) // self.nodes)


@dataclass(frozen=True)
class PublishedResult:
    """What a published system measured: epochs and minutes to the target, images per second of one accelerator.

    Others' measurements, computed from their public logs (MLPerf Training v0.7 to v4.0); ours stand in results/.
    Minutes: from run_start to run_stop, the mean without the fastest and the slowest of five runs.
    Rate: of training alone, evaluations left out, over the accelerators that train (of 384 H100, 256).
    """

    workload: Workload  # what was learned
    system: str  # name in SYSTEMS that the machine is, or is like
    nodes: Count  # machines
    accelerators: Count  # that train
    global_batch_size: Count  # images of one step
    epochs: AboveZero  # to the target; the median where runs differ
    minutes: AboveZero  # to the target
    rate: ZeroOrMore  # images per second of one training accelerator; 0 = not logged
    source: str  # round, submitter and system, software
    recipe: str = ""  # ours with the same settings; empty where the row has others, or leaves them out


PAIRINGS = read_rows(Path(__file__).with_suffix(".json"), PublishedConfig)
RESULTS = read_rows(Path(__file__).with_name("published_results.json"), PublishedResult)


def find_published(system_name: str, workload: str = "", recipe_name: str = "") -> list[PublishedConfig]:
    """The published pairings of a system, by number of nodes; of one workload or recipe where named."""
    results = [
        pairing
        for pairing in PAIRINGS
        if pairing.system == system_name and workload in ("", pairing.workload) and recipe_name in ("", pairing.recipe)
    ]
    return sorted(results, key=lambda pairing: (pairing.nodes, pairing.accelerators))


def system_for(recipe_name: str, system_name: str, system: System, changed: Collection[str] = ()) -> System:
    """`system` as the recipe called `recipe_name` was published on it; unchanged where nothing was.

    changed  dotted names of what is set by hand: a changed `model` or `input` needs another memory, so images a forward stay
             automatic; a changed number format has no published loss scale
    Of several sizes that share a recipe the largest forward counts: with more ranks the Plan takes less by itself. Variables that
    were published for one number of nodes are not among it (published_for has them): here nobody knows the nodes yet.
    """
    results = find_published(system_name, recipe_name=recipe_name)
    if not results:
        return system
    widest = max(results, key=lambda pairing: pairing.micro_batch_size)
    other_network = any(name.split(".")[0] in ("model", "input") for name in changed)
    return replace(
        system,
        micro_batch_size=0 if other_network else widest.micro_batch_size,
        precision=widest.precision,
        loss_scale=0.0 if "system.precision" in changed else widest.loss_scale,
        cpu_bind=widest.bind or system.cpu_bind,
    )


def published_for(recipe_name: str, system_name: str, nodes: int) -> PublishedConfig | None:
    """The pairing that was published for exactly this; of two on as many nodes the one with more accelerators."""
    results = [pairing for pairing in find_published(system_name, recipe_name=recipe_name) if pairing.nodes == nodes]
    return results[-1] if results else None


def published_settings(recipe_name: str, system_name: str, system: System) -> str:
    """Which of a system's settings are those that the recipe was published with there, in words; "" where none is."""
    results = find_published(system_name, recipe_name=recipe_name)
    if not results:
        return ""
    wanted = system_for(recipe_name, system_name, system)
    images = system.micro_batch_size
    parts = [
        (f"micro-batches of up to {images}", images == wanted.micro_batch_size),
        (system.precision, system.precision == wanted.precision),
        (f"loss scale {system.loss_scale:g}", 0 < system.loss_scale == wanted.loss_scale),
        (f"CPU binding {system.cpu_bind}", any(pairing.bind == system.cpu_bind for pairing in results)),
    ]
    same = ", ".join(text for text, is_so in parts if is_so)
    nodes = " and ".join(dict.fromkeys(f"{pairing.nodes}" for pairing in results))
    return same and f"{same}: as published on {nodes} node{'s'[: nodes != '1']}"


def published_results(workload: str, system_name: str, recipe_name: str = "") -> list[PublishedResult]:
    """The published results of a workload on a system, by number of nodes; those with a recipe's own settings where named."""
    results = [
        result
        for result in RESULTS
        if (result.workload, result.system) == (workload, system_name) and recipe_name in ("", result.recipe)
    ]
    return sorted(results, key=lambda result: result.nodes)


def recipe_for_nodes(workload: str, system_name: str, nodes: int) -> PublishedConfig | None:
    """The pairing published for `nodes` machines, or the nearest one whose batch can be cut over them.

    Nearest of the two neighbors (the next smaller and the next larger published number of nodes), by ratio; of two equally
    near ones the smaller. Its recipe is to be taken as it is: only the cut of the batch changes.
    return             None where nothing of the workload was published on the system: then any recipe whose batch divides will do
    raise RecipeError  neither neighbor's batch can be cut; the message names both
    """
    if nodes < 1:
        raise RecipeError(f"--nodes {nodes}: must be 1 or more.")
    results = find_published(system_name, workload)
    if not results:
        return None
    # Where one number of nodes has several (one card of a node, and all), the one with more accelerators.
    by_nodes = {pairing.nodes: pairing for pairing in results}
    if nodes in by_nodes:
        return by_nodes[nodes]
    fewer, more = [n for n in by_nodes if n < nodes][-1:], [n for n in by_nodes if n > nodes][:1]
    neighbors = [by_nodes[n] for n in fewer + more]
    for pairing in sorted(neighbors, key=lambda pairing: (abs(math.log(nodes / pairing.nodes)), pairing.nodes)):
        if _can_be_cut(pairing, nodes):
            return pairing
    raise RecipeError(
        f"--nodes {nodes}: no {workload} configuration is published for {nodes} nodes of {system_name}. The batches of the nearest "
        f"ones are not divisible by {nodes * neighbors[0].ranks_per_node} ranks: {' and '.join(map(_format_published, neighbors))}. "
        "Use one of these numbers of nodes, or a recipe with a divisible --global-batch-size."
    )


def check_nodes(recipe_name: str, system_name: str, nodes: int) -> str:
    """Refuse a number of nodes over which a recipe that was published on the system cannot be cut; -> what to say where it can.

    return             "" where the recipe was published on so many nodes, or nothing of it on this system
    raise RecipeError  naming the recipe that can be cut there, or both neighbors where none can; or how many ranks only
                       evaluated, where it was published on so many nodes and can be cut over the others alone
    """
    results = find_published(system_name, recipe_name=recipe_name)
    if not results:
        return ""
    if there := published_for(recipe_name, system_name, nodes):
        if there.evaluation_ranks and not _can_be_cut(there, nodes):
            raise RecipeError(
                f"--nodes {nodes}: {recipe_name} was published with {there.evaluation_ranks} of "
                f"{nodes * there.ranks_per_node} ranks that only evaluate, and its batch is not divisible by all of them. "
                f"Add --dedicated-eval-ranks {there.evaluation_ranks}."
            )
        return ""
    fits = any(_can_be_cut(pairing, nodes) for pairing in results)
    try:
        other = recipe_for_nodes(results[0].workload, system_name, nodes)
    except RecipeError:
        if fits:
            return ""
        raise
    if other is None or other.recipe == recipe_name:
        return f"--nodes {nodes}: {recipe_name} is the nearest configuration published for {system_name}"
    is_there = "the published configuration is" if other.nodes == nodes else "the nearest published configuration is"
    if fits:
        return f"--nodes {nodes}: {is_there} {_format_published(other)}"
    raise RecipeError(
        f"--nodes {nodes}: the batch of {recipe_name} ({results[0].global_batch_size:,} images) is not divisible by "
        f"{nodes * results[-1].ranks_per_node} ranks. {is_there.capitalize()} {_format_published(other)}."
    )


def _can_be_cut(pairing: PublishedConfig, nodes: int) -> bool:
    """Whether a pairing's batch, BatchNorm span and loss groups can be reached on another number of nodes, all of them training."""
    images, ranks = pairing.micro_batch_size, nodes * pairing.ranks_per_node
    try:
        split_batch(pairing.global_batch_size, ranks, images, images * pairing.bn_ranks, pairing.loss_normalizer_images)
    except RecipeError:
        return False
    return True


def _format_published(pairing: PublishedConfig) -> str:
    count = f"{pairing.nodes} node{'s'[: pairing.nodes > 1]}"
    return f"{count} ({pairing.recipe}, {pairing.global_batch_size:,} images per step)"


# What a log of ours says of who submits what: facts of the person, not of the run.
Division = Literal["auto", "closed", "open"]
Status = Literal["onprem", "cloud", "preview", "research"]

# Optimizers that no closed ruleset of our benchmarks knows.
OPEN_ONLY = ("adamw",)
MAX_CHARACTERS = 200


@dataclass(frozen=True)
class Submission:
    """The submission_* lines of mllog.txt, and its cache_clear."""

    submitter: Annotated[str, Help("organization (submission_org)")] = "reference_implementation"
    division: Annotated[Division, Help("closed or open; auto: open if the closed division excludes the optimizer")] = "auto"
    status: Annotated[Status, Help("availability of the system")] = "onprem"
    platform: Annotated[str, Help("name of the system; empty: the number and name of the devices")] = ""
    cache_cleared: Annotated[bool, Help("caches were cleared before the run, as the closed division requires")] = False


def get_division(submission: Submission, recipe: Recipe) -> str:
    """closed or open."""
    if submission.division == "auto":
        return "open" if recipe.optim.name in OPEN_ONLY else "closed"
    return submission.division


def check_submission(submission: Submission, recipe: Recipe) -> None:
    """Refuse what a log cannot say, or would be wrong to say.

    Raises RecipeError naming the flag.
    """
    for name, hint in get_hints(Submission).items():
        convert_checked(hint, getattr(submission, name), f"mlperf.{name}")  # made in Python, it may hold anything
    for flag, text, needed in (
        ("--mlperf.submitter", submission.submitter, True),
        ("--mlperf.platform", submission.platform, False),
    ):
        if (needed and not text.strip()) or not (text.isprintable() and len(text) <= MAX_CHARACTERS):
            raise RecipeError(f"{flag} {text!r:.60}: must be a name of 1 to {MAX_CHARACTERS} printable characters.")
    if submission.division == "closed" and recipe.optim.name in OPEN_ONLY:
        raise RecipeError(
            f"--mlperf.division closed: does not allow --optim.name {recipe.optim.name}. Use open, or remove the flag."
        )
