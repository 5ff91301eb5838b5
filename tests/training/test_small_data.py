"""Recipes that were made for far more photos than there are: refused with the command that fits, unless set by hand."""

from __future__ import annotations

import pytest
from messages import check_text, raises
from recording_reporter import Recording

from paceline._utils.errors import RecipeError
from paceline.config.plan import make_plan
from paceline.config.recipes import RECIPES
from paceline.config.run import RunOptions
from paceline.config.system import System
from paceline.training.small_data import check_auto, check_image_count, report_length


def looked_at(name, photos, given=(), accelerator="cpu", **options):
    recipe = RECIPES[name]()
    plan = make_plan(recipe, System(), world=1, most=recipe.global_batch_size, train_images=photos, val_images=4)
    check_image_count(name, recipe, plan, RunOptions(data="mine", **options), frozenset(given), accelerator)


@pytest.mark.parametrize(
    ("name", "photos", "accelerator", "reason", "command"),
    [
        ("resnet50", 8, "cpu", "2,048 ... 8 training images", "train classify-finetune-cpu --data mine"),
        ("resnet50", 8, "cuda", "2,048", "train classify-finetune --data mine"),
        ("resnet50", 3000, "cuda", "132 steps ... 2,048", "train classify-finetune --data mine"),
        ("ssd", 900, "cuda", "117,266 images, 130 times the 900", "train ssd-finetune --data mine"),
        ("maskrcnn-gluoncv", 500, "cpu", "117,266 images, 235 times", "train maskrcnn-finetune-cpu --data mine"),
        ("ssd-finetune-cpu", 6, "cpu", "8 ... 6", "train ssd-finetune-cpu --data mine --auto-config"),
        ("classify-finetune-cpu", 80, "cpu", "60 steps ... 32", "train classify-finetune-cpu --data mine --auto-config"),
    ],
)  # fmt: skip
def test_too_few_photos_are_refused_with_the_command_that_fits(name, photos, accelerator, reason, command):
    with pytest.raises(RecipeError) as refusal:
        looked_at(name, photos, accelerator=accelerator)
    assert check_text(str(refusal.value), reason) and command in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "photos", "wish"),
    [
        ("resnet50", 8, {"given": ("global_batch_size",)}),
        ("resnet50", 3000, {"given": ("epochs",)}),
        ("ssd", 900, {"max_steps": 6}),
        ("resnet50", 8, {"synthetic": True}),
        ("resnet50", 8, {"max_train_images": 8}),
        ("resnet50", 1_281_167, {}),
        ("ssd-demo", 100, {}),
        ("ssd-finetune", 300, {}),
    ],
)
def test_what_fits_and_what_is_set_by_hand_is_taken(name, photos, wish):
    looked_at(name, photos, **wish)


def test_a_recipe_of_ones_own_is_taken():
    recipe = RECIPES["resnet50"]()
    plan = make_plan(recipe, System(), world=1, most=recipe.global_batch_size, train_images=8, val_images=4)
    check_image_count("./mine.py:small", recipe, plan, RunOptions(data="mine"), frozenset(), "cpu")


@pytest.mark.parametrize(
    ("name", "photos", "given", "said"),
    [
        (
            "ssd-finetune-cpu",
            120,
            (),
            "note: 120 images give 450 steps, which is few (usual: 1,500 or more). --auto-config",
        ),
        (
            "ssd-finetune-cpu",
            3000,
            (),
            "note: 3,000 images give 11,250 steps, and more than 4,000 are seldom needed. --auto-config",
        ),
        ("classify-finetune", 900, (), "note: 900 images give 422 steps with 30 evaluations. --auto-config"),
        ("ssd-finetune-cpu", 525, (), ""),
        ("ssd-finetune-cpu", 120, ("epochs",), ""),
        ("ssd-demo", 120, (), ""),
    ],
)
def test_a_length_that_looks_wrong_is_said_with_the_flag_that_chooses(name, photos, given, said):
    recipe, heard = RECIPES[name](), Recording()
    plan = make_plan(recipe, System(), world=1, most=recipe.global_batch_size, train_images=photos, val_images=4)
    report_length(name, recipe, plan, given, True, heard)
    assert [line[: len(said)] for line in heard.lines] == ([said] if said else [])


@pytest.mark.parametrize("name", ["ssd", "resnet50-mlperf-3200", "ssd@reference-1x8-1024"])
def test_auto_is_for_photos_of_one_s_own(name):
    with raises(RecipeError, "dataset", "-finetune --data DIR --auto-config"):
        check_auto(name, repeats=False)
    check_auto("./mine.py:small", repeats=False)
