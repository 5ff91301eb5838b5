"""The published Mask R-CNN settings: plans, rates at listed steps, and the rules that each system changes."""

from __future__ import annotations

import dataclasses
import math

import pytest

from paceline.config.instances import MaskRCNNModel, check_instances
from paceline.config.plan import lr_at, make_plan
from paceline.config.recipe import DATA_IMAGES, check_recipe, override
from paceline.config.system import System
from paceline.recipes import RECIPES

NAMES = [name for name in RECIPES if name.startswith("maskrcnn")]

# Batch, ranks, images of a GPU, lr, warm-up steps, lr at the ramp's foot, decay steps, steps of an epoch, length in steps: from the
# reference's configuration, NVIDIA's config_DGXH100*.sh and their logs, and GluonCV's benchmark. The reference's trainer moves its
# schedule before a step: counted from 0, the step is one further. NVIDIA's rate is worked out after a step, from the count before.
PUBLISHED = {
    "maskrcnn": (16, 8, 2, 0.02, 500, 0.02 / 3, (59_999, 79_999), 7330, 90_000),
    "maskrcnn-nvidia-96": (96, 8, 12, 0.12, 625, 0.0, (12_002, 16_001), 1222, 40_000),
    "maskrcnn-nvidia-256": (256, 64, 4, 0.24, 2300, 0.0, (6_127, 8_001), 459, 20_000),
    "maskrcnn-nvidia-256-48nodes": (256, 256, 1, 0.24, 1800, 0.24 - 1800 * 1.33e-4, (5_627, 7_501), 459, 20_000),
    "maskrcnn-gluoncv": (16, 8, 2, 0.02, 1000, 0.03 * 0.02, (8 * 7330, 10 * 7330), 7330, 12 * 7330),
    "maskrcnn-gluoncv-192": (192, 192, 1, 0.16, 1600, 0.001 * 0.16, (10 * 611, 14 * 611), 611, 12 * 611),
}


def plan_of(name: str, world: int = 1, most: int = 512):
    recipe = RECIPES[name]()
    train, val = DATA_IMAGES[recipe.target_data]
    return recipe, make_plan(recipe, System(), world=world, most=most, train_images=train, val_images=val)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_setting_has_its_published_plan(name):
    batch, world, per_gpu, lr, warmup, first, boundaries, per_epoch, steps = PUBLISHED[name]
    recipe, plan = plan_of(name, world)
    assert (plan.global_batch, plan.images_per_forward, plan.forwards) == (batch, per_gpu, 1)
    assert (plan.loss_group, plan.loss_groups, plan.loss_forwards, plan.loss_join) == (per_gpu, 1, 1, 1)
    assert recipe.optim.lr == lr and plan.steps_per_epoch == per_epoch and plan.total_steps == steps
    assert plan.warmup_steps == pytest.approx(warmup, rel=1e-12) and plan.boundaries == boundaries
    # The warm-up's law: lr * (f * (1 - a) + a) with a = step / warm-up, from step 0 on; the reference's, from step 1 on.
    factor, ahead = first / lr, 1 if name == "maskrcnn" else -1 if "nvidia" in name else 0
    for step in (1, warmup // 2, warmup - 1, warmup):
        a = min(1.0, (step + ahead) / warmup)
        assert lr_at(recipe, plan, step) == pytest.approx(lr * (factor * (1 - a) + a), rel=1e-9, abs=1e-12), step
    assert lr_at(recipe, plan, 0) == pytest.approx(
        max(0, 1 + ahead) and lr * (factor + ahead * (1 - factor) / warmup), rel=1e-9
    )
    once, twice = boundaries
    listed = {warmup + 1: lr, once - 1: lr, once: lr / 10, twice - 1: lr / 10, twice: lr / 100}
    for step, rate in listed.items():
        assert lr_at(recipe, plan, step) == pytest.approx(rate, rel=1e-12), step


@pytest.mark.parametrize(("name", "ramp"), [("maskrcnn-nvidia-96", 1.92e-4), ("maskrcnn-nvidia-256-48nodes", 1.33e-4)])
def test_nvidia_s_factor_is_what_a_step_of_the_warm_up_adds(name, ramp):
    recipe, plan = plan_of(name)
    for step in (1, 7, 300):
        assert lr_at(recipe, plan, step + 1) - lr_at(recipe, plan, step) == pytest.approx(ramp, rel=1e-9)


def test_evaluations_fall_where_the_systems_had_them():
    assert plan_of("maskrcnn")[1].eval_steps[:3] == (7330, 14_660, 21_990)
    assert plan_of("maskrcnn-nvidia-96")[1].eval_steps[13] == 14 * 1222  # published: the target is met there
    assert plan_of("maskrcnn-gluoncv")[1].eval_steps == (12 * 7330,)
    assert plan_of("maskrcnn-gluoncv-192")[1].eval_steps == tuple(611 * epoch for epoch in range(1, 13))


def test_targets_are_mlperf_s_where_a_system_ran_to_them():
    for name in ("maskrcnn", "maskrcnn-nvidia-96", "maskrcnn-nvidia-256", "maskrcnn-nvidia-256-48nodes"):
        assert RECIPES[name]().quality.targets == (("box_ap", 0.377), ("mask_ap", 0.339))
    for name in ("maskrcnn-gluoncv", "maskrcnn-gluoncv-192", "maskrcnn-custom"):
        assert RECIPES[name]().quality.targets == ()


def changed(model: MaskRCNNModel) -> dict[str, object]:
    """Dotted fields that differ from the defaults, torchvision's."""
    found: dict[str, object] = {}

    def walk(node: object, default: object, above: str) -> None:
        for entry in dataclasses.fields(node):  # type: ignore[arg-type]
            value, usual = getattr(node, entry.name), getattr(default, entry.name)
            if dataclasses.is_dataclass(value):
                walk(value, usual, f"{above}{entry.name}.")
            elif value != usual:
                found[f"{above}{entry.name}"] = value

    walk(model, MaskRCNNModel(), "")
    return found


REFERENCE = {
    "rpn.rounding": "legacy_edges",
    "rpn.edges": "inside",
    "rpn.post_train": 1000,
    "roi.beta": 1.0,
    "mask.target": "binary",
}
GLUONCV = {
    "top": "conv",
    "init": "gluoncv",
    "rpn.channels": 1024,
    "rpn.rounding": "legacy",
    "rpn.best_anchor": "negative",
    "rpn.edges": "inside",
    "rpn.pre_train": 12_000,
    "rpn.pre_test": 6_000,
    "rpn.nms_over": "image",
    "rpn.least_side": 0.0,
    "rpn.limit": 4.42,
    "roi.fill": "any",
    "roi.pooling": "average",
    "roi.beta": 1.0,
    "roi.limit": 4.42,
    "mask.sampling_ratio": 2,
    "detect.score_above": 0.01,
    "detect.keep": 1_000,
    "detect.candidates": 4_000,
    "detect.least_side": 0.0,
    "detect.clip": "after",
    "detect.paste": "gluoncv",
}


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("maskrcnn", {**REFERENCE, "rpn.post_of": "batch", "loss_group": 2}),
        ("maskrcnn-nvidia-96", {**REFERENCE, "rpn.post_of": "batch", "loss_group": 12}),
        ("maskrcnn-nvidia-256", {**REFERENCE, "loss_group": 4}),
        ("maskrcnn-nvidia-256-48nodes", {**REFERENCE, "loss_group": 1}),
        ("maskrcnn-gluoncv", {**GLUONCV, "loss_group": 2}),
        ("maskrcnn-gluoncv-192", {**GLUONCV, "loss_group": 1}),
        ("maskrcnn-custom", {}),
    ],
)
def test_a_system_changes_exactly_these_of_torchvision_s_rules(name, rules):
    assert changed(RECIPES[name]().model) == rules


def test_optimisers_are_the_systems():
    for name in ("maskrcnn", "maskrcnn-nvidia-96", "maskrcnn-nvidia-256", "maskrcnn-nvidia-256-48nodes"):
        optim = RECIPES[name]().optim
        assert (optim.momentum_form, optim.bias_lr, optim.clip_value) == ("torch", 2.0, 0.0)
    for name in ("maskrcnn-gluoncv", "maskrcnn-gluoncv-192"):
        optim = RECIPES[name]().optim
        assert (optim.momentum_form, optim.bias_lr, optim.clip_value) == ("lr_inside", 1.0, 1.5)
    for name in PUBLISHED:
        optim = RECIPES[name]().optim
        assert (optim.kind, optim.momentum, optim.weight_decay, optim.decay_on, optim.clip_norm) == (
            "sgd", 0.9, 1e-4, "no_norm_no_bias", 0.0
        )  # fmt: skip


@pytest.mark.parametrize("most", [512, 1])
@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_is_sound_and_runs_on_one_device_of_any_memory(name, most):
    recipe = RECIPES[name]()
    check_recipe(recipe)
    check_instances(recipe)
    if recipe.bn_span > 1 and most < recipe.bn_span:
        most = recipe.bn_span  # statistics of a batch want the batch
    _, plan = plan_of(name, most=most)
    assert plan.images_per_forward * plan.loss_forwards == plan.loss_group * plan.loss_groups
    assert plan.loss_forwards == math.ceil(plan.loss_group / plan.images_per_forward)


def test_the_reference_on_a_small_device_counts_first():
    plan = plan_of("maskrcnn-nvidia-96", world=8, most=4)[1]
    assert (plan.images_per_forward, plan.forwards, plan.loss_forwards, plan.loss_join) == (4, 3, 3, 1)


def test_own_data_start_from_the_recipe_for_them():
    recipe = override(RECIPES["maskrcnn-custom"](), {"global_batch": 16, "optim.lr": 0.02})
    assert not recipe.input.drop_empty and recipe.schedule.kind == "cosine" and 0 < recipe.ema < 1
    plan = make_plan(recipe, System(), world=2, most=8, train_images=500, val_images=100)
    assert (plan.loss_group, plan.loss_join) == (16, 2)
