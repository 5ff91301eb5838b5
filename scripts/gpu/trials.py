"""Trials: forms of a step that the package does not have, each with a prediction that was written before its measurement.

A trial changes the model of a benchmark, its number format, or how it is compiled, and is measured in the same process as the
package's own forms. It is not a part of paceline: if it is faster, and its results agree, its change goes into the package.
Predictions are images/s of one NVIDIA H200 at the sizes of results/gpu. They follow from the times of the first two runs there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.config.system import Kernels, Precision
from paceline.models.layers.common import Conv2d
from paceline.tools.bench.harness import Case, Menu
from paceline.tools.bench.step import StepBench, make_step

Bench = TypeVar("Bench", bound=StepBench)


class ProductConv2d(Conv2d):
    """A 1x1 convolution as a matrix product over the pixels, which channels_last memory holds as rows."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(input.permute(0, 2, 3, 1), weight.flatten(1), bias).permute(0, 3, 1, 2)


def use_products(model: nn.Module) -> None:
    """Compute each 1x1 convolution without a stride as a matrix product."""
    for module in model.modules():
        if type(module) is Conv2d and (module.kernel_size, module.stride, module.groups) == ((1, 1), (1, 1), 1):
            module.__class__ = ProductConv2d


def compile_with(model: nn.Module, **settings: Any) -> None:
    """Let the training step compile the model with these settings of torch.compile."""
    model.compile = partial(nn.Module.compile, model, **settings)  # type: ignore[method-assign]


autotune = partial(compile_with, mode="max-autotune-no-cudagraphs")
# One kernel for independent small operations, such as the conversion of 161 weights to bf16.
combine = partial(compile_with, options={"combo_kernels": True})


def autotune_products(model: nn.Module) -> None:
    """Both changes."""
    use_products(model)
    autotune(model)


def compile_network(model: Any) -> None:
    """Compile the network of SSD without its matching and its losses, which can then use Triton kernels."""
    model.network.compile(dynamic=False)


def compile_backbone(model: Any) -> None:
    """Compile the trunk and the pyramid of Mask R-CNN."""
    model.network.backbone.compile(dynamic=False)


def compile_parts(model: Any) -> None:
    """Compile the trunk, the pyramid, and the proposal head of Mask R-CNN."""
    compile_backbone(model)
    model.network.rpn.head.compile(dynamic=False)


@dataclass(frozen=True)
class Trial:
    """A form of a step; graph: replayed as one CUDA graph."""

    name: str  # of the contender
    plain: str  # the package's form whose first loss it must have
    predicted: int  # images/s
    low: int  # the range that would not surprise
    high: int
    change: Callable[[Any], None] | None = None
    precision: Precision = "bf16"
    compile: bool = False
    graph: bool = True
    kernels: Kernels = "torch"
    alone: bool = False  # measured in an item of its own: its compilation times kernels on the GPU

    @property
    def compiled(self) -> bool:
        """Whether torch compiles a part of it."""
        return self.compile or self.change is not None


GRAPH, FUSED, PARTS = "compiled CUDA graph", ", fused heads", "Triton CUDA graph"
TRIALS: dict[str, tuple[Trial, ...]] = {
    "resnet": (
        Trial("paceline fp16", "paceline", 5_100, 4_600, 5_400, precision="fp16", graph=False),
        Trial(f"paceline fp16 {GRAPH}", f"paceline {GRAPH}", 6_790, 6_600, 7_000, precision="fp16", compile=True),
        Trial(f"paceline products {GRAPH}", f"paceline {GRAPH}", 6_800, 6_500, 7_100, use_products, compile=True),
        Trial(f"paceline combined {GRAPH}", f"paceline {GRAPH}", 6_910, 6_800, 7_050, combine, compile=True),
        Trial(f"paceline autotuned {GRAPH}", f"paceline {GRAPH}", 7_000, 6_800, 7_300, autotune, compile=True, alone=True),
        Trial(f"paceline autotuned products {GRAPH}", f"paceline {GRAPH}", 7_150, 6_600, 7_600, autotune_products,
              compile=True, alone=True),
    ),
    "ssd": (
        Trial(f"paceline fp16{FUSED}", f"paceline{FUSED}", 2_850, 2_650, 3_000, precision="fp16", graph=False),
        Trial(f"paceline fp16 {GRAPH}{FUSED}", f"paceline {GRAPH}{FUSED}", 3_680, 3_350, 3_900, precision="fp16",
              compile=True),
        Trial(f"paceline compiled network {PARTS}{FUSED}", f"paceline {PARTS}{FUSED}", 3_800, 3_450, 4_000,
              compile_network, kernels="triton"),
    ),
    "maskrcnn": (
        Trial(f"paceline fp16 {PARTS}", f"paceline {PARTS}", 172, 165, 180, precision="fp16", kernels="triton"),
        Trial(f"paceline compiled backbone {PARTS}", f"paceline {PARTS}", 198, 180, 220, compile_backbone, kernels="triton"),
        Trial(f"paceline compiled parts {PARTS}", f"paceline {PARTS}", 201, 180, 224, compile_parts, kernels="triton"),
    ),
}  # fmt: skip


def changed(bench: Bench, change: Callable[[Any], None] | None) -> Bench:
    """The benchmark with this change to its model."""
    if change is None:
        return bench

    class Changed(type(bench)):
        def trained(self, scene: Any, device: torch.device) -> Any:
            model = super().trained(scene, device)
            change(model)
            return model

    return Changed(**vars(bench))


def contenders(trials: tuple[Trial, ...], bench: StepBench, precision: Precision, scene: Any, device: torch.device) -> Menu:
    """The trials as contenders. A CPU has neither graphs nor the other number formats."""
    found: Menu = {}
    for trial in trials:
        used: Any = changed(bench, trial.change)
        if trial.name.endswith(FUSED):
            used = replace(used, heads="fused")
        graph, number = trial.graph and device.type == "cuda", precision if device.type == "cpu" else trial.precision
        make = partial(make_step, used, number, scene, device, compile=trial.compile, graph=graph, kernels=trial.kernels)
        found[trial.name] = Case(make, compiled=trial.compiled, graph=graph)
    return found
