"""A published configuration that is no recipe of the menu: a few numbers for its family's constructor, and the machine it ran on.

`paceline list rows` prints them; `paceline show NAME` plans one on its machine, `paceline train NAME` trains it on this one.
Names: workload@submitter-machine-batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from paceline.config.recipe import Recipe

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


@dataclass(frozen=True)
class Row:
    """One row of a table of published configurations."""

    name: str  # workload@submitter-machine-batch
    make: Callable[[], Recipe]  # its recipe
    chip: str  # the accelerator
    nodes: int  # machines
    per_node: int  # accelerators of one
    source: str  # round, submitter and system, and where its numbers stand
    precision: Literal["fp16", "bf16", "fp32"] = "fp16"  # number format of the matrix products
    loss_scale: float = 0.0  # fp16: a fixed loss scale; 0 = dynamic, or none that means something here
    ours: str = ""  # what of it no source tells, and what stands there instead

    @property
    def machine(self) -> str:
        """In words: 2 nodes of 8 x A100-SXM4-40GB."""
        return f"{f'{self.nodes} nodes of ' if self.nodes > 1 else ''}{self.per_node} x {self.chip}"

    @property
    def images(self) -> int:
        """Images of one forward on one accelerator: its whole share of a step."""
        return self.make().global_batch // (self.nodes * self.per_node)

    @property
    def about(self) -> str:
        """A line: batch, machine, source."""
        return f"{self.make().global_batch:,} images a step on {self.machine}; {self.source}"
