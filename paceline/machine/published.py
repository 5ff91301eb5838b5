"""What was published on which machine: recipe, number of nodes, images a forward, number format.

A Pairing is one configuration file of a submission. Its results stand in published_results.py, the rule for other numbers of nodes in
published_nodes.py.
Sources are named as SUBMITTER:file, of MLPerf Training v0.7 (SSD) and v3.0 (ResNet-50, Mask R-CNN), Habana's Model-References 1.5.0
and GluonCV's benchmark of Mask R-CNN. The rows are published.json's.

ResNet-50 had fp16 without a loss scale: gradients were sums over an accelerator's images. Ours are means, so that number is the scale.
SSD had a static scale of 128, and bind.sh bound to a NUMA node unless told otherwise; config_DGX1 does not say which DGX-1.
NCCL_ALGO=COLLNETCHAIN of the 448 nodes is left out: today's NCCL refuses broadcasts under it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from paceline.config.bounds import Count, Whole, ZeroOrMore
from paceline.config.system import Binding, Precision, System
from paceline.config.table import read_rows

Workload = Literal["classification", "ssd", "maskrcnn"]


@dataclass(frozen=True)
class Pairing:
    """One recipe on one number of nodes of one system, as published."""

    workload: Workload  # what is learned
    system: str  # name in SYSTEMS
    nodes: Count  # machines
    accelerators: Count  # that train; those that only evaluate come on top
    recipe: str  # name in RECIPES
    images_per_forward: Count  # images of one forward on one accelerator: its whole share of a step
    global_batch: Count  # images of one step
    precision: Precision  # number format of the matrix products
    source: str  # configuration file
    loss_scale: ZeroOrMore = 0.0  # fp16: a fixed loss scale; 0 = dynamic
    bn_ranks: Count = 1  # accelerators that share BatchNorm statistics
    bind: Binding | Literal[""] = ""  # how ranks were bound to cores; empty = unsaid
    evaluation_ranks: Whole = 0  # accelerators that only evaluated
    env: tuple[str, ...] = ()  # variables of this size alone that still mean something, NAME=VALUE
    slurm_network: str = ""  # sbatch --network

    @property
    def loss_group(self) -> int:
        """Images whose losses are normalised together: Mask R-CNN's are those of an accelerator; 0 = no matter."""
        return self.images_per_forward if self.workload == "maskrcnn" else 0


PAIRINGS = read_rows(Path(__file__).with_suffix(".json"), Pairing)


def pairings_of(system_name: str, workload: str = "", recipe_name: str = "") -> list[Pairing]:
    """The published pairings of a system, by number of nodes; of one workload or recipe where named."""
    found = [
        pairing
        for pairing in PAIRINGS
        if pairing.system == system_name and workload in ("", pairing.workload) and recipe_name in ("", pairing.recipe)
    ]
    return sorted(found, key=lambda pairing: (pairing.nodes, pairing.accelerators))


def system_for(recipe_name: str, system_name: str, system: System, changed: Collection[str] = ()) -> System:
    """`system` as the recipe called `recipe_name` was published on it; unchanged where nothing was.

    changed  dotted names of what is set by hand: a changed `model` or `input` needs another memory, so images a forward stay
             automatic; a changed number format has no published loss scale
    Of several sizes that share a recipe the largest forward counts: with more ranks the Plan takes less by itself. Variables that
    were published for one number of nodes are not among it (published_for has them): here nobody knows the nodes yet.
    """
    found = pairings_of(system_name, recipe_name=recipe_name)
    if not found:
        return system
    widest = max(found, key=lambda pairing: pairing.images_per_forward)
    other_network = any(name.split(".")[0] in ("model", "input") for name in changed)
    return replace(
        system,
        images_per_forward=0 if other_network else widest.images_per_forward,
        precision=widest.precision,
        loss_scale=0.0 if "system.precision" in changed else widest.loss_scale,
        bind=widest.bind or system.bind,
    )


def published_for(recipe_name: str, system_name: str, nodes: int) -> Pairing | None:
    """The pairing that was published for exactly this; of two on as many nodes the one with more accelerators."""
    found = [pairing for pairing in pairings_of(system_name, recipe_name=recipe_name) if pairing.nodes == nodes]
    return found[-1] if found else None


def as_published(recipe_name: str, system_name: str, system: System) -> str:
    """Which of a system's settings are those that the recipe was published with there, in words; "" where none is."""
    found = pairings_of(system_name, recipe_name=recipe_name)
    if not found:
        return ""
    wanted = system_for(recipe_name, system_name, system)
    parts = [
        (
            f"forwards of up to {system.images_per_forward}",
            system.images_per_forward == wanted.images_per_forward,
        ),
        (system.precision, system.precision == wanted.precision),
        (f"loss scale {system.loss_scale:g}", 0 < system.loss_scale == wanted.loss_scale),
        (f"binding {system.bind}", any(pairing.bind == system.bind for pairing in found)),
    ]
    same = ", ".join(text for text, is_so in parts if is_so)
    nodes = " and ".join(dict.fromkeys(f"{pairing.nodes}" for pairing in found))
    return same and f"{same}: as published on {nodes} node{'s'[: nodes != '1']}"
