"""The learning rate of every published preset against its formula, and of torch's own schedulers."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest
import torch

from paceline.config.plan import lr_at, make_plan
from paceline.config.recipes import RECIPES
from paceline.config.schedule import Schedule, learning_rate
from paceline.config.system import System

# (peak, warm-up epochs, scheduled epochs, steps an epoch): the MLPerf v3.0 ResNet-50 configurations by global batch.
PRESETS = {
    "3200 dgxh100": (11.0, 2, 37, 401),
    "3200 4 nodes": (10.7, 5, 37, 401),
    "3200 8 nodes": (11.0, 2, 37, 401),
    "20480": (22.0, 12, 52, 63),
    "32256": (21.2, 16, 58, 40),
    "57344": (23.0, 32, 78, 23),
    "3264 a100": (10.5, 2, 37, 393),
    "2048 gaudi2": (9.0, 3, 36, 625),
}


@pytest.mark.parametrize("preset", PRESETS)
def test_poly2_of_every_mlperf_preset_at_its_corners_and_between(preset):
    peak, warmup, epochs, steps = PRESETS[preset]
    last_of_ramp, end = warmup * steps, epochs * steps

    def rate(t: int) -> float:
        return learning_rate(
            Schedule("polynomial", min_lr=1e-4), t - 1, peak=peak, warmup_steps=last_of_ramp, total_steps=end
        )

    assert rate(1) == pytest.approx(peak / last_of_ramp)
    assert rate(last_of_ramp) == peak
    falls = 1 - 1 / (end - last_of_ramp)
    assert rate(last_of_ramp + 1) == pytest.approx(1e-4 + (peak - 1e-4) * falls * falls)
    assert rate(end - 1) == pytest.approx(1e-4 + (peak - 1e-4) / (end - last_of_ramp) ** 2)
    assert rate(end) == rate(end + 1) == rate(10 * end) == 1e-4
    curve = [rate(t) for t in range(1, end + 1)]
    assert curve.index(max(curve)) == last_of_ramp - 1
    assert all(a > b for a, b in zip(curve[last_of_ramp - 1 :], curve[last_of_ramp:]))


def test_cosine_without_warm_up_is_torchs():
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.4)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50, eta_min=0.01)
    for step in range(51):
        ours = learning_rate(Schedule("cosine", min_lr=0.01), step, peak=0.4, total_steps=50)
        assert ours == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-9)
        optimizer.step()
        theirs.step()
    assert learning_rate(Schedule("cosine", min_lr=0.01), 51, peak=0.4, total_steps=50) == 0.01


def test_steps_are_torchs_milestones():
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.4)
    theirs = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[3, 7], gamma=0.1)
    for step in range(10):
        ours = learning_rate(Schedule("multistep", gamma=0.1), step, peak=0.4, total_steps=10, boundaries=(3, 7))
        assert ours == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()


@pytest.mark.parametrize("kind", ["cosine", "multistep", "constant"])
def test_warm_up_rises_in_a_line_from_the_first_step(kind):
    rates = [learning_rate(Schedule(kind), s, peak=1.0, warmup_steps=4, total_steps=20, boundaries=(15,)) for s in range(5)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])


def test_a_name_that_no_schedule_has_is_an_error_and_not_a_cosine():
    with pytest.raises(KeyError, match="steps"):
        learning_rate(replace(STEPS, name="steps"), 5, peak=1.0, total_steps=20)


def test_mask_rcnns_warm_up_starts_at_its_fraction():
    rates = [
        learning_rate(
            Schedule("multistep", warmup_start_factor=1 / 3, warmup_step_offset=0),
            step,
            peak=0.02,
            warmup_steps=500,
            total_steps=90_000,
            boundaries=(60_000, 80_000),
        )
        for step in (0, 250, 500, 59_999, 60_000, 80_000)
    ]
    assert rates == pytest.approx([0.02 / 3, 0.02 * 2 / 3, 0.02, 0.02, 0.002, 0.0002])


def test_cosine_after_a_fractional_warm_up_meets_the_peak_and_the_end():
    def rate(step: int) -> float:
        return learning_rate(Schedule("cosine"), step, peak=2.0, warmup_steps=10.5, total_steps=100.5)

    assert rate(9) == pytest.approx(2.0 * 10 / 10.5)
    assert rate(10) == 2.0
    assert rate(55) == pytest.approx(1 + math.cos(math.pi * 44.5 / 90))
    assert rate(101) == 0.0


@pytest.mark.parametrize("kind", ["polynomial", "cosine", "multistep", "constant"])
@pytest.mark.parametrize("warmup", [0.0, 0.5, 3.0, 10.0, 30.0])
def test_no_step_has_a_negative_rate_or_one_above_the_peak(kind, warmup):
    for step in range(40):
        rate = learning_rate(Schedule(kind), step, peak=3.0, warmup_steps=warmup, total_steps=10.0, boundaries=(5.0, 7.5))
        assert 0 <= rate <= 3.0


COSINE = Schedule("cosine", warmup=1.0, warmup_start_factor=0.1, decay_start=1.5, decay_end=3.0, min_lr=0.001)
STEPS = Schedule("multistep", milestones=(1.0, 2.0))
# Field -> (a schedule in which it counts, another value).
OTHERS = {
    "name": (COSINE, "polynomial"), "unit": (COSINE, "steps"), "warmup": (COSINE, 0.5), "warmup_start_factor": (COSINE, 0.4),
    "warmup_step_offset": (COSINE, 0), "decay_start": (COSINE, 2.0), "decay_end": (COSINE, 2.5), "milestones": (STEPS, (1.0,)),
    "gamma": (STEPS, 0.5), "min_lr": (COSINE, 0.002),
}  # fmt: skip


@pytest.mark.parametrize("name", [entry.name for entry in fields(Schedule)])
def test_every_field_of_a_schedule_reaches_the_rate(name):
    before, value = OTHERS[name]
    recipe = replace(RECIPES["classify-demo"](), epochs=4.0, max_images=0)

    def rates(schedule: Schedule) -> list[float]:
        changed = replace(recipe, schedule=schedule)
        plan = make_plan(changed, System(), world=1, most=64, train_images=640, val_images=10)
        return [lr_at(changed, plan, step) for step in range(plan.total_steps)]

    assert rates(before) != rates(replace(before, **{name: value}))
