"""`paceline bench step --task ssd`: our SSD beside the plain eager formulation, operation by operation and as a whole step.

Letters: B images of a step   S side of the input, pixels   K classes
The plain network is torchvision's ResNet with the reference's heads, loss and matching (step_ssd_peers.py), in NCHW as the
reference has it, and once more in channels_last; it starts from our weights, so its first losses are ours up to rounding.
A step is matching, forward, loss, backward and optimiser on pixels and objects that are on the device. A round times every
contender once, in turn; what counts is the ratio within a round.
"""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from paceline.accelerators import device_name
from paceline.batch.batch import Batch
from paceline.bench.step_ssd_ops import Scene, run_ops, synthetic_scene, times_faster
from paceline.bench.step_ssd_peers import PlainSSD, plain_step, torchvision_parts
from paceline.bench.step_ssd_profile import gflop_of, loss_is_marked, matrix_gflops, where_time_goes
from paceline.bench.timing import STEPS, WARM_UP_STEPS, Step, first_wait, ready, seconds_of
from paceline.boxes.anchors import boxes_a_cell, default_boxes
from paceline.config.detection import grids
from paceline.config.plan import Rates, make_plan
from paceline.config.system import Precision, System
from paceline.machine import TYPES, autocast_for, make_exact
from paceline.models.detector import Detector
from paceline.models.forms.mlperf_ssd import to_reference
from paceline.models.ssd import initialise_ssd
from paceline.optim.loss_scale import LossScaler
from paceline.optim.parameter_groups import named_parameters
from paceline.optim.sgd import SGD
from paceline.provenance import cpu_name, versions
from paceline.recipes.ssd import MLPERF_IMAGES, MLPERF_LR, TRAIN_IMAGES, SSDRecipe, mlperf
from paceline.state import Meters, State
from paceline.step import TrainStep
from paceline.tasks.ssd import build_detector

Part = Literal["all", "ops", "step", "eval"]
OURS = "paceline"
OPS_IMAGES = 8  # images of the operations' batch at most: the reference's suppression takes seconds an image
NUMBERS = {"fp32": torch.float32, **TYPES}


@dataclass(frozen=True)
class SSDBench:
    """What to measure."""

    depth: Literal[18, 34]  # of the trunk's ResNet
    batch: int  # B
    size: int  # S
    classes: int  # K
    rounds: int
    seconds: float  # a contender's share of a round, at least one step
    compile: bool  # torch.compile ours and the plain network, as further contenders
    precisions: tuple[Precision, ...]
    matrix: int  # side of the matrix product that gives the machine's ceiling
    part: Part
    system: System
    heads: Literal["separate", "fused"] = "separate"  # of ours


def run_ssd_bench(bench: SSDBench, device: torch.device, tell: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """-> JSON facts. `tell` gets them whenever more is known."""
    make_exact(False)  # convolutions are chosen by trying, as in training
    scene = synthetic_scene(bench.batch, bench.classes, bench.size, device)
    facts: dict[str, Any] = {
        "task": "ssd",
        "device": cpu_name() if device.type == "cpu" else device_name(device),
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "python": platform.python_version(),
        "depth": bench.depth,
        "batch": bench.batch,
        "size": bench.size,
        "classes": bench.classes,
        "default_boxes": len(scene.anchors),
        "objects": int((scene.batch.labels > 0).sum()),
        "matrix": bench.matrix,
    }
    tell(facts)
    if bench.part in ("all", "ops"):
        images = min(bench.batch, OPS_IMAGES)
        few = synthetic_scene(images, bench.classes, bench.size, device)
        facts["operations"] = {"images": images, "rows": run_ops(few, bench.rounds, bench.seconds / 10, device)}
        tell(facts)
    if bench.part in ("all", "step"):
        with torch.device("meta"):
            network = build_detector(recipe_of(bench), bench.classes).network
        facts["gflop_per_image"] = round(gflop_of(network, bench.size), 3)
        facts["step"] = {}
        for precision in bench.precisions:
            for known in run_steps(bench, precision, scene, facts["gflop_per_image"], device):
                facts["step"][precision] = known
                tell(facts)
    if bench.part in ("all", "eval"):
        facts["evaluation"] = {p: run_evaluation(bench, p, scene, device) for p in bench.precisions}
        tell(facts)
    return facts


def run_steps(
    bench: SSDBench, precision: Precision, scene: Scene, gflop_per_image: float, device: torch.device
) -> Iterator[dict[str, Any]]:
    """Every contender of one number format: the facts known so far, after each contender's first block and each round."""
    steps: dict[str, Step] = {}
    taken: dict[str, list[tuple[float, float]]] = {}
    facts: dict[str, Any] = {"absent": {}, "first_losses": {}, "before_the_rounds": {}}
    for name, step, loss in ready(contenders(bench, precision, scene, device), OURS, facts["absent"]):
        facts["first_losses"][name] = loss
        for _ in range(WARM_UP_STEPS - 1):
            step()
        steps[name], taken[name] = step, []
        # Told at once: a contender that takes the device down later leaves what others have shown.
        facts["before_the_rounds"][name] = round(bench.batch / seconds_of(step, 0.0, device, STEPS)[0], 3)
        yield facts
    waits = first_wait(steps[OURS], device)
    facts["waits_for_the_device"] = waits if device.type == "cuda" else None
    ceiling: list[float] = []
    for _ in range(bench.rounds):
        for name, step in steps.items():
            taken[name].append(seconds_of(step, bench.seconds, device, STEPS))
        ceiling.append(matrix_gflops(bench.matrix, NUMBERS[precision], bench.seconds / 5, device))
        yield facts | summary(taken, bench.batch, gflop_per_image, ceiling)
    yield (
        facts
        | summary(taken, bench.batch, gflop_per_image, ceiling)
        | {"where_milliseconds": profiles(bench, precision, scene, device)}
    )


def summary(
    taken: Mapping[str, Sequence[tuple[float, float]]], batch: int, gflop_per_image: float, ceiling: Sequence[float]
) -> dict[str, Any]:
    """Rates and ratios of the rounds so far; `taken` as `seconds_of` gives it, `ceiling` the machine's GFLOP/s."""
    median = {name: batch / statistics.median(wall for wall, _ in values) for name, values in taken.items()}
    ours, peak = taken[OURS], max(ceiling)
    return {
        "seconds_per_step": {name: [wall for wall, _ in values] for name, values in taken.items()},
        "cpu_seconds_per_step": {name: [cpu for _, cpu in values] for name, values in taken.items()},
        "images_per_second": {name: round(rate, 3) for name, rate in median.items()},
        "times_faster": {name: times_faster(ours, taken[name], 0) for name in taken if name != OURS},
        "times_faster_cpu": {name: times_faster(ours, taken[name], 1) for name in taken if name != OURS},
        "matrix_gflops": [round(value, 1) for value in ceiling],
        "share_of_matrix_ceiling": {name: round(rate * gflop_per_image / peak, 4) for name, rate in median.items()},
    }


def contenders(
    bench: SSDBench, precision: Precision, scene: Scene, device: torch.device
) -> dict[str, Callable[[], Step]]:
    """name -> what makes its step; they begin from the same weights, but for the fused heads, which are drawn for
    themselves. Graphs come last: a capture that fails may take the device's queue with it.
    """
    fused = fused_heads(bench)
    found: dict[str, Callable[[], Step]] = {
        OURS: lambda: our_step(bench, precision, scene, device)[1],
        f"{OURS}, fused heads": lambda: our_step(fused, precision, scene, device)[1],
        "plain eager": lambda: peer_step(bench, precision, scene, device),
        "plain eager channels_last": lambda: peer_step(bench, precision, scene, device, torch.channels_last),
    }
    if bench.compile:
        found[f"{OURS} compiled"] = lambda: our_step(bench, precision, scene, device, compile=True)[1]
        found[f"{OURS} compiled, fused heads"] = lambda: our_step(fused, precision, scene, device, compile=True)[1]
        found["plain compiled"] = lambda: peer_step(bench, precision, scene, device, torch.channels_last, compile=True)
    if device.type == "cuda":
        replayed = partial(our_step, precision=precision, scene=scene, device=device, graph=True)
        found[f"{OURS} CUDA graph"] = lambda: replayed(bench)[1]
        found[f"{OURS} CUDA graph, fused heads"] = lambda: replayed(fused)[1]
        if bench.compile:
            found[f"{OURS} compiled CUDA graph, fused heads"] = lambda: replayed(fused, compile=True)[1]
    return found


def fused_heads(bench: SSDBench) -> SSDBench:
    """The same with one head convolution a level, its channels padded to a multiple of 8 as tensor cores want them."""
    return replace(bench, heads="fused")


def recipe_of(bench: SSDBench) -> SSDRecipe:
    """The MLPerf reference's settings for this batch and size."""
    base = mlperf()
    return replace(
        base,
        model=replace(base.model, depth=bench.depth, heads=bench.heads, head_multiple=8),
        input=replace(base.input, size=bench.size),
        global_batch=bench.batch,
        bn_span=bench.batch,
        optim=replace(base.optim, lr=MLPERF_LR * bench.batch / MLPERF_IMAGES),
    )


def our_model(bench: SSDBench, system: System, device: torch.device) -> Detector:
    """The detector with the same weights on every call."""
    model = build_detector(recipe_of(bench), bench.classes)
    initialise_ssd(model.network, torch.Generator().manual_seed(0))
    model = model.to(device)
    return model.to(memory_format=torch.channels_last) if system.channels_last else model  # type: ignore[call-overload]


def our_step(
    bench: SSDBench,
    precision: Precision,
    scene: Scene,
    device: torch.device,
    *,
    compile: bool = False,
    graph: bool = False,
) -> tuple[Detector, Step]:
    """The model, and one optimiser step of it on the scene's batch; with graph, replayed as `--system.graph` does."""
    system = replace(bench.system, images_per_forward=bench.batch, precision=precision, compile=compile, graph=graph)
    recipe = recipe_of(bench)
    lr = recipe.optim.lr
    plan = make_plan(recipe, system, world=1, most=bench.batch, train_images=TRAIN_IMAGES, val_images=5000)
    model = our_model(bench, system, device)
    optimiser = SGD(named_parameters(model, recipe.optim.decay_on), recipe.optim)
    scaler = LossScaler("dynamic", 65536.0, device=device) if precision == "fp16" else None
    step = TrainStep(State(model, optimiser, None, scaler, Meters(device)), plan, system, device)
    batch: Batch = scene.batch
    if system.channels_last:
        batch = replace(batch, images=batch.images.contiguous(memory_format=torch.channels_last))
    return model, lambda: step([batch], Rates(lr, lr))["loss"]


def peer_model(bench: SSDBench, device: torch.device, memory: torch.memory_format) -> PlainSSD:
    """The plain network with the weights of `our_model`."""
    cells = grids(bench.size)
    model = PlainSSD(bench.depth, bench.classes + 1, cells, boxes_a_cell(len(cells)))
    model.load_state_dict(to_reference(our_model(bench, bench.system, torch.device("cpu")).network.state_dict()))
    return cast(PlainSSD, model.to(device).to(memory_format=memory))  # type: ignore[call-overload]


def peer_step(
    bench: SSDBench,
    precision: Precision,
    scene: Scene,
    device: torch.device,
    memory: torch.memory_format = torch.contiguous_format,
    *,
    compile: bool = False,
) -> Step:
    """One step of the plain formulation."""
    recipe = recipe_of(bench)
    return plain_step(
        peer_model(bench, device, memory).train(),
        scene.batch.images.contiguous(memory_format=memory),
        scene.objects,
        peer_boxes(bench, device),
        threshold=recipe.model.match_iou,
        lr=recipe.optim.lr,
        decay=recipe.optim.weight_decay,
        autocast=autocast_for(replace(bench.system, precision=precision), device),
        compile=compile,
    )


def peer_boxes(bench: SSDBench, device: torch.device) -> Tensor:
    """Default boxes in the order of the reference's network."""
    cells = grids(bench.size)
    return default_boxes(bench.size, cells, recipe_of(bench).model.scales[: len(cells) + 1], order="anchor").to(device)


def profiles(bench: SSDBench, precision: Precision, scene: Scene, device: torch.device) -> dict[str, dict[str, float]]:
    """Where the time of ours and of the plain step goes, not compiled."""
    model, step = our_step(bench, precision, scene, device)
    step()
    with loss_is_marked(model, model.network):
        found = {"paceline": where_time_goes(step, device)}
    plain = peer_step(bench, precision, scene, device)
    plain()
    return {**found, "plain eager": where_time_goes(plain, device)}


@torch.no_grad()
def run_evaluation(bench: SSDBench, precision: Precision, scene: Scene, device: torch.device) -> dict[str, Any]:
    """Images/s from pixels on the device to detections, of networks that are not trained yet: no score is above the threshold.

    The plain network has torchvision's detections. On a GPU ours does the same work whatever there is to find.
    """
    system = replace(bench.system, precision=precision)
    autocast = autocast_for(system, device)
    ours, batch = our_model(bench, system, device).eval(), scene.batch
    if system.channels_last:
        batch = replace(batch, images=batch.images.contiguous(memory_format=torch.channels_last))

    def predict() -> Any:
        with autocast():
            return ours.predict(batch)

    works: dict[str, Callable[[], Any]] = {"paceline": predict}
    theirs = torchvision_parts(peer_boxes(bench, device), ours.settings.detect, ours.settings.match_iou)
    if theirs:
        plain: nn.Module = peer_model(bench, device, torch.contiguous_format).eval()

        def plain_predict() -> Any:
            with autocast():
                deltas, logits = plain(ours.normalise(scene.batch.images))
            return theirs["detections"](deltas.float().transpose(1, 2), logits.float().transpose(1, 2))

        works["plain eager, torchvision's detections"] = plain_predict
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for work in works.values():
        work()
    for _ in range(bench.rounds):
        for name, work in works.items():
            taken[name].append(seconds_of(work, bench.seconds / 4, device))
    return {
        "seconds_per_batch": {name: [wall for wall, _ in values] for name, values in taken.items()},
        "images_per_second": {
            name: round(bench.batch / statistics.median(wall for wall, _ in values), 3)
            for name, values in taken.items()
        },
        "times_faster": {name: times_faster(taken["paceline"], taken[name], 0) for name in taken if name != "paceline"},
    }
