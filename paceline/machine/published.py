"""What was published on which machine: recipe, number of nodes, images a forward, number format.

A Pairing is one configuration file of a submission. Its results stand in published_results.py, the rule for other numbers of nodes in
published_nodes.py.
Sources are named as SUBMITTER:file, of MLPerf Training v0.7 (SSD) and v3.0 (ResNet-50, Mask R-CNN), Habana's Model-References 1.5.0
and GluonCV's benchmark of Mask R-CNN.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

from paceline.config.system import Binding, Precision, System

Workload = Literal["classification", "ssd", "maskrcnn"]


@dataclass(frozen=True)
class Pairing:
    """One recipe on one number of nodes of one system, as published."""

    workload: Workload  # what is learned
    system: str  # name in SYSTEMS
    nodes: int  # machines
    accelerators: int  # that train; those that only evaluate come on top
    recipe: str  # name in RECIPES
    images_per_forward: int  # images of one forward on one accelerator: its whole share of a step
    global_batch: int  # images of one step
    precision: Precision  # number format of the matrix products
    source: str  # configuration file
    loss_scale: float = 0.0  # fp16: a fixed loss scale; 0 = dynamic
    bn_ranks: int = 1  # accelerators that share BatchNorm statistics
    bind: Binding | Literal[""] = ""  # how ranks were bound to cores; empty = unsaid
    evaluation_ranks: int = 0  # accelerators that only evaluated
    env: tuple[str, ...] = ()  # variables of this size alone that still mean something, NAME=VALUE
    slurm_network: str = ""  # sbatch --network

    @property
    def loss_group(self) -> int:
        """Images whose losses are normalised together: Mask R-CNN's are those of an accelerator; 0 = no matter."""
        return self.images_per_forward if self.workload == "maskrcnn" else 0


def _resnet50(system: str, nodes: int, images: int, recipe: str, source: str, **more) -> Pairing:
    """fp16 without a loss scale: gradients were sums over an accelerator's images. Ours are means, so that number is the scale."""
    return Pairing(
        "classification", system, nodes, 8 * nodes, recipe, images, 8 * nodes * images, "fp16", source,
        loss_scale=images, bind="exclusive", **more,
    )  # fmt: skip


def _ssd(system: str, nodes: int, per_node: int, images: int, recipe: str, source: str, **more) -> Pairing:
    """fp16 under a static loss scale of 128; bind.sh binds to a NUMA node unless told otherwise."""
    ranks = nodes * per_node
    usual = {"loss_scale": 128.0, "bind": "node"} | more
    return Pairing("ssd", system, nodes, ranks, recipe, images, ranks * images, "fp16", source, **usual)


SHARP = {"slurm_network": "sharp"}
# NCCL_ALGO=COLLNETCHAIN is left out: today's NCCL refuses broadcasts under it.
COLLNET = ("NCCL_COLLNET_ENABLE=1", "SHARP_COLL_ENABLE_PCI_RELAXED_ORDERING=0")

PAIRINGS: tuple[Pairing, ...] = (
    _resnet50("dgx-h100", 1, 400, "resnet50-mlperf-3200", "NVIDIA:config_DGXH100.sh"),
    _resnet50("dgx-h100", 4, 100, "resnet50-mlperf-3200-4x8", "NVIDIA:config_DGXH100_multi_4x8x100.sh"),
    _resnet50("dgx-h100", 8, 50, "resnet50-mlperf-3200-8x8", "NVIDIA:config_DGXH100_multi_8x8x50.sh"),
    _resnet50("dgx-h100", 64, 40, "resnet50-mlperf-20480", "NVIDIA:config_DGXH100_multi_64x8x40.sh", **SHARP),
    _resnet50("dgx-h100", 96, 42, "resnet50-mlperf-32256", "NVIDIA:config_DGXH100_multi_96x8x42.sh", **SHARP),
    _resnet50(
        "dgx-h100", 448, 16, "resnet50-mlperf-57344", "NVIDIA:config_DGXH100_multi_448x8x16.sh",
        bn_ranks=2, env=COLLNET, **SHARP,
    ),
    _resnet50("dgx-a100", 1, 408, "resnet50-a100-3264", "ASUSTeK:config_DGXA100*.sh"),
    _resnet50("dgx-a100", 8, 51, "resnet50-a100-3264-8x8", "ASUSTeK:config_DGXA100*.sh"),
    Pairing(
        "classification", "gaudi2x8", 1, 8, "resnet50-gaudi2-2048", 256, 2048, "bf16", "Habana:HLS-Gaudi2-PT/batch_256.cfg"
    ),
    _ssd("c4140", 1, 4, 128, "ssd-mlperf-512", "DellEMC:config_C4140.sh", bind="off"),
    _ssd("c4140", 2, 4, 128, "ssd-mlperf-1024", "DellEMC:config_2xC4140.sh", bind="off"),
    _ssd("c4140", 4, 4, 56, "ssd-mlperf-896", "DellEMC:config_4xC4140.sh", bind="off"),
    _ssd("dss8440", 1, 8, 128, "ssd-mlperf-1024-dss8440", "DellEMC:config_DSS8440.sh", bind="off"),
    # The file does not say which DGX-1.
    _ssd("dgx1", 1, 8, 56, "ssd-mlperf-448", "DellEMC:config_DGX1_01x08x56.sh"),
    _ssd("dgx1-16gb", 1, 8, 56, "ssd-mlperf-448", "DellEMC:config_DGX1_01x08x56.sh"),
    _ssd("dgx2", 1, 16, 56, "ssd-mlperf-896", "DellEMC:config_DGX2_01x16x56.sh"),
    _ssd("dgx2", 64, 16, 2, "ssd-mlperf-2048", "NVIDIA:config_DGX2_multi_64x16x02x08.sh", bn_ranks=8),
    _ssd("dgx-a100", 1, 8, 114, "ssd-mlperf-912", "DellEMC:config_DGXA100_1x8x114.sh"),
    _ssd("dgx-a100", 8, 8, 24, "ssd-mlperf-1536", "NVIDIA:config_DGXA100_multi_8x8x24.sh"),
    _ssd("dgx-a100", 64, 8, 4, "ssd-mlperf-2048", "NVIDIA:config_DGXA100_multi_64x8x4x4.sh", bn_ranks=4),
    _ssd("dgx-a100", 128, 8, 2, "ssd-mlperf-2048", "NVIDIA:config_DGXA100_multi_128x8x2x8.sh", bn_ranks=8),
    Pairing("ssd", "gaudi8", 1, 1, "ssd-gaudi", 128, 128, "bf16", "Habana:SSD_ResNet34/README.md"),
    Pairing(
        "ssd", "gaudi8", 1, 8, "ssd-gaudi-1024", 128, 1024, "bf16", "Habana:SSD_ResNet34/README.md", bind="exclusive"
    ),
    Pairing(
        "maskrcnn", "p3dn", 1, 8, "maskrcnn-gluoncv", 2, 16, "fp16", "GluonCV:mask_rcnn/benchmark/README.md",
        bind="exclusive",
    ),
    Pairing(
        "maskrcnn", "p3dn", 24, 192, "maskrcnn-gluoncv-192", 1, 192, "fp16", "GluonCV:mask_rcnn/benchmark/README.md",
        bind="exclusive",
    ),
    Pairing("maskrcnn", "dgx-h100", 1, 8, "maskrcnn-nvidia-96", 12, 96, "fp16", "NVIDIA:config_DGXH100*.sh"),
    Pairing("maskrcnn", "dgx-h100", 8, 64, "maskrcnn-nvidia-256", 4, 256, "fp16", "NVIDIA:config_DGXH100*.sh"),
    Pairing(
        "maskrcnn", "dgx-h100", 48, 256, "maskrcnn-nvidia-256-48nodes", 1, 256, "fp16",
        "NVIDIA:config_DGXH100*.sh", evaluation_ranks=128,
    ),
)  # fmt: skip


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
