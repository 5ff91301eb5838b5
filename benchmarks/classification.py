"""Beside ResNet's step: torchvision's and timm's model in the loop that a careful user writes."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.plain_loop import normalized, plain_loop
from paceline.config.system import Precision
from paceline.distributed.device.setup import autocast_for
from paceline.tools.bench.harness import WARM_UP_STEPS, Case, Menu, ReadyCase, Step, list_variants
from paceline.tools.bench.step import to_device, to_memory_format
from paceline.tools.bench.step_resnet import ResNetBench, ResNetInputs

LIBRARIES = ("torchvision", "timm")


def contenders(bench: ResNetBench, precision: Precision, scene: ResNetInputs, device: torch.device) -> Menu:
    """Those that are installed, in every form."""
    found: Menu = {}
    for name in filter(importlib.util.find_spec, LIBRARIES):
        found |= list_variants(name, partial(plain_step, bench, precision, name, scene, device))
    if device.type == "cpu" and "torchvision" in found:
        layout, other = bench.other_layout()
        found[f"torchvision {layout}"] = Case(partial(plain_step, other, precision, "torchvision", scene, device))
    return found


def peer_model(name: str, depth: int) -> nn.Module:
    """torchvision's or timm's ResNet; by name, because a type checker without timm must not mind."""
    library = importlib.import_module(name)
    if name == "timm":
        return library.create_model(f"resnet{depth}", pretrained=False)
    return library.models.get_model(f"resnet{depth}", weights=None)


def plain_step(
    bench: ResNetBench,
    precision: Precision,
    name: str,
    scene: ResNetInputs,
    device: torch.device,
    *,
    compile: bool = False,
    graph: bool = False,
) -> ReadyCase:
    """With autocast; fp16 without a loss scale, which would only cost time."""
    recipe, batch = bench.recipe(), to_memory_format(scene.batch, bench.system)
    model = to_device(peer_model(name, bench.depth), bench.system, device).train()
    autocast = autocast_for(replace(bench.system, precision=precision), device)
    network: Any = torch.compile(model) if compile else model

    def loss() -> Tensor:
        with autocast():
            logits = network(normalized(batch.images))
        return F.cross_entropy(logits.float(), batch.labels, label_smoothing=recipe.model.label_smoothing)

    step = plain_loop(model, loss, recipe.optim)
    return ReadyCase(as_graph(step, device) if graph else step)


def as_graph(step: Step, device: torch.device) -> Step:
    """A whole step as one CUDA graph, replayed on the same inputs; its learning rate is a constant of the graph.

    Ours is replayed by the package itself: `--system.cuda-graph`, paceline/training/cuda_graphs.py.
    """
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(WARM_UP_STEPS):
            step()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def replay(_: Step = step) -> Tensor:  # the graph reads and writes the step's weights: they are not freed before it
        graph.replay()
        return loss

    return replay
