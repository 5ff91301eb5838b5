"""The Mask R-CNN task: the order of photos, the few shapes that they are padded to, and the step that is tried first."""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from instance_sets import make_instances

from paceline._utils.errors import RecipeError
from paceline.config.maskrcnn import RPN, InstanceInput, MaskHead, MaskRCNNModel, RoI
from paceline.config.plan import BatchPlan, make_plan
from paceline.config.recipe import DATA_IMAGES, Recipe, override
from paceline.config.recipes import RECIPES
from paceline.config.system import System
from paceline.data.batch import InstanceBatch
from paceline.data.index.manifest import Manifest
from paceline.data.prepare.auto_prepare import prepare_if_needed
from paceline.data.shapes.render import DEFAULTS
from paceline.models.batch_shapes import AspectBuckets, ImageSizes, make_buckets
from paceline.models.datamodule import InputRank, is_target_data
from paceline.models.maskrcnn.module import MaskRCNNWithLoss
from paceline.models.registry import WORKLOADS
from paceline.models.task import Task

ALONE = InputRank(0, 1, torch.device("cpu"), 1)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACELINE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def coco(prepared, shared_data: Path) -> Task:
    """COCO photos under the reference's recipe: 800 pixels, 1,333 at most."""
    return task_of(RECIPES["maskrcnn"](), shared_data / "coco_mini")


@pytest.fixture(scope="module")
def drawn(prepared, tmp_path_factory) -> Path:
    return make_instances(tmp_path_factory.mktemp("photos") / "set", train=20, val=3)


def task_of(recipe: Recipe, root: Path) -> Task:
    return WORKLOADS["instance-segmentation"].open(recipe, Manifest.load(prepare_if_needed(root, kind="boxes")))


def changed(task: Task, **fields) -> Task:
    """The same photos under a recipe that differs in some fields (dots as __)."""
    other = copy(task.data)
    other.recipe = override(task.recipe, {name.replace("__", "."): value for name, value in fields.items()})
    sizes = [ImageSizes(split.heights, split.widths, kept) for split, kept in (
        (task.data.train, task.data.train_numbers), (task.data.val, task.data.val_numbers))]  # fmt: skip
    other.shapes = AspectBuckets(other.recipe, *sizes)
    return replace(task, data=other)


def plan_of(task: Task, batch: int, *, world: int = 1, most: int = 512) -> BatchPlan:
    assert task.recipe.global_batch_size == batch
    recipe = replace(task.recipe, model=replace(task.recipe.model, loss_normalizer_images=0))
    return make_plan(
        recipe, System(), world=world, most=most, train_images=task.data.train_images, val_images=task.data.val_images
    )


def step_of(task: Task, plan: BatchPlan, step: int) -> list[tuple[int, int]]:
    """(epoch, position) of every sample of a step, over all ranks."""
    cut = {"world": plan.world_size, "forwards": plan.micro_batches, "join": plan.bn_ranks}
    parts = [task.data.samples(step, rank=rank, **cut) for rank in range(plan.world_size)]
    return [pair for epochs, places in parts for pair in zip(epochs.tolist(), places.tolist())]


def epoch_shapes(task: Task, plan: BatchPlan) -> set[tuple[int, int]]:
    """Shapes of all steps of the first two epochs; no photo is read."""
    found = set()
    for step in range(2 * task.data.train_images // plan.global_batch_size):
        found.add(task.data.shapes.of_step(step, task.data.train_numbers[task.data.samples(step)[1]]).shape)
    return found


@pytest.mark.parametrize("batch", [16, 2])
def test_an_epoch_takes_every_photo_once_whatever_the_number_of_ranks(coco, batch):
    coco = changed(coco, global_batch_size=batch, optim__lr=0.01)
    plans = [plan_of(coco, batch, world=world, most=most) for world, most in ((1, 16), (2, 16), (1, 1))]
    n = coco.data.train_images
    taken = []
    for step in range(-(-2 * n // batch)):
        mine, *others = (step_of(coco, plan, step) for plan in plans)
        assert all(sorted(mine) == sorted(other) for other in others)
        taken += mine
    for epoch in (0, 1):
        assert sorted(place for its_epoch, place in taken if its_epoch == epoch) == list(range(n))
    assert n % batch  # so that a step spanned both epochs


def test_the_order_follows_from_seed_and_step_alone(coco, shared_data):
    coco = changed(coco, global_batch_size=16, optim__lr=0.01)
    plan = plan_of(coco, 16, world=2)
    other = task_of(coco.recipe, shared_data / "coco_mini")
    later_first = {step: step_of(other, plan, step) for step in (40, 3, 17, 0)}
    assert {step: step_of(coco, plan, step) for step in sorted(later_first)} == later_first
    reseeded = task_of(replace(coco.recipe, seed=coco.recipe.seed + 1), shared_data / "coco_mini")
    assert step_of(reseeded, plan, 3) != later_first[3]


@pytest.mark.parametrize("each", [16, 2])
def test_coco_photos_come_in_no_more_shapes_than_there_are_buckets(coco, each):
    coco = changed(coco, global_batch_size=16, optim__lr=0.01)
    plan = plan_of(coco, 16, most=each)
    assert plan.micro_batch_size == each
    found, ladder = epoch_shapes(coco, plan), make_buckets(800, 1333, 32)
    assert found <= set(ladder) and 4 <= len(found) <= len(ladder) <= 10
    height, width = coco.data.shapes.of_run(plan)[0].shape
    assert max(h * w for h, w in found) <= height * width


def test_one_photo_a_step_is_padded_for_itself_alone(coco):
    coco = changed(coco, global_batch_size=1, optim__lr=0.01)
    plan = plan_of(coco, 1)
    assert coco.data.shapes.of_run(plan)[0].shape == max(epoch_shapes(coco, plan), key=lambda shape: shape[0] * shape[1])


def test_no_photo_of_a_step_is_larger_than_its_shape_with_several_short_sides(coco):
    short = (640, 672, 704, 736, 768, 800)
    task = changed(coco, input__min_size=short, global_batch_size=4, optim__lr=0.01)
    plan = plan_of(task, 4)
    found, largest = epoch_shapes(task, plan), task.data.shapes.of_run(plan)[0].shape
    ladders = {shape for side in short for shape in make_buckets(side, 1333, 32)}
    assert found <= ladders and len({min(shape) for shape in found}) > 3
    assert max(h * w for h, w in found) <= largest[0] * largest[1]


@pytest.mark.parametrize("padding", ["buckets", "multiple"])
def test_what_a_validation_photo_is_padded_to_depends_on_it_alone(coco, padding):
    task = changed(coco, input__padding_mode=padding)
    shapes: dict[int, set[tuple[int, int]]] = {}
    for mine, batch in ((task.data.val_numbers, 8), (task.data.val_numbers, 1), (task.data.val_numbers[::2], 3)):
        forwards, (height, width) = task.data.shapes.evaluation(mine, batch)
        assert sorted(np.concatenate([numbers for numbers, _ in forwards])) == sorted(mine)
        for numbers, fit in forwards:
            assert len(numbers) <= batch and math.prod(fit.shape) <= height * width
            for number in numbers.tolist():
                shapes.setdefault(number, set()).add(fit.shape)
    assert len(shapes) == task.data.val_images and all(len(found) == 1 for found in shapes.values())
    assert len(set.union(*shapes.values())) > 3
    assert task.data.shapes.evaluation(task.data.val_numbers[:0], 4)[0] == []
    for number in task.data.val_numbers.tolist():
        size = int(task.data.val.heights[number]), int(task.data.val.widths[number])
        assert shapes[number] == {task.workload.network.eval_shape(task.recipe, *size)}


def test_proposals_of_a_loss_group_are_refused_where_a_forward_is_a_part_of_it(coco):
    groups_of_two = replace(coco.recipe.model, loss_normalizer_images=2)
    assert groups_of_two.parity.post_nms_per == "batch"
    recipe, check = replace(coco.recipe, model=groups_of_two), coco.workload.network.check_plan
    for world, most, whole in ((1, 16, True), (4, 2, True), (1, 1, False), (2, 1, False)):
        plan = make_plan(recipe, System(), world=world, most=most, train_images=281, val_images=64)
        assert (plan.loss_micro_batches * plan.loss_ranks == 1) == whole
        if whole:
            check(recipe, plan)
        else:
            with pytest.raises(RecipeError, match=r"(?s)post-nms-per batch.*--system.micro-batch-size 2"):
                check(recipe, plan)


def small() -> Recipe[MaskRCNNModel, InstanceInput]:
    return Recipe(
        task="instance-segmentation",
        model=MaskRCNNModel(
            depth=10,
            width=8,
            norm="group",
            freeze_stages=0,
            fpn_channels=16,
            rpn=RPN(anchor_sizes=(12.0, 24.0, 36.0, 48.0, 64.0), post_nms_topk_train=24),
            roi=RoI(samples_per_image=40, positive_fraction=0.5, fc_channels=16),
            mask=MaskHead(num_convs=1, target_buffer_size=28),
        ),
        input=InstanceInput(min_size=(48, 64), max_size=96, min_crop_scale=0.8, skip_empty=False),
        global_batch_size=4,
        epochs=2,
        bn_batch_size=1,
    )


def test_the_step_tried_first_is_as_large_as_any_of_the_run_and_runs(drawn):
    task = task_of(small(), drawn)
    plan = plan_of(task, 4, most=2)
    model = task.build(torch.device("cpu"))
    assert isinstance(model, MaskRCNNWithLoss) and task.data.max_objects == 3
    system = System(precision="fp32")
    first = task.data.warm_up_batch(plan, torch.device("cpu"))
    assert isinstance(first, InstanceBatch)
    rows = []
    with task.data.train_loader(plan, system, ALONE, first=0, one_batch=False) as loader:
        for _, batches in loader:
            for batch in batches:
                assert isinstance(batch, InstanceBatch)
                assert batch.images[0, 0].numel() <= first.images[0, 0].numel()
                for name in ("images", "labels", "boxes", "canvases", "frames", "sizes", "keys", "indices"):
                    got, worst = getattr(batch, name), getattr(first, name)
                    assert got.numel() <= worst.numel() and got.dtype == worst.dtype, name
                rows.append(int(model.count(batch)[0, 4]))
    assert len(rows) == 20
    found = model(first)
    assert torch.isfinite(found["sums"]).all()
    # The mask head is full: half of 40 regions of each of two images.
    assert int(found["counts"][0, 4]) == 2 * 20 and max(rows) <= 2 * 20
    found["sums"].sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_crowds_never_train_and_empty_photos_only_where_they_are_wanted(drawn):
    with_empty = task_of(small(), drawn)
    without = task_of(override(small(), {"input.skip_empty": True}), drawn)
    assert (with_empty.data.train_images, without.data.train_images) == (20, 18)  # one empty, one with a crowd alone
    for number in range(20):
        _, objects = with_empty.data.sample(0, number)
        kept = len(objects.classes)
        assert kept == 0 if number in (2, 3) else 1 <= kept <= 1 + number % 3


def test_a_cap_on_objects_leaves_the_largest_and_fewer_slots(drawn):
    whole, capped = (task_of(override(small(), {"input.max_objects": most}), drawn) for most in (0, 1))
    assert (whole.data.max_objects, capped.data.max_objects) == (
        3,
        1,
    ) and capped.data.train_images == whole.data.train_images
    for number in range(20):
        rows, kept = whole.data.wanted_rows(number), capped.data.wanted_rows(number)
        assert len(kept) == min(1, len(rows)) and set(kept) <= set(rows)
        assert not len(kept) or whole.data.train.areas[kept[0]] == max(whole.data.train.areas[rows])
    larger = task_of(override(small(), {"input.min_object_area": float(np.median(whole.data.train.areas))}), drawn)
    assert 0 < larger.data.wanted.sum() < whole.data.wanted.sum() and larger.data.train_images == whole.data.train_images


def test_the_built_in_set_is_the_tiny_recipe_s_target_data():
    recipe, images = RECIPES["maskrcnn-demo"](), DEFAULTS["boxes"][:2]
    assert DATA_IMAGES[recipe.target_data] == images and not recipe.input.skip_empty
    rendered = SimpleNamespace(root_path=Path("cache/shapes-boxes-v2-seed0-1-2-3px"))
    mine = SimpleNamespace(root_path=Path("photos/mine"))
    assert is_target_data(recipe, rendered, images)  # type: ignore[arg-type]
    assert not is_target_data(recipe, mine, images)  # type: ignore[arg-type]
    assert not is_target_data(recipe, rendered, (images[0] - 1, images[1]))  # type: ignore[arg-type]


def test_a_handful_of_coco_photos_is_not_the_target_s_data(coco):
    assert not coco.data.is_target_data
    assert is_target_data(coco.recipe, SimpleNamespace(root_path=Path("coco")), DATA_IMAGES["coco"])  # type: ignore[arg-type]
