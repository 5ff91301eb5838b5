"""`paceline bench step --task maskrcnn`: our Mask R-CNN beside torchvision's and detectron2's, whole steps in one run.

Letters: B images of a step   H, W pixels of the input   K classes
Every contender gets the same pixels, objects, masks and proposals (step_maskrcnn_scene.py); ours and torchvision's start from
the same weights. A step is normalisation, forward, sampling, losses, backward and the update. A round times every contender
once, in turn, and then the machine's matrix products; what counts is the ratio within a round.
"""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from paceline.accelerators import device_name
from paceline.bench.step_maskrcnn_ops import run_ops
from paceline.bench.step_maskrcnn_peers import (
    Absent,
    detectron2_contender,
    detectron2_model,
    torchvision_contender,
    torchvision_model,
)
from paceline.bench.step_maskrcnn_predict import run_predict
from paceline.bench.step_maskrcnn_profile import (
    Contender,
    Seconds,
    seconds_of_steps,
    watched_step,
    where_time_goes,
)
from paceline.bench.step_maskrcnn_scene import Scene, synthetic_scene
from paceline.bench.step_ssd import NUMBERS
from paceline.bench.timing import first_wait, ready, seconds_of
from paceline.config.instances import InstanceInput, MaskRCNNModel
from paceline.config.plan import Rates, make_plan
from paceline.config.recipe import Optim, Recipe
from paceline.config.system import Precision, System
from paceline.loss_groups import configure_loss_groups
from paceline.machine import autocast_for, make_exact
from paceline.models import segmenter
from paceline.models.initialise_mask_rcnn import initialise_mask_rcnn
from paceline.models.mask_rcnn import MaskRCNN
from paceline.models.segmenter import Segmenter
from paceline.optim.loss_scale import LossScaler
from paceline.optim.parameter_groups import named_parameters
from paceline.optim.sgd import SGD
from paceline.provenance import cpu_name, versions
from paceline.state import Meters, State
from paceline.step import TrainStep

Part = Literal["all", "ops", "step", "predict"]
# Steps without a step's effect on the next: weights that are not trained must not run away while they are timed.
LR, DECAY = 1e-5, 1e-4
WARM_UP_STEPS = 2  # on a GPU, beside the first
# Frozen statistics of 0 and 1 let a residual net that is not trained grow at every block; so each block adds this share.
LAST_NORM = 0.2
OURS, GRAPH = "paceline", "paceline, CUDA graph"


@dataclass(frozen=True)
class MaskRCNNBench:
    """What to measure."""

    batch: int  # B
    height: int  # H
    width: int  # W
    classes: int  # K
    objects: int  # of each image
    positives: tuple[int, ...]  # positive regions of each image; a run for each
    rounds: int
    seconds: float  # a contender's share of a round, at least one step
    precisions: tuple[Precision, ...]
    matrix: int  # side of the matrix product that gives the machine's ceiling
    threads: int  # of a CPU; 0 = as torch has it
    part: Part
    system: System
    model: MaskRCNNModel = field(default_factory=MaskRCNNModel)


def run_maskrcnn_bench(
    bench: MaskRCNNBench, device: torch.device, tell: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """-> JSON facts. `tell` gets them whenever more is known."""
    before = torch.get_num_threads()
    torch.set_num_threads(bench.threads or before)
    try:
        return _run(bench, device, tell)
    finally:
        torch.set_num_threads(before)


def _run(bench: MaskRCNNBench, device: torch.device, tell: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    make_exact(False)  # convolutions are chosen by trying, as in training
    facts: dict[str, Any] = {
        "task": "maskrcnn",
        "device": cpu_name() if device.type == "cpu" else device_name(device),
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "python": platform.python_version(),
        **{name: getattr(bench, name) for name in ("batch", "height", "width", "classes", "objects", "matrix")},
        "depth": bench.model.depth,
    }
    tell(facts)
    if bench.part in ("all", "ops"):
        facts["operations"] = []
        for row in run_ops(bench.model, scene_of(bench, max(bench.positives)), bench.classes, bench.rounds, device):
            facts["operations"].append(row)
            tell(facts)
    if bench.part in ("all", "step"):
        facts["step"] = {}
        for precision in bench.precisions:
            facts["step"][precision] = {}
            for positives in bench.positives:
                scene = scene_of(bench, positives).to(device)
                for known in run_steps(bench, precision, scene, device):
                    facts["step"][precision][str(positives)] = known
                    tell(facts)
    if bench.part in ("all", "predict"):
        scene = scene_of(bench, max(bench.positives)).to(device)
        facts["predict"] = {}
        for precision in bench.precisions:
            autocast = autocast_for(replace(bench.system, precision=precision), device)
            ours = our_model(bench, device)
            theirs = torchvision_peer(bench, device, torch.contiguous_format)
            facts["predict"][precision] = run_predict(ours, theirs, scene, autocast, bench.rounds, device)
            tell(facts)
    return facts


def scene_of(bench: MaskRCNNBench, positives: int) -> Scene:
    """The batch, on the CPU."""
    return synthetic_scene(
        bench.batch,
        bench.height,
        bench.width,
        classes=bench.classes,
        objects=bench.objects,
        positives=positives,
        proposals=bench.model.rpn.post_train,
        canvas=bench.model.mask.canvas,
    )


def run_steps(
    bench: MaskRCNNBench, precision: Precision, scene: Scene, device: torch.device
) -> Iterator[dict[str, Any]]:
    """Every contender of one number format and one count of positives: the facts known so far, after each contender's
    first step and each round.
    """
    found: dict[str, Contender] = {}
    positives: dict[str, float] = {}
    gflop: dict[str, float] = {}
    facts: dict[str, Any] = {
        "absent": {}, "first_losses": {}, "positives_an_image": positives, "gflop": gflop, "waits_for_the_device": None,
    }  # fmt: skip
    made = makers(bench, precision, scene, device)
    for name, make in made.items():
        try:
            contender = make()
            facts["first_losses"][name], count, work = watched_step(contender)
        except (Absent, RuntimeError) as problem:
            # A peer that is not installed, or whose operators lack this number format here, is listed with the reason.
            # Ours has no such excuse: it must run wherever this command does.
            if name == OURS:
                raise
            facts["absent"][name] = str(problem).split("\n")[0]
            continue
        found[name] = contender
        positives[name], gflop[name] = count / bench.batch, round(work, 1)
        yield facts
    if device.type == "cuda":
        for contender in found.values():
            for _ in range(WARM_UP_STEPS):
                contender.step()
        facts["waits_for_the_device"] = waits = first_wait(found[OURS].step, device)
        if waits:
            facts["absent"][GRAPH] = f"a step waits for the device: {waits}"
        else:
            replayed = our_contender(bench, precision, scene, device, graph=True)
            for name, _, _ in ready({GRAPH: lambda: replayed.step}, OURS, facts["absent"]):
                found[name] = replayed
    taken: dict[str, list[Seconds]] = {name: [] for name in found}
    ceiling: list[tuple[float, float]] = []
    for _ in range(bench.rounds):
        for name, contender in found.items():
            taken[name].append(seconds_of_steps(contender, bench.seconds, device))
        ceiling.append(matrix_rates(bench.matrix, NUMBERS[precision], bench.seconds / 5, device))
        facts |= {
            "last_losses": {name: rounds[-1].loss for name, rounds in taken.items()},
            "matrix_gflops": [round(wall, 1) for wall, _ in ceiling],
            "matrix_gflops_a_cpu_second": [round(cpu, 1) for _, cpu in ceiling],
            **summary(taken, bench.batch, gflop, ceiling),
        }
        yield facts
    facts["where_milliseconds"] = {
        name: where_time_goes(contender, device)
        for name, contender in found.items()
        if contender.parts and name in (OURS, "torchvision")
    }
    yield facts


def matrix_rates(side: int, number: torch.dtype, seconds: float, device: torch.device) -> tuple[float, float]:
    """GFLOP of a square matrix product by the second and by the CPU-second."""
    left, right = (torch.randn(side, side, device=device).to(number) for _ in range(2))
    wall, cpu = seconds_of(lambda: left @ right, seconds, device)
    return 2 * side**3 / wall / 1e9, 2 * side**3 / max(cpu, 1e-9) / 1e9


def summary(
    taken: Mapping[str, Sequence[Seconds]],
    batch: int,
    gflop: Mapping[str, float],
    ceiling: Sequence[tuple[float, float]],
) -> dict[str, Any]:
    """Medians, spreads, ratios.

    gflop    work of each contender's step (a CUDA graph does ours): less of it at the same speed is a lower share
    ceiling  of each round, as from `matrix_rates`
    """
    peak, peak_cpu = max(wall for wall, _ in ceiling), max(cpu for _, cpu in ceiling)
    ours = taken[OURS]

    def ratios(name: str, which: Callable[[Seconds], float]) -> dict[str, float]:
        each = [which(theirs) / max(which(own), 1e-9) for own, theirs in zip(ours, taken[name])]
        return {"median": statistics.median(each), "least": min(each), "most": max(each)}

    def gradients(seconds: Seconds) -> float:
        return seconds.cpu - seconds.update_cpu

    peers = [name for name in taken if name != OURS]
    median = {name: statistics.median(seconds.wall for seconds in rounds) for name, rounds in taken.items()}
    cpu = {name: statistics.median(seconds.cpu for seconds in rounds) for name, rounds in taken.items()}
    return {
        "seconds": {name: [seconds._asdict() for seconds in rounds] for name, rounds in taken.items()},
        "median_seconds": median,
        "median_cpu_seconds": cpu,
        "median_cpu_seconds_without_update": {
            name: statistics.median(map(gradients, rounds)) for name, rounds in taken.items()
        },
        "images_per_second": {name: batch / seconds for name, seconds in median.items()},
        "times_faster": {name: ratios(name, lambda seconds: seconds.wall) for name in peers},
        "times_faster_cpu": {name: ratios(name, lambda seconds: seconds.cpu) for name in peers},
        "times_faster_cpu_without_update": {name: ratios(name, gradients) for name in peers},
        "share_of_matrix_ceiling": {
            name: gflop.get(name, gflop[OURS]) / seconds / peak for name, seconds in median.items()
        },
        "share_of_matrix_ceiling_cpu": {
            name: gflop.get(name, gflop[OURS]) / seconds / peak_cpu for name, seconds in cpu.items()
        },
    }


def makers(
    bench: MaskRCNNBench, precision: Precision, scene: Scene, device: torch.device
) -> dict[str, Callable[[], Contender]]:
    """name -> what makes the contender; it may raise Absent."""
    autocast = autocast_for(replace(bench.system, precision=precision), device)
    loop = {"lr": LR, "decay": DECAY, "autocast": autocast}

    def theirs(memory: torch.memory_format) -> Contender:
        return torchvision_contender(torchvision_peer(bench, device, memory), scene, **loop)

    def facebooks() -> Contender:
        model = detectron2_model(bench.model, bench.classes)
        calm(model, ("conv3.norm", "conv2.norm"), bench.model.depth)
        return detectron2_contender(model.to(device), scene, **loop)

    found: dict[str, Callable[[], Contender]] = {
        OURS: partial(our_contender, bench, precision, scene, device),
        "torchvision": partial(theirs, torch.contiguous_format),
        "torchvision channels_last": partial(theirs, torch.channels_last),
        "detectron2": facebooks,
    }
    return found


def recipe_of(bench: MaskRCNNBench) -> Recipe[MaskRCNNModel, InstanceInput]:
    """Settings of a run of this batch."""
    return Recipe(
        task="maskrcnn",
        model=bench.model,
        input=InstanceInput(),
        target_data="coco",
        global_batch=bench.batch,
        images_seen=100 * bench.batch,
        bn_span=bench.batch,
        optim=Optim(lr=LR, momentum=0.9, weight_decay=DECAY),
    )


def our_model(bench: MaskRCNNBench, device: torch.device) -> Segmenter:
    """The segmenter with the same weights on every call."""
    settings, photo = bench.model, InstanceInput()
    network = MaskRCNN(settings, bench.classes)
    initialise_mask_rcnn(network, torch.Generator().manual_seed(0))
    calm(network.backbone.body, ("bn3", "bn2"), settings.depth)
    model = Segmenter(network, mean=photo.mean, std=photo.std, settings=settings).to(device)
    return model.to(memory_format=torch.channels_last) if bench.system.channels_last else model  # type: ignore[call-overload]


def calm(trunk: nn.Module, names: tuple[str, str], depth: int) -> None:
    """Let each residual block add LAST_NORM of what it would; names: its last norm's with three convolutions, with two."""
    name = names[0] if depth >= 50 else names[1]
    for path, module in trunk.named_modules():
        if path.endswith(name):
            cast(Tensor, module.weight).detach().fill_(LAST_NORM)


def our_contender(
    bench: MaskRCNNBench, precision: Precision, scene: Scene, device: torch.device, *, graph: bool = False
) -> Contender:
    """The training step of a run, on the scene's batch; with graph, replayed as `--system.graph` does."""
    system = replace(bench.system, images_per_forward=bench.batch, precision=precision, compile=False, graph=graph)
    recipe = recipe_of(bench)
    plan = make_plan(recipe, system, world=1, most=bench.batch, train_images=117_266, val_images=5000)
    model = our_model(bench, device).train()
    configure_loss_groups(model, plan)
    give_proposals(model, scene.proposals)
    optimiser = SGD(named_parameters(model, recipe.optim.decay_on), recipe.optim)
    scaler = LossScaler("dynamic", 65536.0, device=device) if precision == "fp16" else None
    step = TrainStep(State(model, optimiser, None, scaler, Meters(device)), plan, system, device)
    batch = scene.batch
    if system.channels_last:
        batch = replace(batch, images=batch.images.contiguous(memory_format=torch.channels_last))
    backbone, network = model.network.backbone, model.network
    parts = (
        (model, "_input", "input"),
        (backbone.body, "forward", "trunk"),
        (backbone.fpn, "forward", "pyramid"),
        (network.rpn.head, "forward", "proposal head"),
        (network.rpn.head, "at", "proposal head"),
        (model, "_anchors_of", "proposals"),
        (segmenter, "proposals", "proposals"),
        (model, "_sample_anchors", "matching and sampling"),
        (model, "_sample_regions", "matching and sampling"),
        (model, "_pool", "pooling"),
        (network.roi_heads, "boxes", "box head"),
        (network.roi_heads, "masks", "mask head"),
        (segmenter, "mask_targets", "mask targets"),
        (model, "_anchor_losses", "losses"),
        (model, "_box_losses", "losses"),
        (model, "_mask_losses", "losses"),
    )
    sampled = (model, "_sample_regions", lambda regions: regions.positive.sum())
    return Contender(lambda: step([batch], Rates(LR, LR))["loss"], parts, sampled, optimiser)


def give_proposals(model: Segmenter, regions: Tensor) -> None:
    """From now on the model goes on with these regions (B, P, 4) when it has made its own."""
    look = model._look

    def given(batch: Any) -> Any:
        return look(batch)._replace(regions=regions, valid=torch.ones_like(regions[..., 0], dtype=torch.bool))

    model._look = given


def torchvision_peer(bench: MaskRCNNBench, device: torch.device, memory: torch.memory_format) -> nn.Module:
    """torchvision's model with the weights of `our_model`."""
    model = torchvision_model(bench.model, bench.classes, memory)
    model.load_state_dict(our_model(bench, torch.device("cpu")).network.state_dict())
    return model.to(device)
