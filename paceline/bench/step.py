"""`paceline bench step`: our training step beside plain loops around torchvision's and timm's model, interleaved in one run.

Letters: B images of a step   S side of the input, pixels
Every contender gets the same uint8 images, already on the device, the same number format and memory format, SGD with
momentum, label smoothing; each normalises on the device. A round times every contender once, in turn, so that a drifting
clock speed or a busy neighbour hits all alike; what counts is the ratio within a round.
"""

from __future__ import annotations

import importlib
import importlib.util
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.batch.batch import Batch
from paceline.config.classification import PhotoInput, ResNetModel
from paceline.config.plan import make_plan
from paceline.config.recipe import Optim, Recipe
from paceline.config.system import System
from paceline.machine import autocast_for
from paceline.models.initialise import initialise
from paceline.optim.parameter_groups import named_parameters
from paceline.optim.sgd import SGD
from paceline.provenance import cpu_name, versions
from paceline.state import Meters, State
from paceline.step import TrainStep
from paceline.tasks.classification import build_classifier

LR, MOMENTUM, DECAY, SMOOTHING = 0.1, 0.9, 1e-4, 0.1
CLASSES = 1000
WARM_UP_STEPS = 3
Step = Callable[[], Any]


@dataclass(frozen=True)
class StepBench:
    """What to measure."""

    depth: int  # of the ResNet; torchvision and timm have 18, 34, 50, 101 and 152
    batch: int  # B
    size: int  # S
    rounds: int
    seconds: float  # a contender's share of a round, at least one step
    compile: bool  # torch.compile for every contender
    system: System


def run_step_bench(bench: StepBench, device: torch.device) -> dict[str, Any]:
    """-> JSON facts: images/s of every round, medians, and the ratio of ours to each peer (median over rounds)."""
    images = torch.randint(0, 256, (bench.batch, 3, bench.size, bench.size), dtype=torch.uint8, device=device)
    if bench.system.channels_last:
        images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, CLASSES, (bench.batch,), device=device)
    steps: dict[str, Step] = {"paceline": our_step(bench, images, labels, device)}
    for name, model in peers(bench.depth).items():
        steps[name] = plain_step(bench, model, images, labels, device)
    for step in steps.values():
        for _ in range(WARM_UP_STEPS):
            step()
    rates: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(bench.rounds):
        for name, step in steps.items():
            rates[name].append(_images_per_second(step, bench, device))
    ours = rates["paceline"]
    ratios = {name: statistics.median(a / b for a, b in zip(ours, rates[name])) for name in rates if name != "paceline"}
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name(),
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "python": platform.python_version(),
        "depth": bench.depth,
        "batch": bench.batch,
        "size": bench.size,
        "precision": bench.system.precision,
        "channels_last": bench.system.channels_last,
        "compile": bench.compile,
        "images_per_second": {name: [round(rate, 2) for rate in values] for name, values in rates.items()},
        "median": {name: round(statistics.median(values), 2) for name, values in rates.items()},
        "ratio_to": {name: round(ratio, 4) for name, ratio in ratios.items()},
    }


def our_step(bench: StepBench, images: Tensor, labels: Tensor, device: torch.device) -> Step:
    """One optimiser step of paceline on the given batch."""
    system = replace(bench.system, images_per_forward=bench.batch, compile=bench.compile)
    recipe = Recipe(
        task="classification",
        model=ResNetModel(depth=bench.depth, label_smoothing=SMOOTHING),  # type: ignore[arg-type]
        input=PhotoInput(size=bench.size),
        global_batch=bench.batch,
        epochs=1,
        bn_span=bench.batch,
        optim=Optim(lr=LR, momentum=MOMENTUM, weight_decay=DECAY),
    )
    plan = make_plan(recipe, system, world=1, most=bench.batch, train_images=1_281_167, val_images=50_000)
    model = build_classifier(recipe, CLASSES)
    initialise(model.network, "torchvision", torch.Generator().manual_seed(0))
    model = model.to(device)
    if system.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimiser = SGD(named_parameters(model, "all"), momentum=MOMENTUM, weight_decay=DECAY)
    step = TrainStep(State(model, optimiser, None, None, Meters(device)), plan, system, device)
    batch = Batch(images, labels, labels)
    return lambda: step([batch], lr=LR, previous_lr=LR)


def peers(depth: int) -> dict[str, nn.Module]:
    """The models to stand beside ours: torchvision's, and timm's where it is installed."""
    import torchvision

    found: dict[str, nn.Module] = {"torchvision": torchvision.models.get_model(f"resnet{depth}", weights=None)}
    if importlib.util.find_spec("timm"):
        timm = importlib.import_module("timm")  # by name: a type checker without timm must not mind
        found["timm"] = timm.create_model(f"resnet{depth}", pretrained=False)
    return found


def plain_step(bench: StepBench, model: nn.Module, images: Tensor, labels: Tensor, device: torch.device) -> Step:
    """The loop that a careful user writes: channels_last, autocast, the fastest torch.optim.SGD of the device."""
    model = model.to(device).train()
    if bench.system.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimiser = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY, fused=True)
    mean = 255 * torch.tensor((0.485, 0.456, 0.406), device=device).view(1, 3, 1, 1)
    std = 255 * torch.tensor((0.229, 0.224, 0.225), device=device).view(1, 3, 1, 1)
    autocast = autocast_for(bench.system, device)
    network = torch.compile(model) if bench.compile else model

    def step() -> None:
        with autocast():
            logits = network((images.float() - mean) / std)
        F.cross_entropy(logits.float(), labels, label_smoothing=SMOOTHING).backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step


def _images_per_second(step: Step, bench: StepBench, device: torch.device) -> float:
    """Steps for the asked time, between two synchronisations of the device."""
    settle(device)
    began, count = time.perf_counter(), 0
    while True:
        step()
        count += 1
        if count % 5 == 0 or device.type == "cpu":
            settle(device)
            if time.perf_counter() - began >= bench.seconds:
                break
    settle(device)
    return count * bench.batch / (time.perf_counter() - began)


def settle(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
