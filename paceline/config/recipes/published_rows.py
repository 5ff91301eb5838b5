"""Published configurations that are no recipes of the menu: a few numbers for a family's constructor, and the machine they ran on.

`paceline list configs` prints them; `paceline plan NAME` plans one on its machine, `paceline train NAME` trains it on this one.
Sources of rows.json:
- ResNet-50 (MLPerf v2.0, v3.0, v4.0; all NVIDIA's MXNet code): as logged by the first run of each result (lars_opt_*,
  model_bn_span, global_batch_size, the first evaluation); of v2.0 and v4.0 from the configuration files. Of submissions with the same
  numbers on as many accelerators one stands there. Gradients were sums over an accelerator's images and no loss was scaled; ours are
  means, so `loss_scale` is that number of images.
- SSD (v0.7, v1.1, the reference, Habana): configuration files (`source` names each), checked against the first run's
  log. The reference's script says 300 warm-up steps; int() of its 2.619685 epochs makes 299. dell-dgx1 stands for eight scripts of
  three sizes, whose nchw and amp are number formats; 1x8x2x1 and 1x8x2x8 try a large run's warm-up on one machine, and end after 10
  epochs of its 26.
- Mask R-CNN (v3.0): as logged by the first run of each result (opt_*, num_image_candidates); the length from configuration files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from paceline.config.constraints import read_rows
from paceline.config.recipe import Recipe
from paceline.config.recipes import maskrcnn, resnet50, ssd

# Accelerator -> the system of ours that it is or is like, and its memory in GiB (its maker's figure).
LIKE: dict[str, tuple[str, float]] = {
    "H100-SXM5-80GB": ("h100x8", 80),
    "H100-PCIE-80GB": ("h100x8", 80),
    "A100-SXM4-80GB": ("a100x8", 80),
    "A100-SXM4-40GB": ("a100x8", 40),
    "A100-PCIE-80GB": ("a100x8", 80),
    "A30": ("a100x8", 24),
    "A40": ("a100x8", 48),
    "RTX-A5000": ("a100x8", 24),
    "L4": ("a100x8", 24),
    "L40": ("a100x8", 48),
    "V100-SXM2-32GB": ("dgx1", 32),
    "V100-SXM2-16GB": ("dgx1-16gb", 16),
    "V100-SXM3-32GB": ("dgx2", 32),
    "Gaudi": ("gaudi8", 32),
    "Gaudi2": ("gaudi2x8", 96),
}
# Constructors, and their word for the images of one accelerator; bn_batch_size times `bn_ranks`.
FAMILIES: dict[str, tuple[Callable[..., Recipe], str]] = {
    "lars": (resnet50.lars, "bn_batch_size"),
    "mlperf": (ssd.mlperf, "bn_batch_size"),
    "mxnet": (ssd.mxnet, "bn_batch_size"),
    "nvidia_pytorch": (ssd.nvidia_pytorch, "bn_batch_size"),
    "gaudi": (ssd.gaudi, "per_card"),
    "gaudi_cosine": (ssd.gaudi_cosine, "per_card"),
    "tpu": (ssd.tpu, ""),
    "nvidia": (maskrcnn.nvidia, "per_gpu"),
    "gluoncv": (maskrcnn.gluoncv, "per_gpu"),
}


@dataclass(frozen=True)
class PublishedRecipe:
    """One published configuration."""

    name: str  # workload@submitter-machine-batch
    family: str  # its constructor's, of FAMILIES
    chip: str  # the accelerator
    nodes: int  # machines
    per_node: int  # accelerators of one
    images: int  # of one forward on one accelerator: its whole share of a step
    numbers: Mapping[str, Any]  # arguments of the constructor
    source: str  # round, submitter and system, and where its numbers stand
    bn_ranks: int = 1  # accelerators that share BatchNorm statistics
    precision: Literal["fp16", "bf16", "fp32"] = "fp16"  # number format of the matrix products
    loss_scale: float = 0.0  # fp16: a fixed loss scale; 0 = dynamic, or none that means something here
    ours: str = ""  # what of it no source says, and what stands there instead

    def make(self) -> Recipe:
        """Its recipe."""
        constructor, word = FAMILIES[self.family]
        own = {word: self.images * self.bn_ranks} if word else {}
        return constructor(self.nodes * self.per_node * self.images, **own, **self.numbers)

    @property
    def machine(self) -> str:
        """In words: 2 nodes of 8 x A100-SXM4-40GB."""
        return f"{f'{self.nodes} nodes of ' if self.nodes > 1 else ''}{self.per_node} x {self.chip}"

    @property
    def about(self) -> str:
        """A line: batch, machine, source."""
        return f"{self.nodes * self.per_node * self.images:,} images per step on {self.machine}; {self.source}"


ROWS: dict[str, PublishedRecipe] = {
    row.name: row for row in read_rows(Path(__file__).with_name("rows.json"), PublishedRecipe)
}
