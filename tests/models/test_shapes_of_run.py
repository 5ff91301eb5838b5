"""All shapes that a run's steps will have are known before its first: nothing is compiled or captured later."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

from paceline.config.maskrcnn import InstanceInput
from paceline.config.plan import make_plan
from paceline.config.recipe import override
from paceline.config.recipes import RECIPES
from paceline.config.system import System
from paceline.data.loader.sampler import batch_indices, sampled_order, sampling_rates, stream_positions
from paceline.models import batch_shapes as shapes_module
from paceline.models.batch_shapes import AspectBuckets, ImageSizes, SquareShapes
from paceline.models.dummy_data import make_synthetic_task
from paceline.models.registry import WORKLOADS

SIDES = st.tuples(st.integers(20, 120), st.integers(20, 120))


def run_of(sizes, short, padding, batch, steps, order=None):
    recipe = override(RECIPES["maskrcnn-demo"](), {"global_batch_size": batch, "optim.lr": 0.01, "bn_batch_size": 1})
    recipe = replace(recipe, input=InstanceInput(min_size=short, max_size=96, padding_mode=padding))
    heights, widths = np.array(sizes).T
    # A photo that is not learned from stands before the others.
    every = ImageSizes(np.append(999, heights), np.append(1, widths), np.arange(1, len(sizes) + 1))
    plan = make_plan(recipe, System(), world=1, most=batch, train_images=len(sizes), val_images=len(sizes))
    return AspectBuckets(recipe, every, every, order), replace(plan, stop_after=steps, total_steps=steps)


def brought(shapes, plan, steps):
    """What the loader asks for, step by step."""
    numbers = shapes.train.numbers
    for step in steps:
        positions = stream_positions(step=step, global_batch_size=plan.global_batch_size)
        _, places = batch_indices(len(numbers), positions, seed=shapes.seed, order=shapes.order)
        yield shapes.of_step(step, numbers[places])


@examples(60)
@given(
    sizes=st.lists(SIDES, min_size=1, max_size=24),
    short=st.sampled_from([(64,), (48, 64), (40, 56, 64)]),
    padding=st.sampled_from(["buckets", "multiple"]),
    batch=st.integers(1, 10),
    steps=st.integers(1, 40),
)
def test_the_shapes_of_a_run_are_those_that_its_steps_have(sizes, short, padding, batch, steps):
    shapes, plan = run_of(sizes, short, padding, batch, steps)
    listed, taken = shapes.of_run(plan), list(brought(shapes, plan, range(steps)))
    assert set(listed) == set(taken) and len(listed) == len(set(listed))
    areas = [math.prod(fit.shape) for fit in listed]
    assert areas == sorted(areas, reverse=True)
    held = shapes.largest_of_run(plan)
    assert all(math.prod(fit.shape) <= math.prod(held.shape) for fit in taken)
    widest = math.prod(shapes.widest())
    assert widest >= math.prod(held.shape)
    assert widest >= math.prod(shapes.evaluation(shapes.val.numbers, 4)[1])


def test_past_what_is_looked_at_the_groups_tell(monkeypatch):
    sizes = [(60, 90)] * 9 + [(90, 60)] * 8 + [(64, 64)]
    shapes, plan = run_of(sizes, (64,), "buckets", 4, 40)
    exact = set(shapes.of_run(plan))
    monkeypatch.setattr(shapes_module, "MAX_EPOCHS", 1)
    assert exact <= set(shapes.of_run(plan))


def test_a_ladder_of_one_has_one_shape():
    one = SquareShapes(64, 80, images=8, seed=0)
    _, plan = run_of([(64, 64)], (64,), "buckets", 4, 3)
    assert [fit.shape for fit in one.of_run(plan)] == [(64, 64)] and one.widest() == (80, 80)


def test_made_up_batches_have_their_one_shape_listed():
    task = make_synthetic_task(WORKLOADS["detection"], RECIPES["ssd-demo"](), limit_train=64)
    plan = make_plan(task.recipe, System(), world=1, most=64, train_images=64, val_images=0)
    assert task.data.input_shapes(plan) == [task.data.shapes.of_sample(0).shape]


@examples(30)
@given(sizes=st.lists(SIDES, min_size=1, max_size=24), batch=st.integers(1, 10), steps=st.integers(1, 40))
def test_so_are_those_of_a_run_that_draws_some_photos_more_often(sizes, batch, steps):
    photos = np.arange(len(sizes))
    rates = sampling_rates("class-balanced", len(sizes), photos, photos % 4 // 3, 0.001)  # one of four is a class
    order = sampled_order(rates, photos % 4 // 3, seed=1)
    shapes, plan = run_of(sizes, (48, 64), "buckets", batch, steps, order)
    listed = shapes.of_run(plan)
    assert set(listed) == set(brought(shapes, plan, range(steps)))
    assert shapes.largest_of_run(plan) == listed[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shapes_module, "MAX_PHOTOS", 3 * batch)  # of few steps exactly, of the others by what can ever meet
        assert math.prod(shapes.largest_of_run(plan).shape) >= math.prod(listed[0].shape)
