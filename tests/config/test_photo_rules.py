"""What every recipe refuses of its photos and their colors, by the flag: the rules are said once for all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from messages import raises

from paceline._utils.errors import RecipeError
from paceline.config.plan import make_plan
from paceline.config.recipe import check_recipe
from paceline.config.recipes import RECIPES
from paceline.config.system import System
from paceline.models.registry import get_workload

PHOTO = {"hflip": 1.5, "std": (1.0, 0.0, 1.0), "mean": (0.0, float("nan"), 0.0)}
OF_A_CLASS = {"vflip": -0.1, "rot90": 1.1, "random_erase": 1.5, "mixup_alpha": -0.2, "cutmix_alpha": float("inf")}
COLOURS = {"brightness": 1.1, "contrast": -0.1, "saturation": 2.0, "hue": 0.6}


@pytest.mark.parametrize(
    ("recipe", "name", "value"),
    [("classify-demo", *pair) for pair in (PHOTO | OF_A_CLASS).items()]
    + [(recipe, *pair) for recipe in ("ssd-demo", "maskrcnn-demo") for pair in (PHOTO | COLOURS).items()],
)
def test_a_photo_s_field_out_of_range_is_refused_by_its_flag(recipe, name, value) -> None:
    made = RECIPES[recipe]()
    get_workload(made.task).network.check(made)
    changed = replace(made, input=replace(made.input, **{name: value}))
    for refusing in (get_workload(made.task).network.check, check_recipe):
        with pytest.raises(RecipeError, match=f"^--input.{name.replace('_', '-')} "):
            refusing(changed)


def test_photos_are_mixed_in_pairs_so_an_odd_batch_or_forward_is_refused():
    made = RECIPES["classify-demo"]()
    workload = get_workload(made.task)
    mixed = replace(made, input=replace(made.input, cutmix_alpha=1.0), global_batch_size=6, bn_batch_size=3)
    with pytest.raises(RecipeError, match=r"^--global-batch-size 7: .* mix pairs"):
        workload.network.check(replace(mixed, global_batch_size=7))
    for most, refused in ((6, False), (3, True)):
        plan = make_plan(mixed, System(), world=1, most=most, train_images=60, val_images=6)
        if refused:
            with raises(RecipeError, "micro-batch", "3", "--system.micro-batch-size"):
                workload.network.check_plan(mixed, plan)
            workload.network.check_plan(replace(mixed, input=made.input), plan)
        else:
            workload.network.check_plan(mixed, plan)
