"""A classifier's last layer that begins fitted: the fit by its own condition, and the task's photos behind a trunk."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from messages import check_text
from PIL import Image

from paceline._utils.errors import RecipeError
from paceline.config.recipe import override
from paceline.config.recipes import RECIPES
from paceline.data.index.manifest import Manifest
from paceline.data.prepare.auto_prepare import prepare_if_needed
from paceline.models.registry import get_workload
from paceline.models.resnet import task as resnet_task
from paceline.models.resnet.task import PENALTY, fit_linear_probe, linear_probe


def test_the_fit_is_where_the_objective_has_no_slope():
    random = torch.Generator().manual_seed(3)
    features = torch.randn(90, 7, generator=random, dtype=torch.float64) * torch.arange(1.0, 8) + 5
    features[:, 4] = 2.5  # a feature that never changes
    labels = torch.randint(0, 3, (90,), generator=random)
    weight, bias = linear_probe(features, labels, 4)
    chance = torch.softmax(features @ weight.T + bias, 1).numpy()
    mean, scale = features.mean(0).numpy(), features.std(0, correction=0).numpy()
    scale[4] = 1
    wrong = chance - np.eye(4)[labels.numpy()]
    slope = wrong.T @ ((features.numpy() - mean) / scale) / 90 + PENALTY * weight.numpy() * scale
    assert abs(slope).max() < 1e-4 and abs(wrong.mean(0)[:3]).max() < 1e-4
    assert chance[:, 3].max() < 1e-3  # no photo shows the last class
    assert weight.isfinite().all() and bias.isfinite().all()


@pytest.fixture
def photos(tmp_path):
    """Three classes that differ in color, four photos each."""
    random = np.random.default_rng(1)
    for label, color in (("blue", (20, 30, 200)), ("green", (30, 180, 40)), ("red", (200, 40, 20))):
        for number in range(4):
            for split in ("train", "val"):
                file = tmp_path / split / label / f"{number}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                noise = random.integers(-20, 20, (50, 60, 3))
                Image.fromarray((np.array(color) + noise).clip(0, 255).astype(np.uint8)).save(file)
    return tmp_path


def test_photos_are_told_apart_before_the_first_step_and_the_trunk_stays(photos, monkeypatch):
    changes = {
        "model.depth": 10,
        "model.width": 8,
        "input.image_size": 64,
        "input.eval_crop_size": 64,
        "input.eval_resize_size": 64,
    }
    recipe = override(RECIPES["classify-demo"](), changes)
    manifest = Manifest.load(prepare_if_needed(photos, kind="class-folder"))
    task: Any = get_workload("classification").open(recipe, manifest)
    model: Any = task.build(torch.device("cpu")).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    line = fit_linear_probe(task.data, model)
    assert check_text(line, "12 training", "2 views", "100.0%") and model.training
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {"network.fc.weight", "network.fc.bias"}
    # However the views are cut into forwards.
    fitted = model.network.fc.weight.detach().clone()
    monkeypatch.setattr(resnet_task, "FORWARD", 5)
    fit_linear_probe(task.data, model)
    torch.testing.assert_close(model.network.fc.weight, fitted, rtol=1e-2, atol=1e-2)


def test_a_trunk_that_trains_with_its_batches_statistics_is_refused():
    changes = {"model.depth": 10, "model.width": 8, "model.head_init": "linear-probe"}
    build = get_workload("classification").network.build
    with pytest.raises(RecipeError, match=r"Add --model\.norm frozen"):
        build(override(RECIPES["classify-demo"](), changes), 3)
    build(override(RECIPES["classify-demo"](), {**changes, "model.norm": "frozen"}), 3)
    build(override(RECIPES["classify-demo"](), {**changes, "model.freeze_stages": 5}), 3)  # frozen stages keep theirs
