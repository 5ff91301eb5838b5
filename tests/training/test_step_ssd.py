"""The training step divides by the global batch's positives, however the batch is cut into forwards."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from paceline.config.plan import StepRates, make_plan
from paceline.config.recipe import Optim, override
from paceline.config.recipes import RECIPES
from paceline.config.system import System
from paceline.data.batch import DIVIDE_BY, DetectionBatch, Objects, detection_batch
from paceline.models.layers.batch_norm import configure_batch_norm
from paceline.models.registry import WORKLOADS
from paceline.models.ssd.model import init_ssd
from paceline.training.meters import Meters
from paceline.training.optim.base import list_named_parameters
from paceline.training.optim.sgd import SGD
from paceline.training.state import State
from paceline.training.step import TrainStep

SMALL = {
    "model.depth": 10,
    "model.width": 4,
    "model.extra_channels": 8,
    "input.image_size": 96,
    "global_batch_size": 4,
    "optim.lr": 0.05,
}


def batch(objects: list[int]) -> DetectionBatch:
    """One image for each entry, with so many objects."""
    random = np.random.default_rng(5)
    images = torch.from_numpy(random.integers(0, 255, (len(objects), 96, 96, 3), dtype=np.uint8)).permute(0, 3, 1, 2)
    lists = []
    for count in objects:
        corner = random.uniform(0, 0.5, (count, 2))
        boxes = np.concatenate((corner, corner + random.uniform(0.1, 0.5, (count, 2))), 1).astype(np.float32)
        lists.append(Objects(boxes, random.integers(1, 4, count)))
    return detection_batch(images, lists, torch.arange(len(objects)))


def step(over: str, batches: list[DetectionBatch]):
    """-> (losses, weights afterwards, gradients' norm by the model itself over the whole batch)."""
    recipe = override(RECIPES["ssd-demo"](), {**SMALL, "model.loss_normalizer": over, "bn_batch_size": 1})
    model = WORKLOADS["detection"].network.build(recipe, 3)
    init_ssd(model.network, torch.Generator().manual_seed(1))
    plan = make_plan(recipe, System(), world=1, most=4, train_images=64, val_images=4)
    plan = replace(plan, micro_batches=len(batches), micro_batch_size=4 // len(batches))
    configure_batch_norm(model, groups=4 // len(batches), join=1, join_group=None, forwards=len(batches))
    optimizer = SGD(list_named_parameters(model, "none"), Optim(momentum=0.0, weight_decay=0.0))
    state = State(model, optimizer, None, None, Meters(torch.device("cpu")))
    losses = TrainStep(state, plan, System(precision="fp32"), torch.device("cpu"))(batches, StepRates(0.05, 0.05))
    return losses, {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("over", ["image", "batch"])
@pytest.mark.parametrize("objects", [[3, 0, 1, 9], [0, 0, 0, 2], [0, 0, 0, 0]])
def test_two_forwards_of_two_take_the_step_of_one_forward_of_four(over, objects):
    whole = batch(objects)
    halves = [
        DetectionBatch(whole.images[part], whole.labels[part], whole.indices[part], whole.boxes[part])
        for part in (slice(0, 2), slice(2, 4))
    ]
    (losses, weights), (other, others) = step(over, [whole]), step(over, halves)
    assert losses.keys() == other.keys() == {"loss", "class", "box"}
    for name, loss in losses.items():
        torch.testing.assert_close(other[name], loss, rtol=1e-5, atol=1e-6)
    for name, tensor in weights.items():
        torch.testing.assert_close(others[name], tensor, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("objects", "positives"), [([3, 0, 1, 9], (13, 99)), ([0, 0, 1, 0], (1, 3))])
def test_over_the_batch_the_loss_is_the_sum_divided_by_all_positives(objects, positives):
    whole = batch(objects)
    recipe = override(RECIPES["ssd-demo"](), {**SMALL, "model.loss_normalizer": "batch"})
    model = WORKLOADS["detection"].network.build(recipe, 3)
    init_ssd(model.network, torch.Generator().manual_seed(1))
    configure_batch_norm(model, groups=4, join=1, join_group=None, forwards=1)
    sums = model.train()(whole)
    losses, _ = step("batch", [whole])
    assert positives[0] <= int(sums[DIVIDE_BY]) <= positives[1]
    assert float(losses["loss"]) == pytest.approx(float(sums["loss"].detach()) / int(sums[DIVIDE_BY]), rel=1e-5)


def test_a_batch_without_any_object_has_loss_zero_and_changes_no_weight():
    before, after = (step(over, [batch([0, 0, 0, 0])]) for over in ("image", "batch"))
    for losses, _ in (before, after):
        assert float(losses["loss"]) == 0.0
    fresh = WORKLOADS["detection"].network.build(override(RECIPES["ssd-demo"](), SMALL), 3)
    init_ssd(fresh.network, torch.Generator().manual_seed(1))
    for name, parameter in fresh.named_parameters():
        assert torch.equal(parameter, before[1][name]) and torch.equal(parameter, after[1][name]), name
