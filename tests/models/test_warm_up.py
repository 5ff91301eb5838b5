"""The batch of the step that is thrown away: like those that the loader brings, and made without reading an image."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from instance_sets import make_instances
from tiny_runs import make_photos

from paceline.config.plan import BatchPlan, make_plan
from paceline.config.recipes.resnet50 import demo as classify_demo
from paceline.config.recipes.ssd import demo as ssd_demo
from paceline.config.system import System
from paceline.data.index.index import Index
from paceline.data.index.manifest import Manifest
from paceline.data.prepare.auto_prepare import prepare_if_needed
from paceline.models.registry import WORKLOADS
from paceline.models.task import InputRank, Task

ALONE = InputRank(0, 1, torch.device("cpu"), 1)


def classification(folder: Path) -> Task:
    manifest = Manifest.load(prepare_if_needed(make_photos(folder / "photos")))
    return WORKLOADS["classification"].open(replace(classify_demo(), global_batch_size=8, bn_batch_size=4), manifest)


def detection(folder: Path) -> Task:
    root = make_instances(folder / "instances", train=8, val=2)
    return WORKLOADS["detection"].open(
        replace(ssd_demo(), global_batch_size=8, bn_batch_size=4), Manifest.load(prepare_if_needed(root, kind="boxes"))
    )


def plan_of(task: Task) -> BatchPlan:
    recipe = task.recipe
    return make_plan(
        recipe, System(), world=1, most=4, train_images=task.data.train_images, val_images=task.data.val_images
    )


@pytest.mark.parametrize("open_task", [classification, detection])
def test_it_is_shaped_and_laid_out_as_the_loaders_batches_are(open_task, tmp_path, monkeypatch):
    task = open_task(tmp_path)
    plan = plan_of(task)
    with monkeypatch.context() as blind:
        blind.delattr(Index, "read")
        made = task.data.warm_up_batch(plan, torch.device("cpu"))
    with task.data.train_loader(plan, System(), ALONE, first=0, one_batch=False) as loader:
        _, (batch, _) = next(iter(loader))
        assert type(made) is type(batch)
        for field in fields(batch):
            ours, theirs = getattr(made, field.name), getattr(batch, field.name)
            assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), field.name
        assert made.images.stride() == batch.images.stride()
