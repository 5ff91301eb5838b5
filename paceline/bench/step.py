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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.accelerators import device_name
from paceline.batch.batch import Batch
from paceline.bench.step_ssd_profile import where_time_goes
from paceline.bench.timing import STEPS, WARM_UP_STEPS, Step, as_graph, ready, seconds_of
from paceline.config.classification import PhotoInput, ResNetModel
from paceline.config.plan import Rates, make_plan
from paceline.config.recipe import Optim, Recipe
from paceline.config.system import Precision, System
from paceline.machine import autocast_for, make_exact
from paceline.models.classifier import Classifier
from paceline.models.initialise import initialise
from paceline.optim.loss_scale import LossScaler
from paceline.optim.parameter_groups import named_parameters
from paceline.optim.sgd import SGD
from paceline.provenance import cpu_name, versions
from paceline.state import Meters, State
from paceline.step import TrainStep
from paceline.tasks.classification import build_classifier

LR, MOMENTUM, DECAY, SMOOTHING = 0.1, 0.9, 1e-4, 0.1
CLASSES = 1000
OURS = "paceline"


@dataclass(frozen=True)
class StepBench:
    """What to measure."""

    depth: int  # of the ResNet; torchvision and timm have 18, 34, 50, 101 and 152
    batch: int  # B
    size: int  # S
    rounds: int
    seconds: float  # a contender's share of a round, at least one step
    compile: bool  # torch.compile every contender, as further contenders
    precisions: tuple[Precision, ...]
    system: System
    peers: tuple[str, ...] = ("torchvision", "timm")  # those that are installed take part


def run_step_bench(bench: StepBench, device: torch.device, tell: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """-> JSON facts: images/s of every round, medians, and the ratio of ours to each peer (median over rounds).

    tell  gets them whenever more is known
    """
    make_exact(False)  # convolutions are chosen by trying, as in training
    facts: dict[str, Any] = {
        "task": "classification",
        "device": cpu_name() if device.type == "cpu" else device_name(device),
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "python": platform.python_version(),
        "depth": bench.depth,
        "batch": bench.batch,
        "size": bench.size,
        "channels_last": bench.system.channels_last,
        "step": {},
    }
    images, labels = synthetic_photos(bench, device)
    for precision in bench.precisions:
        for known in run_steps(bench, precision, images, labels, device):
            facts["step"][precision] = known
            tell(facts)
    return facts


def synthetic_photos(bench: StepBench, device: torch.device) -> tuple[Tensor, Tensor]:
    """Noise (B, 3, S, S) uint8 and classes (B,), the same on every call."""
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (bench.batch, 3, bench.size, bench.size), dtype=torch.uint8, generator=draw)
    if bench.system.channels_last:
        images = images.contiguous(memory_format=torch.channels_last)
    return images.to(device), torch.randint(0, CLASSES, (bench.batch,), generator=draw).to(device)


def run_steps(
    bench: StepBench, precision: Precision, images: Tensor, labels: Tensor, device: torch.device
) -> Iterator[dict[str, Any]]:
    """Every contender of one number format: the facts known so far, after each contender's first block and each round."""
    rates: dict[str, list[float]] = {}
    steps: dict[str, Step] = {}
    facts: dict[str, Any] = {"absent": {}, "first_losses": {}, "before_the_rounds": {}}
    makers = contenders(bench, precision, images, labels, device)
    for name, step, loss in ready(makers, OURS, facts["absent"]):
        facts["first_losses"][name] = loss
        for _ in range(WARM_UP_STEPS - 1):
            step()
        steps[name], rates[name] = step, []
        # Told at once: a contender that takes the device down later leaves what others have shown.
        facts["before_the_rounds"][name] = round(bench.batch / seconds_of(step, 0.0, device, STEPS)[0], 2)
        yield facts
    for _ in range(bench.rounds):
        for name, step in steps.items():
            rates[name].append(bench.batch / seconds_of(step, bench.seconds, device, STEPS)[0])
        ours = rates[OURS]
        facts["images_per_second"] = {name: [round(rate, 2) for rate in values] for name, values in rates.items()}
        facts["median"] = {name: round(statistics.median(values), 2) for name, values in rates.items()}
        facts["ratio_to"] = {
            name: round(statistics.median(a / b for a, b in zip(ours, values)), 4)
            for name, values in rates.items()
            if name != OURS
        }
        yield facts
    facts["where_milliseconds"] = where_time_goes(steps[OURS], device)
    yield facts


def contenders(
    bench: StepBench, precision: Precision, images: Tensor, labels: Tensor, device: torch.device
) -> dict[str, Callable[[], Step]]:
    """name -> what makes its step. Graphs come last: a capture that fails may take the device's queue with it."""
    ours = partial(our_step, bench, precision, images, labels, device)
    found: dict[str, Callable[[], Step]] = {OURS: ours}
    theirs = {name: partial(plain_step, bench, precision, name, images, labels, device) for name in installed(bench)}
    found.update(theirs)
    if bench.compile:
        found[f"{OURS} compiled"] = partial(ours, compile=True)
        found.update({f"{name} compiled": partial(make, compile=True) for name, make in theirs.items()})
    if device.type == "cuda":
        found[f"{OURS} CUDA graph"] = partial(ours, graph=True)
        found.update(
            {f"{name} CUDA graph": lambda make=make: as_graph(make(), device) for name, make in theirs.items()}
        )
        if bench.compile:
            found[f"{OURS} compiled CUDA graph"] = partial(ours, compile=True, graph=True)
    return found


def our_model(bench: StepBench, device: torch.device) -> Classifier:
    """The classifier with the same weights on every call."""
    model = build_classifier(_recipe(bench), CLASSES)
    initialise(model.network, "torchvision", torch.Generator().manual_seed(0))
    model = model.to(device)
    return model.to(memory_format=torch.channels_last) if bench.system.channels_last else model  # type: ignore[call-overload]


def our_step(
    bench: StepBench,
    precision: Precision,
    images: Tensor,
    labels: Tensor,
    device: torch.device,
    *,
    compile: bool = False,
    graph: bool = False,
) -> Step:
    """One optimiser step of paceline on the given batch; with graph, replayed from the first one on, as `--system.graph` does."""
    system = replace(bench.system, images_per_forward=bench.batch, precision=precision, compile=compile, graph=graph)
    recipe = _recipe(bench)
    plan = make_plan(recipe, system, world=1, most=bench.batch, train_images=1_281_167, val_images=50_000)
    model = our_model(bench, device)
    optimiser = SGD(named_parameters(model, "all"), Optim(momentum=MOMENTUM, weight_decay=DECAY))
    scaler = LossScaler("dynamic", 65536.0, device=device) if precision == "fp16" else None
    step = TrainStep(State(model, optimiser, None, scaler, Meters(device)), plan, system, device)
    batch = Batch(images, labels, labels)
    return lambda: step([batch], Rates(LR, LR))["loss"]


def _recipe(bench: StepBench) -> Recipe[ResNetModel, PhotoInput]:
    return Recipe(
        task="classification",
        model=ResNetModel(depth=bench.depth, label_smoothing=SMOOTHING),  # type: ignore[arg-type]
        input=PhotoInput(size=bench.size),
        global_batch=bench.batch,
        epochs=1,
        bn_span=bench.batch,
        optim=Optim(lr=LR, momentum=MOMENTUM, weight_decay=DECAY),
    )


def installed(bench: StepBench) -> list[str]:
    """The peers that are there."""
    return [name for name in bench.peers if importlib.util.find_spec(name)]


def peer_model(name: str, depth: int) -> nn.Module:
    """torchvision's or timm's ResNet; by name, because a type checker without timm must not mind."""
    library = importlib.import_module(name)
    if name == "timm":
        return library.create_model(f"resnet{depth}", pretrained=False)
    return library.models.get_model(f"resnet{depth}", weights=None)


def plain_step(
    bench: StepBench,
    precision: Precision,
    name: str,
    images: Tensor,
    labels: Tensor,
    device: torch.device,
    *,
    compile: bool = False,
) -> Step:
    """The loop that a careful user writes: channels_last, autocast, the fastest torch.optim.SGD of the device.

    fp16 without a loss scale, which would only cost time here
    """
    model = peer_model(name, bench.depth).to(device).train()
    if bench.system.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimiser = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY, fused=True)
    mean = 255 * torch.tensor((0.485, 0.456, 0.406), device=device).view(1, 3, 1, 1)
    std = 255 * torch.tensor((0.229, 0.224, 0.225), device=device).view(1, 3, 1, 1)
    autocast = autocast_for(replace(bench.system, precision=precision), device)
    network = torch.compile(model) if compile else model

    def step() -> Tensor:
        with autocast():
            logits = network((images.float() - mean) / std)
        loss = F.cross_entropy(logits.float(), labels, label_smoothing=SMOOTHING)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return loss.detach()

    return step
