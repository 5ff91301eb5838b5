"""The batches that a recipe takes of a prepared set, to be compared with those of the same photos in another container."""

from __future__ import annotations

from pathlib import Path

import torch

from paceline.config.plan import make_plan
from paceline.config.recipe import override
from paceline.config.recipes import RECIPES
from paceline.config.system import System
from paceline.data.index.manifest import Manifest
from paceline.models.registry import WORKLOADS
from paceline.models.task import InputRank


def batches(name: str, folder: Path, io_threads: int = 0) -> list[torch.Tensor]:
    """Every tensor of three training steps and of all validation batches of recipe `name` on the prepared set in `folder`."""
    recipe = override(RECIPES[name](), {"global_batch_size": 8, "bn_batch_size": 8, "optim.lr": 0.01})
    workload, system = WORKLOADS[recipe.task], System(io_threads=io_threads)
    task = workload.open(recipe, Manifest.load(folder))
    images = {"train_images": task.data.train_images, "val_images": task.data.val_images}
    plan, place = make_plan(recipe, system, world=1, most=8, **images), InputRank(0, 1, torch.device("cpu"), 2)
    with (
        task.data.train_loader(plan, system, place, first=0, one_batch=False) as train,
        task.data.val_loader(4, system, place) as val,
    ):
        taken = [batch.to("cpu", copy=True) for _ in range(3) for batch in next(train)[1]]
        taken += [batch.to("cpu", copy=True) for _, (batch,) in val]
    return [tensor for batch in taken for tensor in vars(batch).values()]
