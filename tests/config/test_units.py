"""Schedules and evaluations counted in steps, the warm-up's first step, and optimizer settings that cannot be meant."""

from __future__ import annotations

from dataclasses import replace

import pytest
from messages import raises

from paceline._utils.errors import RecipeError
from paceline.config.plan import lr_at, make_plan
from paceline.config.recipe import Evaluation, Optim, Recipe, check_recipe
from paceline.config.resnet import ImageInput, ResNetModel
from paceline.config.schedule import Schedule
from paceline.config.system import System

RECIPE = Recipe(
    task="classification",
    model=ResNetModel(),
    input=ImageInput(),
    global_batch_size=64,
    max_images=640 * 64,
    bn_batch_size=64,
)


def plan_of(recipe: Recipe, train_images: int = 10_000):
    return make_plan(recipe, System(), world=1, most=64, train_images=train_images, val_images=10)


@pytest.mark.parametrize("train_images", [10_000, 999])
def test_a_schedule_in_steps_does_not_depend_on_the_data(train_images):
    schedule = Schedule(
        name="multistep",
        unit="steps",
        warmup=50,
        warmup_start_factor=0.25,
        warmup_step_offset=0,
        milestones=(300, 500),
        gamma=0.1,
    )
    recipe = replace(RECIPE, schedule=schedule, optim=Optim(lr=0.4))
    plan = plan_of(recipe, train_images)
    assert (plan.total_steps, plan.warmup_steps, plan.milestones) == (640, 50, (300, 500))
    rates = [lr_at(recipe, plan, step) for step in (0, 25, 49, 50, 299, 300, 499, 500)]
    assert rates == pytest.approx([0.1, 0.25, 0.394, 0.4, 0.4, 0.04, 0.04, 0.004])


@pytest.mark.parametrize("kind", ["cosine", "polynomial"])
def test_hold_and_horizon_count_in_steps_too(kind):
    recipe = replace(RECIPE, schedule=Schedule(name=kind, unit="steps", decay_start=100, decay_end=400, min_lr=1e-3))
    plan = plan_of(recipe)
    assert (plan.decay_start_step, plan.decay_end_step) == (100, 400)
    assert lr_at(recipe, plan, 90) == recipe.optim.lr and lr_at(recipe, plan, 400) == 1e-3


def test_the_first_step_is_one_up_the_ramp_or_none():
    for first, rate in ((1, 0.2), (0, 0.1)):
        recipe = replace(
            RECIPE,
            schedule=Schedule(unit="steps", warmup=9, warmup_start_factor=0.1, warmup_step_offset=first),
            optim=Optim(lr=1),
        )
        assert lr_at(recipe, plan_of(recipe), 0) == pytest.approx(rate)


def test_evaluations_in_steps():
    assert plan_of(replace(RECIPE, eval=Evaluation(unit="steps", start=100, every=200))).eval_steps == (100, 300, 500, 640)
    assert plan_of(replace(RECIPE, eval=Evaluation(unit="steps", at=(7, 50, 900)))).eval_steps == (7, 50, 640)


@pytest.mark.parametrize(
    ("optim", "text"),
    [
        (Optim(clip_value=1.5, clip_norm=1.0), "clip"),
        (Optim(name="lars", clip_value=1.5), "lars"),
        (Optim(name="lars", clip_norm=1.5), "lars"),
        (Optim(clip_value=-1.0), "--optim.clip-value -1"),
        (Optim(clip_norm=float("inf")), "--optim.clip-norm inf"),
        (Optim(bias_lr_factor=0.0), "--optim.bias-lr-factor 0"),
    ],
)
def test_what_cannot_be_meant_is_refused_once_and_by_its_flag(optim, text):
    with raises(RecipeError, text):
        check_recipe(replace(RECIPE, optim=optim))


@pytest.mark.parametrize(
    "optim",
    [Optim(clip_value=1.5), Optim(name="adamw", clip_norm=1.0, bias_lr_factor=2.0), Optim(name="lars", bias_lr_factor=2.0)],
)
def test_what_can_be_meant_is_not(optim):
    check_recipe(replace(RECIPE, optim=optim))


def test_polynomial_has_its_own_first_step():
    with pytest.raises(RecipeError, match=r"--schedule\.warmup-step-offset 0: must be 1 "):
        check_recipe(replace(RECIPE, schedule=Schedule(name="polynomial", warmup_step_offset=0)))


def test_a_length_in_steps_may_be_any_and_one_of_the_run_may_not():
    check_recipe(replace(RECIPE, schedule=Schedule(unit="steps", warmup=500)))
    with raises(RecipeError, "--schedule", "[0, 1]", "fraction"):
        check_recipe(replace(RECIPE, schedule=Schedule(unit="fraction", warmup=500)))
