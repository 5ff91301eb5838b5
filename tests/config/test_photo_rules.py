"""What every recipe refuses of its photos and their colours, by the flag: the rules are said once for all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.config.errors import RecipeError
from paceline.config.recipe import check_recipe
from paceline.recipes import RECIPES
from paceline.tasks.workloads import workload_of

PHOTO = {"flip": 1.5, "std": (1.0, 0.0, 1.0), "mean": (0.0, float("nan"), 0.0)}
OF_A_CLASS = {"vflip": -0.1, "erase": 1.5}
COLOURS = {"brightness": 1.1, "contrast": -0.1, "saturation": 2.0, "hue": 0.6}


@pytest.mark.parametrize(
    ("recipe", "name", "value"),
    [("resnet50-tiny", *pair) for pair in (PHOTO | OF_A_CLASS).items()]
    + [(recipe, *pair) for recipe in ("ssd-tiny", "maskrcnn-tiny") for pair in (PHOTO | COLOURS).items()],
)
def test_a_photo_s_field_out_of_range_is_refused_by_its_flag(recipe, name, value) -> None:
    made = RECIPES[recipe]()
    workload_of(made.task).check(made)
    changed = replace(made, input=replace(made.input, **{name: value}))
    for refusing in (workload_of(made.task).check, check_recipe):
        with pytest.raises(RecipeError, match=f"^--input.{name} "):
            refusing(changed)
