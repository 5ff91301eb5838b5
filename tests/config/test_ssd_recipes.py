"""The published SSD settings: plans and learning rates equal to what the submissions' logs and sources say."""

from __future__ import annotations

import math

import pytest

from paceline.config.plan import lr_at, make_plan
from paceline.config.recipe import DATA_IMAGES
from paceline.config.recipes import RECIPES
from paceline.config.recipes.ssd import integer_lr
from paceline.config.system import System

# Batch, ranks, lr, warm-up steps, steps of an epoch: read from the published logs of MLPerf v0.7, or from the sources.
PUBLISHED = [
    ("ssd-mlperf-512", 512, 4, 0.0475, 1202, 230),
    ("ssd-mlperf-1024", 1024, 8, 0.1875, 601, 115),
    ("ssd-mlperf-1024-dss8440", 1024, 8, 0.1875, 572, 115),
    ("ssd-mlperf-896", 896, 16, 0.09, 654, 131),
    ("ssd-mlperf-1536", 1536, 64, 0.14, 839, 77),
    ("ssd-mlperf-2048", 2048, 512, 0.2925, 1488, 58),
]


def plan_of(name: str, world: int):
    recipe = RECIPES[name]()
    train, val = DATA_IMAGES["coco"]
    return recipe, make_plan(recipe, System(), world=world, most=128, train_images=train, val_images=val)


@pytest.mark.parametrize(("name", "batch", "world", "lr", "warmup", "per_epoch"), PUBLISHED)
def test_system_a_s_settings_are_the_logged_ones(name, batch, world, lr, warmup, per_epoch):
    recipe, plan = plan_of(name, world)
    assert plan.global_batch_size == batch
    assert recipe.optim.lr == pytest.approx(lr, rel=1e-12)
    assert round(plan.warmup_steps, 6) == warmup
    assert plan.steps_per_epoch == per_epoch
    first, second = recipe.schedule.milestones
    assert plan.milestones == (first * per_epoch, second * per_epoch)
    # Counted from 1: the first step of the ramp has one part in `warmup`, and the peak comes with the step after it.
    assert lr_at(recipe, plan, 0) == pytest.approx(lr / warmup)
    assert lr_at(recipe, plan, warmup) == pytest.approx(lr)
    last = math.ceil(plan.milestones[0])
    assert lr_at(recipe, plan, last - 1) == pytest.approx(lr)
    assert lr_at(recipe, plan, last) == pytest.approx(lr / 10)
    assert lr_at(recipe, plan, math.ceil(plan.milestones[1])) == pytest.approx(lr / 100)


@pytest.mark.parametrize(
    ("lr", "batch", "resolved"),
    [(2.92e-3, 512, 0.0475), (5.84e-3, 1024, 0.1875), (3.2e-3, 912, 0.09), (2.92e-3, 960, 0.0875), (4.57e-3, 2048, 0.2925),
     (2.5e-3, 4, 2.5e-3)],
)  # fmt: skip
def test_integer_rule_gives_the_logged_rates_and_never_less_than_one_part(lr, batch, resolved):
    assert integer_lr(lr, batch) == pytest.approx(resolved, rel=1e-12)


def test_bn_spans_are_those_of_the_published_gpus():
    spans = {name: RECIPES[name]().bn_batch_size for name, *_ in PUBLISHED}
    assert list(spans.values()) == [128, 128, 128, 56, 24, 16]
    _, plan = plan_of("ssd-mlperf-2048", 512)
    assert (plan.micro_batch_size, plan.bn_ranks) == (4, 4)


@pytest.mark.parametrize(("name", "per_epoch"), [("ssd-gaudi", 917), ("ssd-gaudi-1024", 115)])
def test_gaudi_s_steps(name, per_epoch):
    recipe, plan = plan_of(name, 1)
    assert plan.steps_per_epoch == per_epoch and plan.total_steps == 64 * per_epoch
    assert recipe.optim.lr == pytest.approx(3e-3 * recipe.global_batch_size / 32)
    assert [lr_at(recipe, plan, step) for step in (0, 1)] == pytest.approx([0.0, recipe.optim.lr / (5 * per_epoch)])
    assert plan.milestones == (40 * per_epoch, 50 * per_epoch)


def test_gaudi_s_cosine_warms_up_holds_and_falls_to_a_hundredth():
    recipe, plan = plan_of("ssd-gaudi-cosine", 1)
    base, epoch = 3e-3 * 4, plan.steps_per_epoch
    # base * (e / 7) * 1.01, of a step counter that starts at 0.
    assert [lr_at(recipe, plan, step) for step in (0, 1)] == pytest.approx([0.0, 1.01 * base / 7 / epoch])
    assert lr_at(recipe, plan, int(3.5 * epoch)) == pytest.approx(1.01 * base / 2, rel=1e-3)
    for hold in (7.1, 10, 15):
        assert lr_at(recipe, plan, int(hold * epoch)) == pytest.approx(1.01 * base)
    assert lr_at(recipe, plan, int(35 * epoch)) == pytest.approx((1.01 + 0.01) / 2 * base, rel=1e-3)
    assert lr_at(recipe, plan, int(55 * epoch)) == pytest.approx(0.01 * base)
    assert lr_at(recipe, plan, int(60 * epoch)) == pytest.approx(0.01 * base)


def test_the_reference_has_whole_epochs_of_3665_steps_and_decays_at_40_and_50():
    recipe, plan = plan_of("ssd", 1)
    assert plan.steps_per_epoch == 3665 and plan.total_steps == 256_550
    rates = [lr_at(recipe, plan, step) for step in (0, 146_599, 146_600, 183_249, 183_250)]
    assert rates == pytest.approx([2.5e-3, 2.5e-3, 2.5e-4, 2.5e-4, 2.5e-5])
    assert plan.eval_steps[:2] == (18_325, 36_650)
