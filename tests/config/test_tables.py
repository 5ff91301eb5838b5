"""Every recipe of the menu and every row is its published table, field by field, and no field can change without a red test.

The tables are typed from the fact sheets (published_*.py beside this file), logged.json is what the published runs
logged themselves (scripts/record_published_logs.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import published_maskrcnn as maskrcnn
import published_resnet50 as resnet50
import published_rows as rows
import published_ssd as ssd
import pytest
from published_cells import differences, leaves

from paceline.config.constraints import get_hints
from paceline.config.plan import lr_at, make_plan
from paceline.config.recipe import DATA_IMAGES, Recipe
from paceline.config.recipes import RECIPES
from paceline.config.recipes.published_rows import ROWS
from paceline.config.system import System

TABLES = resnet50.TABLES | ssd.TABLES | maskrcnn.TABLES
PLANS = resnet50.PLANS | ssd.PLANS | maskrcnn.PLANS
WITHOUT_A_LOG = ROWS.keys() - rows.LOGS.keys()
# Recipes of the menu and the run that they are.
RUNS = {
    "resnet50-mlperf-3200": "v3.0 NVIDIA dgxh100_ngc23.04_mxnet",
    "resnet50-mlperf-3200-8x8": "v3.0 NVIDIA dgxh100_n8_ngc23.04_mxnet",
    "resnet50-mlperf-20480": "v3.0 NVIDIA dgxh100_n64_ngc23.04_mxnet",
    "resnet50-mlperf-32256": "v3.0 NVIDIA dgxh100_n96_ngc23.04_mxnet",
    "resnet50-mlperf-57344": "v3.0 NVIDIA_CoreWeave coreweave_hgxh100_n448_ngc23.04_mxnet",
    "resnet50-a100-3264": "v3.0 Dell XE9680x8A100-SXM-80GB",
    "resnet50-gaudi2-2048": "v3.0 Intel-HabanaLabs HLS-Gaudi2-PT",
    "ssd-mlperf-512": "v0.7 DellEMC C4140",
    "ssd-mlperf-896": "v0.7 DellEMC 4xC4140",
    "ssd-mlperf-1024": "v0.7 DellEMC 2xC4140",
    "ssd-mlperf-1024-dss8440": "v0.7 DellEMC DSS8440",
    "ssd-mlperf-1536": "v0.7 NVIDIA dgxa100_n8_ngc20.06_mxnet",
    "ssd-mlperf-2048": "v0.7 NVIDIA dgxa100_n64_ngc20.06_mxnet",
    "maskrcnn-nvidia-96": "v3.0 NVIDIA dgxh100_ngc23.04_pytorch",
    "maskrcnn-nvidia-256": "v3.0 NVIDIA dgxh100_n8_ngc23.04_pytorch",
    "maskrcnn-nvidia-256-48nodes": "v3.0 NVIDIA dgxh100_n48_ngc23.04_pytorch",
}
BENCHMARKS = {"classification": "resnet", "detection": "ssd", "instance-segmentation": "maskrcnn"}


def test_every_recipe_and_row_has_a_table_whose_cells_name_their_source():
    assert TABLES.keys() == RECIPES.keys()
    assert rows.TABLES.keys() == ROWS.keys()
    for name, table in (TABLES | rows.TABLES).items():
        for field, cell in table.items():
            assert cell.source and cell.source != "ours: ", (name, field)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_its_table_field_by_field(name):
    assert differences(RECIPES[name](), TABLES[name]) == []


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_its_table_field_by_field(name):
    assert differences(ROWS[name].make(), rows.TABLES[name]) == []


def mutants(node: Any, kind: type) -> Iterator[tuple[str, Any]]:
    """A dataclass once for each other value of each leaf field within it: (the field's dotted name, the changed dataclass)."""
    hints = get_hints(kind)
    for entry in fields(node):
        value = getattr(node, entry.name)
        if is_dataclass(value):
            for name, changed in mutants(value, type(value)):
                yield f"{entry.name}.{name}", replace(node, **{entry.name: changed})
            continue
        for other in others(value, hints.get(entry.name)):
            yield entry.name, replace(node, **{entry.name: other})


def others(value: Any, hint: Any) -> Iterator[Any]:
    """Other values of a field: every other choice; another number, truth value or text; a tuple longer, shorter and changed."""
    if get_origin(hint) is Literal:
        yield from (choice for choice in get_args(hint) if choice != value)
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, -1)
    elif isinstance(value, float):
        yield from (value * 1.001 + 1e-6, value + 1.0, 0.0 if value else -1.0)
    elif isinstance(value, str):
        yield from (f"{value}x", *([""] if value else []))
    elif isinstance(value, tuple):
        yield (*value, value[-1] if value else 1.0)
        for place, part in enumerate(value):
            yield (*value[:place], *value[place + 1 :])
            for other in others(part, None):
                yield (*value[:place], other, *value[place + 1 :])
    else:
        raise AssertionError(f"no other value of {value!r}: say what a mutation of it is")


def test_no_mutation_of_any_field_of_any_recipe_survives():
    survivors, seen = [], 0
    for name, make in RECIPES.items():
        recipe, mutated = make(), set()
        for field, changed in mutants(recipe, Recipe):
            mutated.add(field)
            seen += 1
            if [line.partition(":")[0] for line in differences(changed, TABLES[name])] != [field]:
                survivors.append((name, field))
        of_one_choice = {"input.resize"} if recipe.task == "classification" else set()
        assert mutated | of_one_choice == {field for field, _ in leaves(recipe)}, name
    assert survivors == [] and seen > 6000


def test_no_mutation_of_any_field_of_any_row_survives():
    """A field that has one value in many rows, and one in their tables, is changed in one of them: it would be the same change."""
    survivors, seen, done = [], 0, set()
    for name, row in ROWS.items():
        recipe, table = row.make(), rows.TABLES[name]
        found = dict(leaves(recipe))
        here = set()
        for field, changed in mutants(recipe, Recipe):
            alike = (recipe.task, field, repr(found[field]), repr(table[field].value) if field in table else None)
            if alike in done:
                continue
            here.add(alike)
            seen += 1
            if [line.partition(":")[0] for line in differences(changed, table)] != [field]:
                survivors.append((name, field))
        done |= here
    assert survivors == [] and seen > 1400


# Fields of rows that once could change unseen, and what they were changed to.
PLANTED_IN_ROWS = [
    ("resnet50@dell-4xh100-3264", "optim.momentum_style", "torch"),
    ("resnet50@nvidia-527x8xa100-67456", "optim.no_decay", "norm"),
    ("ssd@nvidia-dgx-a100-v1.1-912", "optim.momentum", 0.95),
    ("ssd@nvidia-dgx-a100-v1.1-912", "epochs", 80.0),
    ("ssd@nvidia-dgx1-pytorch-960", "eval.at", (40, 50, 56, 60, 65, 70, 75, 80)),
    ("ssd@nvidia-dgx1-pytorch-960", "schedule.warmup_step_offset", 1),
    ("ssd@google-tpu-v4-1024", "schedule.warmup_start_factor", 0.1),
    ("ssd@habana-gaudi2-240", "schedule.min_lr", 0.0),
    ("ssd@reference-2x8-1024", "schedule.warmup_step_offset", 1),
    ("maskrcnn@dell-4xa100-40gb-48", "max_images", 40_000 * 48),
    ("maskrcnn@iei-8xa40-64", "optim.weight_decay", 5e-4),
    ("maskrcnn@iei-8xa40-64", "bn_batch_size", 8),
    ("maskrcnn@iei-8xa40-64", "optim.clip_value", 1.5),
    ("maskrcnn@gluoncv-26-epochs-8", "model.rpn.post_nms_topk_train", 1000),
    ("maskrcnn@gluoncv-26-epochs-8", "model.parity.post_nms_per", "batch"),
    ("maskrcnn@gluoncv-26-epochs-8", "seed", 1),
]


# The 21 errors that a review planted and that stayed green: recipe, field, value.
PLANTED = [
    ("ssd-mlperf-1024", "optim.weight_decay", 1.6e-3),
    ("ssd-mlperf-1024", "optim.momentum_style", "torch"),
    ("ssd-mlperf-1024", "input.hue", 0.5),
    ("ssd-mlperf-1024", "model.parity.plus_one", False),
    ("ssd-mlperf-1024", "eval.at", (42, 50, 55, 60, 65, 70, 75, 80)),
    ("ssd-mlperf-2048", "schedule.milestones", (44, 55)),
    ("ssd-mlperf-448", "optim.lr", 0.08),
    ("ssd-mlperf-912", "schedule.warmup", 1.0),
    ("ssd-gaudi", "input.crop_trials", 1),
    ("ssd-gaudi", "input.parity.brightness_mode", "multiply"),
    ("ssd-gaudi", "model.match_rule", "gt"),
    ("ssd-gaudi", "model.parity.tie", "last"),
    ("ssd-gaudi-cosine", "model.parity.freeze_first_conv", False),
    ("ssd", "target", (("box_ap", 0.13),)),
    ("resnet50-mlperf-3200", "optim.no_decay", "none"),
    ("resnet50-mlperf-32256", "optim.momentum", 0.9),
    ("resnet50-mlperf-3200", "optim.weight_decay", 5e-4),
    ("resnet50-mlperf-3200", "input.crop_scale", (0.5, 1.0)),
    ("resnet50-mlperf-3200", "model.init", "torchvision"),
    ("resnet50-mlperf-3200", "model.label_smoothing_style", "torch"),
    ("resnet50-mlperf-3200", "optim.momentum_style", "mxnet"),
    ("resnet50-mlperf-3200", "target", (("top1", 0.659),)),
    ("maskrcnn", "input.hflip", 0.0),
    ("maskrcnn-gluoncv", "input.resize", "bilinear-antialias"),
    ("maskrcnn-gluoncv", "pretrained", "resnet50-v1"),
    ("ssd-mlperf-1024", "pretrained", "resnet34"),
]


def put(node: Any, path: list[str], value: Any) -> Any:
    if len(path) > 1:
        value = put(getattr(node, path[0]), path[1:], value)
    return replace(node, **{path[0]: value})


def test_the_errors_that_once_stayed_green_are_caught():
    for name, field, value in PLANTED:
        planted = put(RECIPES[name](), field.split("."), value)
        assert [line.partition(":")[0] for line in differences(planted, TABLES[name])] == [field]
    for name, field, value in PLANTED_IN_ROWS:
        planted = put(ROWS[name].make(), field.split("."), value)
        assert [line.partition(":")[0] for line in differences(planted, rows.TABLES[name])] == [field]


def planned(recipe: Recipe, world: int, most: int):
    train, val = DATA_IMAGES[recipe.target_data]
    return make_plan(recipe, System(), world=world, most=most, train_images=train, val_images=val)


@pytest.mark.parametrize(("name", "world"), PLANS)
def test_a_recipe_resolves_to_its_published_plan(name, world):
    images, join, per_epoch, total, warmup, falls, evaluated, rates = PLANS[name, world]
    recipe = RECIPES[name]()
    plan = planned(recipe, world, images)
    assert (plan.micro_batch_size, plan.micro_batches, plan.bn_ranks) == (images, 1, join)
    assert (plan.steps_per_epoch, plan.total_steps) == (per_epoch, total)
    assert plan.warmup_steps == pytest.approx(warmup, rel=1e-9)
    if isinstance(falls, tuple):
        assert plan.milestones == pytest.approx(falls, rel=1e-12) and plan.decay_end_step == total
    else:
        assert plan.milestones == () and plan.decay_end_step == pytest.approx(falls, rel=1e-12)
    assert plan.eval_steps[: len(evaluated)] == tuple(epoch * per_epoch for epoch in evaluated)
    for step, rate in rates.items():
        assert lr_at(recipe, plan, step) == pytest.approx(rate, rel=1e-9, abs=1e-15), step


def test_every_published_recipe_has_a_plan():
    assert {name for name, _ in PLANS} == {
        name for name in RECIPES if not name.endswith(("-demo", "-finetune", "-cpu"))
    } - {"resnet50"}


def compare_with_log(recipe: Recipe, images: int, world: int, logged: dict[str, Any]) -> None:
    """A recipe beside what its run logged: rates, warm-up, decay, momentum, falls, span, batch, proposals and evaluations."""
    plan = planned(recipe, world, images)
    optim, prefix = recipe.optim, "lars_opt" if recipe.optim.name == "lars" else "opt"
    assert recipe.global_batch_size == logged["global_batch_size"] == world * images
    assert plan.bn_batch_size == logged.get("model_bn_span", plan.bn_batch_size)
    # On TPUs the rate was logged for 32 images, and the batch's multiple of these as the warm-up's factor.
    times = max(1.0, logged.get("opt_learning_rate_warmup_factor", 1.0))
    assert optim.lr == pytest.approx(times * logged[f"{prefix}_base_learning_rate"], rel=1e-6)
    assert optim.weight_decay == logged.get(f"{prefix}_weight_decay", optim.weight_decay)
    if recipe.task == "classification":
        assert optim.momentum == logged["lars_opt_momentum"]
        assert recipe.schedule.warmup == logged["lars_opt_learning_rate_warmup_epochs"]
        assert recipe.schedule.min_lr == logged["lars_opt_end_learning_rate"]
        # NVIDIA's code logs the schedule's epochs, or its steps; Habana's the steps of the decay alone.
        ends = plan.decay_end_step
        assert any(
            math.isclose(logged["lars_opt_learning_rate_decay_steps"], value)
            for value in (ends / plan.steps_per_epoch, ends, ends - plan.warmup_steps)
        )
    else:
        assert round(plan.warmup_steps, 6) == logged["opt_learning_rate_warmup_steps"]
    if recipe.task == "detection":
        assert list(recipe.schedule.milestones) == logged["opt_learning_rate_decay_boundary_epochs"]
        assert recipe.input.crop_trials == logged["max_samples"]
    if recipe.task == "instance-segmentation":
        first, second = logged["opt_learning_rate_decay_steps"]
        assert recipe.schedule.milestones == (first + 2, second + 1)
        rise = lr_at(recipe, plan, 3) - lr_at(recipe, plan, 2)
        assert rise == pytest.approx(logged["opt_learning_rate_warmup_factor"], rel=1e-6)
        rpn, parity, many = recipe.model.rpn, recipe.model.parity, logged["num_image_candidates"]
        assert rpn.post_nms_topk_train == (many if parity.post_nms_per == "image" else round(many / images))
        assert parity.post_nms_per == "image" or many == (parity.post_nms_batch or rpn.post_nms_topk_train * images)
    later = [epoch - 1 for epoch in logged["evaluated"]]  # Fujitsu's and Inspur's log counts epochs from 2
    epochs = [step / plan.steps_per_epoch for step in plan.eval_steps[:2]]
    assert epochs == logged["evaluated"] or epochs == later


@pytest.mark.parametrize("name", RUNS)
def test_a_recipe_is_what_its_run_logged(name):
    recipe = RECIPES[name]()
    (world, images) = next((world, plan[0]) for (of, world), plan in PLANS.items() if of == name)
    compare_with_log(recipe, images, world, rows.LOGGED[f"{RUNS[name]} {BENCHMARKS[recipe.task]}"])


@pytest.mark.parametrize("name", rows.LOGS)
def test_a_row_is_what_its_run_logged(name):
    row = ROWS[name]
    recipe = row.make()
    compare_with_log(recipe, row.images, row.nodes * row.per_node, rows.LOGS[name])


def test_rows_without_a_log_are_those_that_were_typed_from_files():
    assert rows.FROM_FILES.keys() == rows.TYPED.keys() == WITHOUT_A_LOG


@pytest.mark.parametrize("name", rows.FROM_FILES)
def test_a_row_without_a_log_is_what_its_file_says(name):
    per_epoch, warmup, lr, decay, span, falls = rows.FROM_FILES[name]
    row = ROWS[name]
    recipe = row.make()
    plan = planned(recipe, row.nodes * row.per_node, row.images)
    assert (plan.steps_per_epoch, plan.bn_batch_size, recipe.optim.weight_decay) == (per_epoch, span, decay)
    assert plan.warmup_steps == pytest.approx(warmup, rel=1e-9) and recipe.optim.lr == pytest.approx(lr, rel=1e-12)
    if isinstance(falls, tuple):
        assert [step / per_epoch for step in plan.milestones] == pytest.approx(list(falls), rel=1e-12)
    else:
        assert plan.decay_end_step == falls * per_epoch


def test_a_row_differs_from_its_family_s_recipe_only_in_what_rows_are_made_of():
    free = {"global_batch_size", "epochs", "max_images", "bn_batch_size", "optim.lr", "optim.weight_decay", "optim.momentum", "seed",
            "schedule.warmup", "schedule.warmup_start_factor", "schedule.warmup_step_offset", "schedule.milestones", "eval.start",
            "eval.every", "eval.at", "model.loss_normalizer_images", "model.rpn.post_nms_topk_train",
            "model.parity.post_nms_per", "model.parity.post_nms_batch",
            "optim.clip_value",
            "optim.no_decay", "optim.momentum_style", "schedule.min_lr"}  # fmt: skip
    families = {"resnet50": ["resnet50-mlperf-3200"], "maskrcnn": ["maskrcnn-nvidia-96", "maskrcnn-gluoncv"],
                "ssd": ["ssd", "ssd-mlperf-1024", "ssd-gaudi", "ssd-gaudi-cosine"]}  # fmt: skip
    for name, row in ROWS.items():
        others_of = [dict(leaves(RECIPES[recipe]())) for recipe in families[name.partition("@")[0]]]
        if (
            name.startswith("ssd@") and "pytorch" in row.source
        ):  # the MXNet submissions' input under the reference's decoding
            decoded = put(RECIPES["ssd-mlperf-1024"](), ["model"], RECIPES["ssd"]().model)
            decoded = put(put(decoded, ["model", "heads"], "fused"), ["input", "color_jitter"], "matrix")
            decoded = put(decoded, ["model", "parity", "box_order"], "anchor-last")
            others_of.append(dict(leaves(decoded)))
        found = dict(leaves(row.make()))
        changed = min(({field for field in found if found[field] != other[field]} for other in others_of), key=len)
        assert changed <= free, (name, changed - free)


def test_the_pages_of_published_recipes_name_all_of_them_and_their_logs():
    folder = Path(__file__).parents[2] / "docs/reference/generated/recipes"
    recipes, variants = folder / "sources.md", folder / "published-variants.md"
    logs = dict(re.findall(r"^\| `([\w-]+)` \| \S.* \| \S.* \| (.*) \|$", recipes.read_text(), re.MULTILINE))
    assert logs.keys() == {name for name in RECIPES if not name.endswith(("-demo", "-finetune", "-cpu"))}
    assert {name: log for name, log in logs.items() if log} == RUNS
    lines = [line for line in variants.read_text().splitlines() if line.startswith("| `")]
    assert lines == [
        f"| `{name}` | {row.source} | {row.machine} | {'*' * (name in rows.LOGS)} | {row.ours} |"
        for name, row in ROWS.items()
    ]
