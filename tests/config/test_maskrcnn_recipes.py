"""Mask R-CNN's recipes at work: losses of one accelerator's images, devices of any memory, own data. Their published fields, plans
and rates are held in tests/published.
"""

from __future__ import annotations

import math

import pytest

from paceline.config.maskrcnn import check_instances
from paceline.config.plan import make_plan
from paceline.config.recipe import DATA_IMAGES, check_recipe, override
from paceline.config.recipes import RECIPES
from paceline.config.system import System

NAMES = [name for name in RECIPES if name.startswith("maskrcnn")]


def plan_of(name: str, world: int = 1, most: int = 512):
    recipe = RECIPES[name]()
    train, val = DATA_IMAGES[recipe.target_data]
    return recipe, make_plan(recipe, System(), world=world, most=most, train_images=train, val_images=val)


@pytest.mark.parametrize(
    ("name", "world", "per_gpu"),
    [
        ("maskrcnn", 8, 2),
        ("maskrcnn-nvidia-96", 8, 12),
        ("maskrcnn-nvidia-256", 64, 4),
        ("maskrcnn-nvidia-256-48nodes", 256, 1),
        ("maskrcnn-gluoncv", 8, 2),
        ("maskrcnn-gluoncv-192", 192, 1),
    ],
)
def test_on_the_published_machine_losses_are_one_accelerator_s(name, world, per_gpu):
    _, plan = plan_of(name, world)
    assert (plan.micro_batch_size, plan.micro_batches) == (per_gpu, 1)
    assert (plan.loss_normalizer_images, plan.loss_groups, plan.loss_micro_batches, plan.loss_ranks) == (per_gpu, 1, 1, 1)


@pytest.mark.parametrize("most", [512, 1])
@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_is_sound_and_runs_on_one_device_of_any_memory(name, most):
    recipe = RECIPES[name]()
    check_recipe(recipe)
    check_instances(recipe)
    if recipe.bn_batch_size > 1 and most < recipe.bn_batch_size:
        most = recipe.bn_batch_size  # statistics of a batch want the batch
    _, plan = plan_of(name, most=most)
    assert plan.micro_batch_size * plan.loss_micro_batches == plan.loss_normalizer_images * plan.loss_groups
    assert plan.loss_micro_batches == math.ceil(plan.loss_normalizer_images / plan.micro_batch_size)


def test_the_reference_on_a_small_device_counts_first():
    plan = plan_of("maskrcnn-nvidia-96", world=8, most=4)[1]
    assert (plan.micro_batch_size, plan.micro_batches, plan.loss_micro_batches, plan.loss_ranks) == (4, 3, 3, 1)


def test_own_data_start_from_the_recipe_for_them():
    recipe = override(RECIPES["maskrcnn-finetune"](), {"global_batch_size": 16, "optim.lr": 0.02})
    assert not recipe.input.skip_empty and recipe.schedule.name == "cosine" and 0 < recipe.ema_decay < 1
    plan = make_plan(recipe, System(), world=2, most=8, train_images=500, val_images=100)
    assert (plan.loss_normalizer_images, plan.loss_ranks) == (16, 2)
