"""A schedule fitted to fewer steps is the same schedule, drawn smaller; and steps that fit into a time."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated, get_origin

import pytest
from messages import check_text, raises

from paceline._utils.errors import RecipeError
from paceline.config.constraints import Help, get_annotations
from paceline.config.plan import lr_at, make_plan
from paceline.config.recipe import DATA_IMAGES, Evaluation, Recipe
from paceline.config.recipes import RECIPES
from paceline.config.run_length import (
    FITTED,
    LENGTH,
    MAX_WARMUP,
    count_recipe_steps,
    count_steps_in_time,
    fit_schedule,
    format_schedule_progress,
)
from paceline.config.system import System


def planned(recipe: Recipe):
    train, val = DATA_IMAGES.get(recipe.target_data, (1_000, 100))
    span = {"bn_batch_size": min(recipe.bn_batch_size, recipe.global_batch_size)}
    return make_plan(
        replace(recipe, **span), System(), world=1, most=recipe.global_batch_size, train_images=train, val_images=val
    )


@pytest.mark.parametrize("share", [0.5, 0.037])
@pytest.mark.parametrize("name", RECIPES)
def test_a_fitted_schedule_is_the_recipes_own_drawn_smaller(name, share):
    recipe = RECIPES[name]()
    plan = planned(recipe)
    steps = round(plan.total_steps * share)
    fitted = fit_schedule(recipe, plan, steps)
    small = planned(fitted)
    r = steps / plan.total_steps
    assert small.total_steps == steps and (fitted.epochs > 0) == (recipe.epochs > 0)
    assert count_recipe_steps(asdict(fitted), asdict(plan)) == steps
    assert small.decay_end_step == pytest.approx(plan.decay_end_step * r)
    assert small.milestones == pytest.approx([boundary * r for boundary in plan.milestones])
    if recipe.schedule.unit == "steps":
        assert small.warmup_steps == pytest.approx(min(plan.warmup_steps, max(plan.warmup_steps * r, MAX_WARMUP * steps)))
    else:
        assert small.warmup_steps == pytest.approx(plan.warmup_steps * r)
        # The oracle: at the same share of the run the same learning rate, but for the steps' own width.
        for point in (0.2, 0.5, 0.8, 0.97):
            place = round(point * steps)
            if any(abs(place - boundary) < 2 for boundary in small.milestones):
                continue
            near = [lr_at(recipe, plan, round((place + shift) / r)) for shift in (-2, 2)]
            slack = 1e-9 + abs(near[0] - near[1])
            assert min(near) - slack <= lr_at(fitted, small, place) <= max(near) + slack
    # Evaluations fall at the same shares of the run; of those that come together one is left.
    assert all(any(abs(step * r - due) < 1.5 for due in small.eval_steps) for step in plan.eval_steps)
    assert len(small.eval_steps) <= len(plan.eval_steps) and small.eval_steps[-1] == steps


@pytest.mark.parametrize(("epochs", "steps"), [(0.01, 1), (0.1, 1), (0.2, 2)])
def test_a_run_of_less_than_a_step_takes_one(epochs, steps):
    assert count_recipe_steps({"epochs": epochs, "max_images": 0}, {"steps_per_epoch": 10.0}) == steps
    seen = {"epochs": 0.0, "max_images": round(epochs * 320)}
    assert count_recipe_steps(seen, {"steps_per_epoch": 10.0, "global_batch_size": 32}) == steps


def test_a_recipe_that_is_no_longer_stays_as_it_is():
    recipe = RECIPES["ssd-demo"]()
    plan = planned(recipe)
    assert fit_schedule(recipe, plan, plan.total_steps) is recipe
    assert fit_schedule(recipe, plan, plan.total_steps + 1) is recipe


def test_what_fitting_changes_is_what_is_said_to_change():
    def flat(recipe: Recipe) -> dict[str, object]:
        parts = {"": recipe, "schedule.": recipe.schedule, "eval.": recipe.eval}
        return {f"{above}{name}": value for above, part in parts.items() for name, value in vars(part).items()}

    changed: set[str] = set()
    whole = RECIPES["resnet50"]()
    whole = replace(
        whole, schedule=replace(whole.schedule, decay_start=1.0, decay_end=99.0), eval=Evaluation(start=2, every=3)
    )
    for recipe in (*(make() for make in RECIPES.values()), whole):
        plan = planned(recipe)
        before, after = flat(recipe), flat(fit_schedule(recipe, plan, plan.total_steps // 2))
        changed |= {name for name in before if before[name] != after[name]} - {"schedule", "eval"}
    assert changed <= set(FITTED) and {"eval.at"} >= set(FITTED) - changed, changed


def in_unit(part: object) -> dict[str, type]:
    """Fields of a section that are counted in its `unit`, as their help says, and whether each is a number or several."""
    hints = {name: hint for name, hint in get_annotations(type(part)).items() if get_origin(hint) is Annotated}
    texts = {name: next(one.text for one in hint.__metadata__ if isinstance(one, Help)) for name, hint in hints.items()}
    return {name: type(getattr(part, name)) for name, text in texts.items() if "`unit`" in text}


def test_every_field_that_is_counted_in_the_unit_shrinks_with_the_run():
    recipe = RECIPES["resnet50"]()
    plan, seen = planned(recipe), set()
    for section in ("schedule", "eval"):
        part = getattr(recipe, section)
        kinds = in_unit(part)
        assert part.unit == "epochs" and kinds
        long = {name: (1.0, 2.0) if kind is tuple else 2.0 for name, kind in kinds.items()}
        whole = replace(recipe, **{section: replace(part, **long)})
        fitted = getattr(fit_schedule(whole, plan, plan.total_steps // 2), section)
        r = plan.total_steps // 2 / plan.total_steps
        for name, value in long.items():
            shrunk = tuple(one * r for one in value) if isinstance(value, tuple) else value * r
            assert getattr(fitted, name) == shrunk, (
                f"{section}.{name}: fit_schedule (config/run_length.py) leaves it as it is"
            )
        seen |= {f"{section}.{name}" for name in kinds}
    assert seen == set(FITTED) - set(LENGTH)


def test_a_warm_up_counted_in_steps_keeps_a_tenth_of_the_run():
    recipe = RECIPES["maskrcnn"]()
    assert recipe.schedule.unit == "steps" and recipe.schedule.warmup == 500
    plan = planned(recipe)
    assert fit_schedule(recipe, plan, 1_000).schedule.warmup == 100
    assert fit_schedule(recipe, plan, 60_000).schedule.warmup == 500  # never more than the recipe's own


@pytest.mark.parametrize("evaluations, every", [(3, 0), (1, 0), (1, 7), (1, 50)])
def test_the_steps_that_fit_are_the_most_whose_time_is_not_above_the_budget(evaluations, every):
    def needed(steps: int) -> float:
        count = steps / every + 1 if every else evaluations
        return steps * 0.5 + count * 4.0

    steps = count_steps_in_time(300, step_seconds=0.5, eval_seconds=4.0, evaluations=evaluations, eval_every=every)
    assert needed(steps) <= 300 < needed(steps + 1)


def test_a_time_without_room_for_a_step_is_refused_with_what_it_would_take():
    with raises(RecipeError, "--rescale-schedule", "20 evaluations", "4 s", "60 s") as error:
        count_steps_in_time(60, step_seconds=0.5, eval_seconds=4.0, evaluations=20)
    assert "--eval-every" in str(error.value)


def test_how_far_the_learning_rate_had_come_is_said_in_words():
    recipe = RECIPES["classify-demo"]()
    plan = planned(recipe)
    for share, wanted in ((0.05, "still warming up"), (1.0, "0% of its peak")):
        assert wanted in format_schedule_progress(recipe, plan, round(share * plan.total_steps))
    steps = RECIPES["maskrcnn"]()
    check_text(format_schedule_progress(steps, planned(steps), 1_000), "not begun")
    check_text(format_schedule_progress(steps, planned(steps), 60_001), "10%", "peak")
    constant = replace(recipe, schedule=replace(recipe.schedule, name="constant", warmup=0.0))
    assert format_schedule_progress(constant, planned(constant), 5) == ""


def test_a_fall_that_has_just_begun_is_said_in_plain_digits():
    recipe = RECIPES["resnet50"]()
    plan = planned(recipe)
    after = round(plan.warmup_steps)
    for share, wanted in ((0.001, "99.9%"), (0.05, "99.4%")):
        step = after + round(share * (plan.total_steps - after))
        check_text(format_schedule_progress(recipe, plan, step), wanted)
