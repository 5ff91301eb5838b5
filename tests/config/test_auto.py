"""--auto-config: which flags follow from which data, those set by hand stay, and the plan that comes of them is never refused."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.cli.flags import parse_run_args
from paceline.config.auto import AutoContext, DatasetStats, apply_choices, choose_fields, count_evaluations, count_steps
from paceline.config.plan import make_plan
from paceline.config.recipes import RECIPES
from paceline.config.run import RunOptions
from paceline.config.system import System
from paceline.models.registry import get_workload

OWN = [name for name in RECIPES if name.endswith(("-finetune", "-finetune-cpu", "-demo"))]
FACES = DatasetStats(525, 267, (477, 173, 57), 2467, 0.03, 0.037, 0.2)


def chosen(name: str, found: DatasetStats, *hands: str, **more: Any) -> dict[str, Any]:
    return {choice.field: choice.value for choice in choose_fields(RECIPES[name](), found, AutoContext(hands, **more))}


@pytest.mark.parametrize(
    ("name", "found", "field", "value"),
    [
        # 0.03 x 416 = 12.5 pixels; 0.015 would want 533, and a CPU has 448.
        ("ssd-finetune-cpu", FACES, "input.image_size", None),
        ("ssd-finetune-cpu", DatasetStats(525, 267, (), 2467, 0.015), "input.image_size", 448),
        ("ssd-demo", DatasetStats(525, 170, (), 2467, 0.015), "input.image_size", 352),  # twice the photos' own
        ("ssd-finetune-cpu", DatasetStats(525, 267, (), 2467, 0.05), "input.image_size", None),
        ("ssd-finetune-cpu", DatasetStats(525, 267, (), 2467, 0.05), "model.scales", None),
        ("ssd-finetune-cpu", DatasetStats(525, 480, (), 3939, 0.145, 0.15, 0.174), "model.scales", None),  # never larger ones
        # Level by level: the objects' sizes, and no less than 1.4 cells of 56, 28, 14, 7, 5 and 3 along a side.
        ("ssd-finetune-cpu", DatasetStats(525, 480, (), 3939, 0.015, 0.015, 0.2), "model.scales",
         (0.015, 0.05, 0.1, 0.2, 0.28, 0.467, 1.05)),
        ("maskrcnn-finetune-cpu", DatasetStats(220, 576, (), 7012, 0.029, 0.029), "input.min_size", None),
        ("maskrcnn-finetune-cpu", DatasetStats(220, 576, (), 7012, 0.019, 0.019), "input.min_size", (448, 544)),
        ("maskrcnn-finetune-cpu", DatasetStats(220, 576, (), 7012, 0.019, 0.019), "input.max_size", 736),
        # 0.019 x 384 = 7.3 pixels: anchors of 8 to 224 for photos that may not become larger.
        ("maskrcnn-finetune-cpu", DatasetStats(220, 128, (), 7012, 0.019, 0.019), "model.rpn.anchor_sizes", (8.0, 18.0,
        42.0, 97.0, 224.0)),
        ("fasterrcnn-finetune-cpu", FACES, "model.rpn.anchor_sizes", None),
        ("classify-finetune-cpu", DatasetStats(786, 348, (16, 60)), "input.image_size", None),
        ("ssd-finetune-cpu", FACES, "sampler", None),  # of no measured worth
        ("classify-finetune-cpu", DatasetStats(786, 90, (16, 60)), "input.image_size", 96),
        ("classify-finetune-cpu", DatasetStats(9000, 348, ()), "input.image_size", None),
        ("classify-demo", DatasetStats(786, 348, ()), "input.image_size", None),
        ("ssd-finetune-cpu", FACES, "epochs", None),
        ("ssd-finetune-cpu", DatasetStats(200, 267, (), 900, 0.05), "epochs", 60.0),
        ("ssd-finetune-cpu", DatasetStats(8000, 267, (), 900, 0.05), "epochs", 4.0),
        ("ssd-finetune-cpu", DatasetStats(16, 267, (), 60, 0.05), "global_batch_size", None),
        ("ssd-finetune-cpu", DatasetStats(12, 267, (), 60, 0.05), "global_batch_size", 2),
        ("ssd-finetune-cpu", DatasetStats(12, 267, (), 60, 0.05), "optim.lr", 0.000125),
        ("classify-finetune", DatasetStats(786, 348, ()), "eval.every", 0.125),
        ("classify-finetune", DatasetStats(786, 348, ()), "patience", 5),
        ("ssd-finetune", DatasetStats(1_000_000, 500, (), 9, 0.1), "schedule.warmup", 0.05),
    ],
)  # fmt: skip
def test_the_table(name, found, field, value):
    assert chosen(name, found, cpu="cpu" in name).get(field) == value


def test_what_is_set_by_hand_stays_and_the_rest_follows_from_it():
    assert "input.image_size" not in chosen("ssd-finetune-cpu", FACES, "input.image_size")
    assert "global_batch_size" not in chosen("ssd-finetune-cpu", DatasetStats(12, 267, (), 60, 0.05), "global_batch_size")
    assert "optim.lr" not in chosen("ssd-finetune-cpu", DatasetStats(12, 267, (), 60, 0.05), "optim.lr")
    for length in ("epochs", "max_images", "max_steps", "rescale_schedule"):
        assert "epochs" not in chosen("ssd-finetune-cpu", DatasetStats(200, 267, (), 900, 0.05), length)
    for hand in ("eval.every", "eval_every", "eval.at"):
        assert not {"eval.unit", "patience"} & chosen("classify-finetune", DatasetStats(786, 348, ()), hand).keys()
    assert chosen("classify-finetune", DatasetStats(786, 348, ()), "patience").keys() == {
        "eval.unit",
        "eval.start",
        "eval.every",
    }


shares = st.floats(0.0005, 1.5)
founds = st.builds(
    lambda photos, side, counts, objects, small, of_side, more: DatasetStats(
        photos, side, tuple(min(photos, count) for count in counts), objects, small, of_side, min(1.5, small * more)
    ),
    st.integers(1, 2_000_000), st.floats(1, 20_000), st.lists(st.integers(0, 10**6), max_size=9),
    st.integers(1, 10**7), shares, shares, st.floats(1, 40),
)  # fmt: skip


@settings(deadline=None)
@given(st.sampled_from(OWN), founds, st.booleans(), st.sampled_from([1, 2, 4, 8]))
def test_the_plan_is_never_refused_and_evaluates_five_to_ten_times_where_it_has_the_steps(name, found, cpu, ranks):
    recipe = RECIPES[name]()
    choices = choose_fields(recipe, found, AutoContext((), cpu, ranks))
    after = apply_choices(recipe, choices)
    get_workload(recipe.task).network.check(after)
    plan = make_plan(after, System(), world=ranks, most=after.global_batch_size, train_images=found.photos, val_images=9)
    assert plan.total_steps == count_steps(after, found.photos) and after.global_batch_size >= ranks
    assert after.global_batch_size <= max(found.photos, 2 * ranks)
    assert len(plan.eval_steps) <= 11 and (len(plan.eval_steps) >= 5 or plan.total_steps < 100)
    assert abs(count_evaluations(after, found.photos) - len(plan.eval_steps)) <= 1
    assert all(choice.why and "\n" not in choice.why for choice in choices)
    assert not choose_fields(
        after, found, AutoContext({choice.field for choice in choices}, cpu, ranks)
    )  # nothing is left to choose


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("ssd-finetune-cpu", DatasetStats(12, 267, (3, 17), 60, 0.01, 0.01, 0.2)),
        ("maskrcnn-finetune", DatasetStats(2_000_000, 128, (), 7012, 0.01, 0.01)),
        ("classify-finetune-cpu", DatasetStats(50, 90, (2, 48))),
    ],
)
def test_the_flags_say_the_same_as_the_choice(name, found):
    choices = choose_fields(RECIPES[name](), found, AutoContext(()))
    asked = parse_run_args([name, *shlex.split(" ".join(choice.flag for choice in choices))], RunOptions(), verb="train")
    assert asked.recipe == apply_choices(RECIPES[name](), choices) and len(choices) > 5
    assert asked.options.patience == {choice.field: choice.value for choice in choices}["patience"]
