"""Beside SSD's step: torchvision's ResNet trunk with the MLPerf reference's heads, loss and matching in plain PyTorch.

As the reference is written (NCHW, separate heads, matching image by image), and in channels_last; it starts from our weights, so
its first losses are ours up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from benchmarks.ssd_operations import operations
from benchmarks.ssd_plain import PlainSSD, plain_step, torchvision_parts
from paceline.config.ssd import grid_sizes
from paceline.config.system import Precision
from paceline.distributed.device.setup import autocast_for
from paceline.models.ops.anchors import count_boxes_per_cell, default_boxes
from paceline.models.weights.formats.mlperf import to_reference
from paceline.tools.bench.harness import OURS, Case, Menu, Operation, ReadyCase
from paceline.tools.bench.step_ssd import SSDBench, SSDInputs

__all__ = ["contenders", "operations", "prediction"]


def contenders(bench: SSDBench, precision: Precision, scene: SSDInputs, device: torch.device) -> Menu:
    """The plain formulation in three forms."""
    step, last = partial(peer_step, bench, precision, scene, device), torch.channels_last
    return {
        "plain eager": Case(step, profiled=True),
        "plain eager channels_last": Case(partial(step, last)),
        "plain compiled": Case(partial(step, last, compile=True), compiled=True),
    }


def prediction(
    bench: SSDBench, precision: Precision, scene: SSDInputs, device: torch.device, ours: Callable[[], Any]
) -> Operation | None:
    """The plain network with torchvision's detections; None where there is no torchvision."""
    model = bench.model(device)
    theirs = torchvision_parts(peer_boxes(bench, device), model.settings.detect, model.settings.match_iou)
    if not theirs:
        return None
    plain = peer_model(bench, device, torch.contiguous_format).eval()
    autocast = autocast_for(replace(bench.system, precision=precision), device)

    @torch.no_grad()
    def predict() -> Any:
        with autocast():
            deltas, logits = plain(model.normalize(scene.batch.images))
        return theirs["detections"](deltas.float().transpose(1, 2), logits.float().transpose(1, 2))

    return Operation("prediction", {OURS: ours, "plain eager, torchvision's detections": predict})


def peer_model(bench: SSDBench, device: torch.device, memory: torch.memory_format) -> PlainSSD:
    """The plain network with our weights."""
    cells = grid_sizes(bench.size)
    model = PlainSSD(bench.depth, bench.classes + 1, cells, count_boxes_per_cell(len(cells)))
    model.load_state_dict(to_reference(bench.model(torch.device("cpu")).network.state_dict()))
    return cast(PlainSSD, model.to(device).to(memory_format=memory))  # type: ignore[call-overload]


def peer_step(
    bench: SSDBench,
    precision: Precision,
    scene: SSDInputs,
    device: torch.device,
    memory: torch.memory_format = torch.contiguous_format,
    *,
    compile: bool = False,
) -> ReadyCase:
    """One step of the plain formulation."""
    recipe = bench.recipe()
    return ReadyCase(
        plain_step(
            peer_model(bench, device, memory).train(),
            scene.batch.images.contiguous(memory_format=memory),
            scene.objects,
            peer_boxes(bench, device),
            threshold=recipe.model.match_iou,
            optim=recipe.optim,
            autocast=autocast_for(replace(bench.system, precision=precision), device),
            compile=compile,
        )
    )


def peer_boxes(bench: SSDBench, device: torch.device) -> Tensor:
    """Default boxes in the order of the reference's network."""
    cells = grid_sizes(bench.size)
    return default_boxes(bench.size, cells, bench.recipe().model.scales[: len(cells) + 1], order="anchor").to(device)
