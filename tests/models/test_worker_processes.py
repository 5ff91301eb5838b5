"""Worker processes give each task's own batches: the pixels, labels, boxes and masks that threads of this process give."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from instance_sets import make_instances

import paceline.models.datamodule as task_module
from paceline.config.plan import make_plan
from paceline.config.recipes import RECIPES
from paceline.config.run import RunOptions
from paceline.config.system import System
from paceline.data.loader.loader import Loader
from paceline.distributed.comm.launcher import SINGLE
from paceline.distributed.comm.world import open_distributed
from paceline.models.task import InputRank
from paceline.tools.bench.input_cases import task_loader
from paceline.training.open_data import open_task

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def objects(tmp_path_factory) -> Path:
    return make_instances(tmp_path_factory.mktemp("coco"), train=7, val=4)


def batches(task: Any, processes: bool, monkeypatch) -> list[Any]:
    made = []
    with monkeypatch.context() as patch:
        patch.setattr(
            task_module, "Loader", lambda **options: made.append(Loader(**{**options, "processes": processes})) or made[-1]
        )
        found = []
        system = System("cpu", num_workers=2)
        with task_loader(task, system, 2, CPU) as loader:
            for _, (_, given) in zip(range(4), loader):
                found += [{name: tensor.clone() for name, tensor in one.tensors().items()} for one in given]
        with task.data.val_loader(3, system, InputRank(0, 1, CPU, 2)) as loader:
            for _, given in loader:
                found += [{name: tensor.clone() for name, tensor in one.tensors().items()} for one in given]
    assert len(made) == 2
    assert not any(loader.why_threads for loader in made)
    return found


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("classify-demo", {"mixup_alpha": 0.5, "auto_augment": "trivialaugment"}),
        ("ssd-demo", {"mosaic_prob": 0.5}),
        ("maskrcnn-demo", {"copy_paste_prob": 0.5}),
    ],
)
def test_a_task_s_batches(name: str, changes: dict[str, Any], objects: Path, class_photos: Path, monkeypatch) -> None:
    recipe = RECIPES[name]()
    recipe = replace(recipe, input=replace(recipe.input, **changes), global_batch_size=4)
    data = class_photos if recipe.task == "classification" else objects
    with open_distributed(SINGLE, device=CPU) as world:
        task = open_task(recipe, RunOptions(data=str(data)), world)
        expected, found = batches(task, False, monkeypatch), batches(task, True, monkeypatch)
    assert len(expected) == len(found) > 4
    for ours, theirs in zip(found, expected, strict=True):
        for field, tensor in theirs.items():
            assert torch.equal(ours[field], tensor), field


def test_a_loader_of_few_images_renders_in_threads(class_photos: Path, monkeypatch) -> None:
    made: list[bool] = []
    monkeypatch.setattr(task_module, "Loader", lambda **options: made.append(options["processes"]))
    recipe, system, few = (
        replace(RECIPES["classify-demo"](), global_batch_size=2),
        System("cpu"),
        task_module.WORTH_PROCESSES,
    )
    with open_distributed(SINGLE, device=CPU) as world:
        task, place = open_task(recipe, RunOptions(data=str(class_photos)), world), InputRank(0, 1, CPU, 2)
    plan = make_plan(recipe, system, world=1, most=2, train_images=task.data.train_images, val_images=task.data.val_images)
    for images in (few - 2, few):
        task.data.train_loader(replace(plan, stop_after=images // 2), system, place)
        task.data.train_loader(replace(plan, stop_after=few), system, place, first=few - images // 2)
        task.data.val_numbers = np.zeros(images, np.int64)
        task.data.val_loader(2, system, place)
    assert made == [False] * 3 + [True] * 3
