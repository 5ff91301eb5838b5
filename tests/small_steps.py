"""Training steps of all three workloads, small enough to be taken twenty times, and batches for them, each another one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from given_model import state_around
from torch import Tensor

from paceline.config.plan import BatchPlan, make_plan
from paceline.config.recipe import Recipe, override
from paceline.config.recipes import RECIPES
from paceline.config.run import RunOptions, RunSpec
from paceline.config.system import System
from paceline.data.batch import Batch, DetectionBatch, InstanceBatch
from paceline.distributed.comm.launcher import read_launch
from paceline.distributed.comm.world import DistContext, open_distributed
from paceline.models.registry import WORKLOADS
from paceline.training.state import State

CLASSES, SLOTS = 3, 8
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "classification": ("classify-demo", {"model.depth": 10, "model.width": 8, "input.image_size": 32}),
    "detection": ("ssd-demo", {"model.depth": 10, "model.width": 4, "model.extra_channels": 8, "input.image_size": 96}),
    "instance-segmentation": (
        "maskrcnn-demo",
        {
            "model.width": 8,
            "model.fpn_channels": 16,
            "model.roi.fc_channels": 16,
            "model.roi.samples_per_image": 12,
            "model.mask.num_convs": 1,
            "model.mask.target_buffer_size": 14,
            "model.rpn.samples_per_image": 16,
            "model.rpn.pre_nms_topk_train": 40,
            "model.rpn.post_nms_topk_train": 16,
            "model.rpn.anchor_sizes": (12.0, 24.0, 36.0, 48.0, 64.0),
            "input.min_size": (64,),
            "input.max_size": 96,
        },
    ),
}  # fmt: skip


def small(task: str, changes: Mapping[str, Any] | None = None) -> Recipe:
    """The tiny recipe, tinier; `changes` by their dotted names, which must name optim.lr and a batch of 2 or more."""
    name, sizes = NETWORKS[task]
    return override(
        RECIPES[name](), {**sizes, "global_batch_size": 4, "bn_batch_size": 2, "optim.lr": 0.01, **(changes or {})}
    )


def plan_of(recipe: Recipe, system: System, *, steps: int = 20, world: int = 1) -> BatchPlan:
    """For a run of so many steps on so many ranks, each in forwards of at most `system.micro_batch_size` images."""
    images = steps * recipe.global_batch_size
    recipe = replace(recipe, max_images=images, epochs=0)
    return make_plan(
        recipe,
        system,
        world=world,
        most=system.micro_batch_size or recipe.global_batch_size,
        train_images=images,
        val_images=1,
    )


def state_of(
    recipe: Recipe,
    plan: BatchPlan,
    system: System,
    device: torch.device,
    moved: Callable[[torch.nn.Module], torch.nn.Module] | None = None,
    world: DistContext | None = None,
) -> State:
    """Fresh, with the recipe's first weights.

    world  the ranks that train; None: this one alone
    moved  takes the model to where its steps are taken, before anything is made of its weights; None: to `device`
    """
    workload = WORKLOADS[recipe.task]

    def build(device: torch.device) -> torch.nn.Module:
        model = workload.network.build(recipe, CLASSES)
        workload.network.initialize(recipe, model, torch.Generator().manual_seed(recipe.seed))
        return model.to(device) if moved is None else moved(model)

    run = RunSpec("small", recipe, "cpu", system, plan, RunOptions())
    with open_distributed(read_launch({}), device=device) if world is None else nullcontext(world) as there:
        return state_around(build, run, there)


def batch_of(recipe: Recipe, images: int, seed: int, *, wider: int = 0) -> Batch:
    """Noise, with objects of other numbers, places and classes for each seed.

    wider  pixels, of an input that takes any shape
    """
    workload, random = WORKLOADS[recipe.task], torch.Generator().manual_seed(seed)
    height, width = workload.network.largest(recipe)
    made = workload.data().dummy_batch(recipe, images, (height, width + wider), SLOTS)

    def drawn(most: int, *shape: int) -> Tensor:
        return torch.randint(0, most, shape, generator=random)

    changes: dict[str, Tensor] = {"images": drawn(256, images, height, width + wider, 3).byte().permute(0, 3, 1, 2)}
    if not isinstance(made, DetectionBatch | InstanceBatch):
        return replace(made, **changes, labels=drawn(CLASSES, images))
    order = torch.randperm(SLOTS, generator=random)
    there = torch.arange(SLOTS) < drawn(SLOTS + 1, images, 1)
    changes["boxes"] = made.boxes[:, order] * there.unsqueeze(2)
    changes["labels"] = (1 + drawn(CLASSES, images, SLOTS)) * there
    if isinstance(made, InstanceBatch):
        left_top, right_bottom = changes["boxes"].split(2, dim=2)
        changes["frames"] = torch.cat((left_top, (right_bottom - left_top).clamp(min=14) / 14), dim=2)
        changes["canvases"] = drawn(2, *made.canvases.shape).byte()
        changes["keys"] = drawn(2**32, images)
    return replace(made, **changes)
