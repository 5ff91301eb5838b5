"""What single fields mean: their units, the published numbers that they begin with, and what they refuse."""

from __future__ import annotations

import math
import re

import pytest
import torchvision

from paceline._utils.errors import RecipeError
from paceline.config.maskrcnn import InstanceInput
from paceline.config.recipe import check_recipe, check_sizes, override
from paceline.config.recipes import RECIPES
from paceline.config.resnet import ImageInput
from paceline.config.run import parse_time_budget
from paceline.config.ssd import BoxInput, grid_sizes
from paceline.models.registry import get_workload


@pytest.mark.parametrize(
    ("text", "seconds"), [("", 0), ("90", 90), ("90s", 90), ("30m", 1800), ("1.5h", 5400), ("2 d", 172800)]
)
def test_a_time_budget_is_read_in_its_unit(text, seconds):
    assert parse_time_budget(text) == seconds


@pytest.mark.parametrize("settings", [ImageInput(), BoxInput(), InstanceInput()])
def test_photos_are_normalised_as_torchvision_s_weights_want_them(settings):
    transforms = torchvision.models.ResNet50_Weights.IMAGENET1K_V1.transforms()
    assert (list(settings.mean), list(settings.std)) == (transforms.mean, transforms.std)


@pytest.mark.parametrize(
    ("recipe", "field", "value", "flag"),
    [
        ("maskrcnn", "model.rpn.nms_iou", 1.5, "--model.rpn.nms-iou"),
        ("maskrcnn", "model.rpn.nms_iou", 0.0, "--model.rpn.nms-iou"),
        ("maskrcnn", "model.roi.samples_per_image", 3, "--model.roi.samples-per-image"),
        ("resnet50", "seed", -1, "--seed"),
        ("resnet50", "optim.momentum", 1.0, "--optim.momentum"),
        ("resnet50", "optim.weight_decay", -0.1, "--optim.weight-decay"),
        ("resnet50", "input.std", (0.2, 0.0, 0.2), "--input.std"),
        ("resnet50", "input.std", (0.2, math.inf, 0.2), "--input.std"),
    ],
)
def test_a_number_out_of_its_range_is_refused_by_its_flag(recipe, field, value, flag):
    with pytest.raises(RecipeError, match=rf"^{re.escape(flag)} "):
        changed = override(RECIPES[recipe](), {field: value})
        get_workload(changed.task).network.check(changed)  # what a workload's own fields mean


@pytest.mark.parametrize(("field", "value"), [("model.rpn.channels", 2**16 + 1), ("input.image_size", 2**14 + 1)])
def test_a_count_that_no_network_has_is_refused_by_its_flag(field, value):
    recipe = RECIPES["maskrcnn" if "rpn" in field else "ssd"]()
    with pytest.raises(RecipeError, match=rf"^--{field.replace('_', '-')} {value}: must be [\d,]+ or less"):
        check_sizes(override(recipe, {field: value}))
    check_sizes(recipe)


def test_seed_0_is_a_seed():
    check_recipe(override(RECIPES["resnet50"](), {"seed": 0}))


@pytest.mark.parametrize(
    ("size", "sides"),
    [(300, (38, 19, 10, 5, 3, 1)), (512, (64, 32, 16, 8, 6, 4)), (96, (12, 6, 3, 2))],  # 300: the MLPerf reference's
)
def test_an_ssd_has_six_maps_at_most(size, sides):
    assert grid_sizes(size) == sides
