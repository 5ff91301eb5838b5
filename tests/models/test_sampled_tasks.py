"""Samplers and class weights of the workloads: classes of photos, draws and their samples, shapes that hold every step."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from instance_sets import make_instances
from messages import raises
from photo_folders import paint

from paceline._utils.errors import RecipeError
from paceline.config.plan import limit_steps, make_plan
from paceline.config.recipe import check_recipe, override
from paceline.config.recipes import RECIPES
from paceline.config.run import RunOptions
from paceline.config.system import System
from paceline.data.index.manifest import Manifest
from paceline.data.loader.sampler import AGAIN
from paceline.data.prepare.auto_prepare import prepare_if_needed
from paceline.models.registry import get_workload
from paceline.training import open_data


def _task(recipe, root, **limits) -> Any:
    workload = get_workload(recipe.task)
    return workload.open(recipe, Manifest.load(prepare_if_needed(root, kind=workload.kind)), **limits)


def test_balanced_classes_are_drawn_equally_and_a_photo_drawn_again_is_cropped_anew(tmp_path):
    for label, photos in (("ant", 9), ("bee", 2), ("cat", 4)):
        for number in range(photos):
            paint(tmp_path / "train" / label / f"{number}.jpg", size=(60, 50))
        paint(tmp_path / "val" / label / "0.jpg")
    recipe = override(
        RECIPES["classify-demo"](),
        {"sampler": "class-balanced", "global_batch_size": 15, "optim.lr": 0.1, "bn_batch_size": 1},
    )
    task = _task(recipe, tmp_path)
    labels = task.data.train_index.labels
    for step in range(8):  # an epoch each
        epochs, places = task.data.samples(step)
        assert Counter(labels[task.data.train_numbers[places]].tolist()) == {0: 5, 1: 5, 2: 5}
        assert set((epochs % AGAIN).tolist()) == {step}
    assert task.facts["draws"].endswith("bee 2 -> 5, cat 4 -> 5, ant 9 -> 5")
    epochs, places = task.data.samples(0)
    twice = [
        int(epoch)
        for epoch, place in zip(epochs, places)
        if labels[place] == 1 and place == min(places[labels[places] == 1])
    ]
    assert len(twice) > 1
    pixels = {task.data.sample(epoch, int(min(places[labels[places] == 1])))[0].tobytes() for epoch in twice}
    assert len(pixels) == len(twice)
    part = _task(recipe, tmp_path, limit_train=6)
    five_epochs = np.concatenate([part.data.samples(step)[1] for step in range(2)])
    assert Counter(labels[part.data.train_numbers[five_epochs]].tolist()) == {0: 10, 1: 10, 2: 10}


@pytest.mark.parametrize("name", ["ssd-demo", "maskrcnn-demo"])
def test_photos_with_objects_are_repeated_by_their_rarest_class(name, tmp_path):
    root = make_instances(tmp_path / "set", train=20, val=3)
    recipe = override(RECIPES[name](), {"sampler": "repeat-factor", "repeat_threshold": 1.0})
    task = _task(recipe, root, limit_train=13)
    own = [set(task.data.train.classes[task.data.wanted_rows(int(number))].tolist()) for number in task.data.train_numbers]
    shares = {label: sum(label in found for found in own) / 13 for label in set().union(*own)}
    assert len(shares) > 1 and any(len(found) == 1 for found in own)
    factors = np.array([max([1.0, *(math.sqrt(1 / shares[label]) for label in found)]) for found in own])
    steps = 400
    draws = np.concatenate([task.data.samples(step)[1] for step in range(steps)])
    epochs = len(draws) / 13
    np.testing.assert_allclose(np.bincount(draws, minlength=13) / epochs, factors * 13 / factors.sum(), atol=0.15)
    if name == "maskrcnn-demo":
        plan = limit_steps(make_plan(recipe, System(), world=1, most=512, train_images=13, val_images=3), steps=40)
        taken = {task.data.shapes.of_step(step, task.data.train_numbers[task.data.samples(step)[1]]) for step in range(40)}
        assert set(task.data.shapes.of_run(plan)) == taken and task.data.shapes.largest_of_run(plan) in taken
    plain = _task(replace(recipe, sampler="random", repeat_threshold=0.001), root)
    assert "draws" not in plain.facts
    assert sorted(np.concatenate([plain.data.samples(step)[1] for step in range(20)]).tolist()).count(0) in (
        math.floor(20 * recipe.global_batch_size / plain.data.train_images),
        math.ceil(20 * recipe.global_batch_size / plain.data.train_images),
    )


def test_class_weights_follow_from_what_a_run_learns_and_reach_the_network(tmp_path):
    for label, photos in (("ant", 9), ("bee", 2), ("cat", 4)):
        for number in range(photos):
            paint(tmp_path / "photos" / "train" / label / f"{number}.jpg")
        paint(tmp_path / "photos" / "val" / label / "0.jpg")
    recipe = override(RECIPES["classify-demo"](), {"model.class_weights": "balanced"})
    task = _task(recipe, tmp_path / "photos")
    model: Any = task.build(torch.device("cpu"))
    torch.testing.assert_close(model.class_weights, torch.tensor([15 / 27, 15 / 6, 15 / 12]))
    assert not any("class_weights" in name for name in model.state_dict())
    assert task.facts["class_weights"] == "bee 2 -> 2.5, cat 4 -> 1.25, ant 9 -> 0.556"
    assert task.workload.network.build(recipe, 3).class_weights.tolist() == [1, 1, 1]  # as an evaluation builds it
    plain = _task(RECIPES["classify-demo"](), tmp_path / "photos")
    built: Any = plain.build(torch.device("cpu"))
    assert built.class_weights is None and "class_weights" not in plain.facts
    recipe = override(RECIPES["ssd-demo"](), {"model.class_weights": "balanced"})
    task = _task(recipe, make_instances(tmp_path / "set", train=20, val=3), limit_train=13)
    rows = np.concatenate([task.data.wanted_rows(int(number)) for number in task.data.train_numbers])
    counts = np.bincount(task.data.train.classes[rows], minlength=len(task.data.classes) + 1)[1:]
    expected = [1.0, *(len(rows) / (np.count_nonzero(counts) * count) if count else 1.0 for count in counts)]
    model = task.build(torch.device("cpu"))
    torch.testing.assert_close(model.class_weights, torch.tensor(expected, dtype=torch.float32))


def test_what_no_sampler_does_is_refused(monkeypatch):
    for name in ("ssd-demo", "maskrcnn-demo"):
        recipe = replace(RECIPES[name](), sampler="class-balanced")
        with raises(RecipeError, "--sampler class-balanced", "--sampler repeat-factor"):
            get_workload(recipe.task).network.check(recipe)
    with pytest.raises(RecipeError, match=r"^--repeat-threshold 0.01: requires --sampler repeat-factor"):
        check_recipe(replace(RECIPES["classify-demo"](), repeat_threshold=0.01))
    # A data module that makes its order without DataModule.sampled.
    recipe = replace(RECIPES["classify-demo"](), sampler="class-balanced")
    task = SimpleNamespace(data=SimpleNamespace(), facts={}, recipe=recipe)
    own = SimpleNamespace(open=lambda *_, **__: task, kind="class-folder")
    monkeypatch.setattr(open_data, "check_recipe", lambda _: own)
    with raises(RecipeError, "--sampler class-balanced", "task"):
        open_data.open_task(recipe, RunOptions(), None, manifest=object())  # type: ignore[arg-type]
