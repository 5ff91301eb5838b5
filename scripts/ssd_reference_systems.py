"""The two systems of ssd_reference.py: our own training step, and the MLPerf reference's network and loss with torch.optim.SGD.

Both read their first weights and their batches from a folder DUMP, written by `write_start`; each runs in a process of one thread.
Letters: B images of a step   T steps   S = 300 pixels   M = T * B samples
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Literal, cast
from unittest.mock import MagicMock

import numpy as np
import torch
import torchvision

from paceline.config.plan import make_plan, step_rates
from paceline.config.recipe import Optim
from paceline.config.recipes.ssd import MLPERF_IMAGES, MLPERF_LR, SSDRecipe, mlperf
from paceline.config.run import RunOptions, RunSpec
from paceline.config.schedule import Schedule
from paceline.config.system import System
from paceline.data.batch import Objects, detection_batch
from paceline.distributed.comm.launcher import read_launch
from paceline.distributed.comm.world import open_distributed
from paceline.models.registry import WORKLOADS
from paceline.models.ssd.loss import SSDWithLoss
from paceline.models.ssd.model import init_ssd
from paceline.models.task import Task
from paceline.models.weights.formats.mlperf import to_reference
from paceline.training.factory import build_model, build_state
from paceline.training.step import TrainStep

CLASSES = 80
WARMUP, DROP = 20, 70  # steps of the warm-up; the step at which lr falls to a tenth
LOSSES = ("loss", "class", "box")
Control = Literal["", "weights", "layout"]
NOISE = 1e-7  # relative, standard deviation: a weight's last bit


def our_recipe(batch: int, steps: int) -> SSDRecipe:
    """The reference's settings at B images, with a warm-up and one drop; `steps` must be above DROP.

    Residual branches start at zero: an untrained trunk of full depth magnifies rounding a hundredfold within two steps.
    """
    base = mlperf()
    return replace(
        base,
        model=replace(base.model, zero_init_residual=True),
        global_batch_size=batch,
        epochs=0,
        max_images=batch * steps,
        bn_batch_size=batch,
        optim=Optim(lr=MLPERF_LR * batch / MLPERF_IMAGES, momentum=0.9, weight_decay=5e-4),
        schedule=Schedule(name="multistep", unit="fraction", warmup=WARMUP / steps, milestones=(DROP / steps,)),
    )


def plain_lr(step: int, batch: int) -> float:
    peak = 2.5e-3 * batch / 32
    return peak * min(1.0, (step + 1) / WARMUP) * (0.1 if step >= DROP else 1.0)


def first_model(recipe: SSDRecipe) -> SSDWithLoss:
    """The network that both sides start from."""
    model = WORKLOADS["detection"].network.build(recipe, CLASSES)
    zero = recipe.model.zero_init_residual
    init_ssd(model.network, torch.Generator().manual_seed(recipe.seed), zero_init_residual=zero)
    return model


def ours(dump: Path, recipe: SSDRecipe, steps: int) -> list[dict[str, float]]:
    """Losses of our own step."""
    torch.set_num_threads(1)
    model = first_model(recipe)
    plan = make_plan(recipe, System(), world=1, most=recipe.global_batch_size, train_images=1000, val_images=1)
    run = RunSpec("trajectory", recipe, "cpu", System(), plan, RunOptions())
    with open_distributed(read_launch({}), device=torch.device("cpu")) as world:
        task = cast(Task, SimpleNamespace(build=lambda device: model))
        state = build_state(build_model(task, run, world), run, world)
        step_once = TrainStep(state, plan, System(), torch.device("cpu"))
        losses = []
        for step, part in zip(range(steps), batches(dump, recipe.global_batch_size)):
            images = torch.from_numpy(np.stack([pixels for pixels, _ in part])).permute(0, 3, 1, 2)
            batch = detection_batch(images, [objects for _, objects in part], torch.arange(len(part)))
            found = step_once([batch], step_rates(recipe, plan, step))
            losses.append({name: float(found[name]) for name in LOSSES})
            print(f"ours {recipe.model.parity.tie} {recipe.optim.momentum_style} {step} {losses[-1]}", flush=True)
    return losses


def write_start(dump: Path, recipe: SSDRecipe, samples: Sequence[tuple[np.ndarray, Objects]]) -> None:
    """First weights of both sides, a backbone that the reference can load, and M samples of pixels (S, S, 3) uint8."""
    torch.save(to_reference(first_model(recipe).network.state_dict()), dump / "first.pth")
    torch.save(torchvision.models.resnet34(weights=None).state_dict(), dump / "backbone.pth")
    np.savez(
        dump / "samples.npz",
        pixels=np.stack([pixels for pixels, _ in samples]),
        starts=np.cumsum([0, *(len(objects.classes) for _, objects in samples)]),
        boxes=np.concatenate([objects.boxes for _, objects in samples]),
        classes=np.concatenate([objects.classes for _, objects in samples]),
    )


def batches(dump: Path, size: int) -> list[list[tuple[np.ndarray, Objects]]]:
    """The dumped samples, B by B."""
    with np.load(dump / "samples.npz") as file:
        pixels, starts, boxes, classes = (file[name] for name in ("pixels", "starts", "boxes", "classes"))
    samples = [
        (pixels[k], Objects(boxes[starts[k] : starts[k + 1]], classes[starts[k] : starts[k + 1]]))
        for k in range(len(pixels))
    ]
    return [samples[k : k + size] for k in range(0, len(samples), size)]


def load_reference(folder: Path) -> SimpleNamespace:
    """The reference's modules; their logging package is not needed and stands as a mock."""
    for name in ("mlperf_logger", "mlperf_logging", "mlperf_logging.mllog"):
        sys.modules[name] = MagicMock()
    sys.path.insert(0, str(folder))
    names = ("utils", "base_model", "ssd300", "train")
    return SimpleNamespace(**{name: importlib.import_module(name) for name in names})


def reference(dump: Path, folder: Path, batch: int, steps: int, control: Control = "") -> list[dict[str, float]]:
    """Losses of the reference's network, loss and encoder with torch.optim.SGD, from DUMP/first.pth.

    control  weights: every first weight is off by a random NOISE of itself; layout: the network in NHWC, whose kernels add up in
             another order; empty: as it is, NCHW
    """
    torch.set_num_threads(1)
    theirs = load_reference(folder)
    model = theirs.ssd300.SSD300(CLASSES + 1, model_path=str(dump / "backbone.pth"))
    missing, unexpected = model.load_state_dict(torch.load(dump / "first.pth"), strict=False)
    assert not unexpected and all(name.endswith("num_batches_tracked") for name in missing), (missing, unexpected)
    if control == "weights":
        random = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for weight in model.parameters():
                noise = NOISE * torch.randn(weight.shape, generator=random, dtype=torch.float64)
                weight.copy_(weight.double() * (1 + noise))
    layout = torch.channels_last if control == "layout" else torch.contiguous_format
    model.to(memory_format=layout)
    for head in (*model.loc, *model.conf):  # the reference's view() of their outputs asks for NCHW
        head.register_forward_hook(lambda module, given, output: output.contiguous())
    default = theirs.train.dboxes300_coco()
    loss_of, transform = theirs.base_model.Loss(default), theirs.utils.SSDTransformer(default)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9, weight_decay=5e-4)
    losses = []
    for step, part in zip(range(steps), batches(dump, batch)):
        images = torch.stack(
            [transform.normalize(torch.from_numpy(pixels).permute(2, 0, 1).float() / 255) for pixels, _ in part]
        )
        coded = [
            transform.encoder.encode(torch.from_numpy(objects.boxes), torch.from_numpy(objects.classes))
            for _, objects in part
        ]
        boxes = torch.stack([box for box, _ in coded]).transpose(1, 2).contiguous()
        labels = torch.stack([label for _, label in coded])
        deltas, logits = model(images.contiguous(memory_format=layout))
        loss = loss_of(deltas, logits, boxes, labels)
        with torch.no_grad():  # the loss of perfect boxes is the class loss
            class_loss = loss_of(loss_of._loc_vec(boxes), logits, boxes, labels)
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = plain_lr(step, batch)
        optimizer.step()
        optimizer.zero_grad()
        found = (loss.item(), class_loss.item(), loss.item() - class_loss.item())
        losses.append(dict(zip(LOSSES, found)))
        print(f"reference {control} {step} {losses[-1]}", flush=True)
    return losses
