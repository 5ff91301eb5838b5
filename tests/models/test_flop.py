"""A step's multiplications, counted in its forward, against torch's counter over forward and backward."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from by_night import ONE_MORE
from torch.utils.flop_counter import FlopCounterMode

from paceline.config.recipes import RECIPES
from paceline.config.system import System
from paceline.models.memory_estimate import FlopCount, estimate_recipe_memory
from paceline.models.registry import get_workload

BATCH = 2


@pytest.mark.parametrize("name", ["classify-demo", "ssd-demo", "maskrcnn-demo", pytest.param("resnet50", marks=ONE_MORE)])
def test_the_count_is_torch_s_over_forward_and_backward(name):
    """On the CPU, where all of them have a backward; frozen layers, proposals without a gradient and all."""
    recipe = RECIPES[name]()
    if name == "maskrcnn-demo":
        recipe = replace(recipe, model=replace(recipe.model, freeze_stages=2, norm="frozen"))
    workload = get_workload(recipe.task)
    model = workload.network.build(recipe, 3)
    workload.network.initialize(recipe, model, torch.Generator().manual_seed(0))
    batch = workload.data().dummy_batch(recipe, BATCH, workload.network.largest(recipe), 8)
    # One walk through the network for both: what Mask R-CNN computes on a CPU follows from its proposals.
    with FlopCounterMode(display=False) as theirs:
        with FlopCount() as ours:
            found = model(batch)
        (found["loss"] if "loss" in found else found["sums"].sum()).backward()
    assert ours.flop == theirs.get_total_flops() > 1e6


def test_a_resnet_50_is_what_is_published_of_it():
    """4.1 thousand million multiplications with an addition each, of 224 x 224; three times in training, less the first
    layer's gradient to the photo.
    """
    memory = estimate_recipe_memory(get_workload("classification"), RECIPES["resnet50"](), System("cpu"), 1000)
    assert memory.flop == pytest.approx(3 * 2 * 4.09e9 - 2 * 112**2 * 64 * 3 * 49, rel=0.005)
    assert memory.flop_of(5, 5 * 224 * 224) == 5 * memory.flop


def test_work_of_other_shapes_follows_from_two_counts():
    recipe = RECIPES["maskrcnn-demo"]()
    workload = get_workload("instance-segmentation")
    memory = estimate_recipe_memory(workload, recipe, System("cpu"), 8, (256, 384))
    for shape in ((256, 384), (384, 256), (128, 128), (192, 320)):
        with torch.device("meta"):
            model, batch = workload.network.build(recipe, 8).to("meta"), workload.data().dummy_batch(recipe, 3, shape, 16)
        with FlopCount() as counted:
            model(batch)
        assert memory.flop_of(3, 3 * math.prod(shape)) == pytest.approx(counted.flop, rel=1e-3), shape
