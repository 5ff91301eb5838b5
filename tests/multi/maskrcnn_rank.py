"""One rank of the tests in test_maskrcnn_ranks.py: `train` and `eval` are the real command line; `steps FOLDER` takes one
training step for every cut of every case on this rank's part of the batch; `memory DATA FILE HOW` measures a training. The
small Mask R-CNN recipe is here too.

Letters: B = 8 images   K = 2 classes   C canvas side   most: images of a forward at most
"""

from __future__ import annotations

import json
import os
import resource
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from given_model import state_around
from torch import Tensor

from paceline.config.maskrcnn import RPN, InstanceFilter, InstanceInput, MaskHead, MaskRCNNModel, RoI
from paceline.config.plan import StepRates, make_plan
from paceline.config.recipe import Evaluation, Optim, Recipe
from paceline.config.run import RunOptions, RunSpec
from paceline.config.schedule import Schedule
from paceline.config.system import System
from paceline.data.batch import Batch, InstanceBatch, InstanceObjects, instance_batch
from paceline.data.index.manifest import Manifest
from paceline.data.prepare.auto_prepare import prepare_if_needed
from paceline.distributed.comm.launcher import read_launch
from paceline.distributed.comm.world import DistContext, open_distributed
from paceline.models.maskrcnn.model import init_mask_rcnn
from paceline.models.registry import WORKLOADS
from paceline.models.task import InputRank
from paceline.training.factory import build_model, build_state
from paceline.training.step import TrainStep

IMAGES, CLASSES, CANVAS, STEPS = 8, 2, 28, 8
# Shapes of inputs and of the photos in them, pixels.
LANDSCAPE, PORTRAIT = ((64, 96), (64, 85)), ((96, 64), (85, 64))

# (loss group, most), all of the same batch; each is taken on one rank and on two.
CUTS = [(0, 8), (0, 4), (0, 2), (4, 8), (4, 4), (4, 2), (2, 8), (2, 2)]
# Case -> cuts. Without objects: the second half of the batch (a whole rank), or all of it. Of two shapes: the first half
# landscapes, the second portraits, so that two ranks never hold the same.
CASES = {
    "full": CUTS,
    "second half empty": [(0, 8), (0, 2)],
    "all empty": [(0, 8)],
    "two shapes": [(0, 4), (0, 2)],
    "batch norm": [(0, 8), (0, 4)],
    "boxes alone": [(0, 8), (0, 2)],
}


def small() -> Recipe[MaskRCNNModel, InstanceInput]:
    """Eight steps of eight photos without statistics over images.

    All proposals train and all positives among them: which are drawn would follow from their order, and that, where two
    scores differ by a rounding error, from how the batch is cut.
    """
    return Recipe(
        task="instance-segmentation",
        model=MaskRCNNModel(
            depth=10,
            width=8,
            norm="group",
            freeze_stages=0,
            fpn_channels=16,
            rpn=RPN(
                anchor_sizes=(12.0, 24.0, 36.0, 48.0, 64.0),
                fg_iou=0.5,
                samples_per_image=32,
                pre_nms_topk_train=60,
                pre_nms_topk_test=60,
                post_nms_topk_train=24,
                post_nms_topk_test=24,
            ),
            roi=RoI(fg_iou=0.3, samples_per_image=40, positive_fraction=1.0, fc_channels=32),
            mask=MaskHead(num_convs=1, target_buffer_size=CANVAS),
            detect=InstanceFilter(max_detections=20, topk_candidates=100),
        ),
        input=InstanceInput(min_size=(64,), max_size=96, min_crop_scale=0.8, color_jitter="matrix", skip_empty=False),
        target_data="none",
        global_batch_size=IMAGES,
        max_images=IMAGES * STEPS,
        bn_batch_size=1,
        optim=Optim(lr=0.02, momentum=0.9, weight_decay=1e-4),
        schedule=Schedule(name="constant"),
        eval=Evaluation(unit="fraction"),
    )


def recipe_of(case: str, group: int) -> Recipe[MaskRCNNModel, InstanceInput]:
    """The small recipe with losses over `group` images; without decay, so that the first velocity is the gradient."""
    recipe = small()
    model = replace(recipe.model, loss_normalizer_images=group, masks=case != "boxes alone")
    if case == "batch norm":
        model = replace(model, norm="batch", fpn_norm="batch")
        recipe = replace(recipe, bn_batch_size=4)
    return replace(recipe, model=model, optim=replace(recipe.optim, weight_decay=0.0))


def objects_of(image: int, case: str, size: tuple[int, int]) -> InstanceObjects:
    """Discs in one image: few in the first half of the batch, more (another number of slots) or none in the second."""
    random = np.random.default_rng(image)
    first_half = image < IMAGES // 2
    count = {"second half empty": 3 * first_half, "all empty": 0}.get(case, 1 + image if first_half else 9)
    height, width = size
    low = random.uniform(0.02, 0.5, (count, 2))
    boxes = np.concatenate((low, low + random.uniform(0.2, 0.45, low.shape)), axis=1) * (width, height, width, height)
    y, x = np.mgrid[: CANVAS + 2, : CANVAS + 2] - (CANVAS + 1) / 2
    disc = (x * x + y * y <= (CANVAS / 2) ** 2).astype(np.uint8)
    frames = np.concatenate((boxes[:, :2], (boxes[:, 2:] - boxes[:, :2]) / CANVAS), axis=1)
    return InstanceObjects(
        boxes=boxes.astype(np.float32),
        classes=random.integers(1, CLASSES + 1, count),
        canvases=np.repeat(disc[None], count, axis=0),
        frames=frames.astype(np.float32),
        size=size,
        key=1 + image,
    )


def forward_of(case: str, images: range) -> InstanceBatch:
    """One forward's images, as the input path would pad them."""
    shape, size = PORTRAIT if case == "two shapes" and images.start >= IMAGES // 2 else LANDSCAPE
    pixels = [np.random.default_rng(image).integers(0, 200, (3, *shape), dtype=np.uint8) for image in images]
    tensor = torch.from_numpy(np.stack(pixels)).contiguous(memory_format=torch.channels_last)
    return instance_batch(tensor, [objects_of(image, case, size) for image in images], torch.tensor(list(images)))


def step(world: DistContext, case: str, group: int, most: int) -> dict[str, Tensor]:
    """This rank's losses of one step, the gradients, and the running statistics after it."""
    recipe = recipe_of(case, group)
    plan = make_plan(recipe, System(), world=world.world, most=most, train_images=80, val_images=8)
    run = RunSpec("steps", recipe, "cpu", System(precision="fp32"), plan, RunOptions())
    model = WORKLOADS["instance-segmentation"].network.build(recipe, CLASSES)
    init_mask_rcnn(model.network, torch.Generator().manual_seed(3))
    state = state_around(lambda device: model, run, world)
    first, each = world.rank * plan.images_per_rank, plan.micro_batch_size
    starts = range(first, first + plan.images_per_rank, each)
    batches = [forward_of(case, range(start, start + each)) for start in starts]
    losses = TrainStep(state, plan, run.system, torch.device("cpu"))(batches, StepRates(0.02, 0.02))
    found = {f"loss.{name}": value for name, value in losses.items()}
    found.update({name: value for name, value in state.optimizer.state().items() if name.startswith("velocity.")})
    found.update({f"buffer.{name}": value for name, value in model.named_buffers() if "running_" in name})
    return {name: value.detach().clone() for name, value in found.items()}


def memory(data: Path, tried: bool) -> list[int]:
    """Peak resident bytes before the first step of a run, after the step tried first where it is, and after each step.

    The steps' photos have three sizes, and come with the smallest first.
    """
    recipe = small()
    recipe = replace(
        recipe,
        model=replace(recipe.model, width=16, mask=replace(recipe.model.mask, target_buffer_size=56)),
        input=replace(recipe.input, min_size=(96, 192, 288), max_size=384),
        global_batch_size=4,
        max_images=4 * 10,
    )
    task = WORKLOADS["instance-segmentation"].open(recipe, Manifest.load(prepare_if_needed(data, kind="boxes")))
    with open_distributed(read_launch({}), device=torch.device("cpu")) as world:
        plan = make_plan(
            recipe, System(), world=1, most=4, train_images=task.data.train_images, val_images=task.data.val_images
        )
        run = RunSpec("memory", recipe, "cpu", System(precision="fp32"), plan, RunOptions())
        state = build_state(build_model(task, run, world), run, world)
        place = InputRank(0, 1, torch.device("cpu"), 1)
        with task.data.train_loader(plan, run.system, place, first=0, one_batch=False) as loader:
            batches = sorted((clone(batch) for _, (batch,) in loader), key=lambda batch: batch.images.numel())
        take = TrainStep(state, plan, run.system, torch.device("cpu"))
        peaks = [peak()]
        if tried:
            take.discard([task.data.warm_up_batch(plan, place.device)])
        peaks.append(peak())
        for batch in batches:
            take([batch], StepRates(0.02, 0.02))
            peaks.append(peak())
    return peaks


def clone(batch: Batch) -> Batch:
    """The loader takes its images' memory back."""
    return replace(batch, images=batch.images.clone(memory_format=torch.preserve_format))


def peak() -> int:
    """Bytes of memory that this process had at most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> int:
    if sys.argv[1] not in ("steps", "memory"):
        from training_rank import main as command_line  # loads what the tests of this file do without

        return command_line(sys.argv[1:])
    torch.set_num_threads(1)
    if sys.argv[1] == "memory":
        data, out, tried = sys.argv[2:]
        Path(out).write_text(json.dumps(memory(Path(data), tried == "tried")))
        return 0
    with open_distributed(read_launch(os.environ), device=torch.device("cpu"), collective_seconds=60) as world:
        found = {
            f"{case} {group} {most}": step(world, case, group, most) for case, cuts in CASES.items() for group, most in cuts
        }
        torch.save(found, Path(sys.argv[2]) / f"{world.rank}.pt")
    return 0
