"""Plan and sampler of the published recipes on as many ranks as they ran on, and on 1,024: no rank needs to exist for that."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from by_night import ONE_MORE
from messages import raises

from paceline._utils.errors import RecipeError
from paceline.config.plan import BatchPlan, evaluation_batch, make_plan
from paceline.config.recipe import DATA_IMAGES
from paceline.config.recipes import RECIPES
from paceline.data.loader.sampler import batch_indices, evaluation_shard, permutation, stream_positions
from paceline.distributed.device.systems import h100x8

RANKS = 1024
# Whose batch divides over 1,024 ranks; test_other_batches holds that no other's does.
MANY = (
    "resnet50",
    "resnet50-mlperf-20480",
    "resnet50-mlperf-57344",
    "resnet50-gaudi2-2048",
    "ssd-mlperf-1024",
    "ssd-mlperf-1024-dss8440",
    "ssd-mlperf-2048",
    "ssd-gaudi-1024",
)
# Recipe, ranks that train, ranks that only evaluate: as published, on more than 64 accelerators; and 1,024 launched.
CASES = [
    *((name, RANKS, 0) for name in MANY),
    ("resnet50-mlperf-20480", 512, 0),
    ("resnet50-mlperf-32256", 768, 0),
    pytest.param("resnet50-mlperf-57344", 3584, 0, marks=ONE_MORE),
    ("ssd-mlperf-2048", 512, 0),
    ("maskrcnn-gluoncv-192", 192, 0),
    ("maskrcnn-nvidia-256-48nodes", 256, 128),
    ("maskrcnn-nvidia-256-48nodes", 256, RANKS - 256),
]


def plan_of(name: str, world: int, eval_ranks: int) -> BatchPlan:
    recipe = RECIPES[name]()
    train, val = DATA_IMAGES[recipe.target_data]
    images = {"train_images": train, "val_images": val}
    return make_plan(recipe, h100x8(), world=world, most=512, eval_ranks=eval_ranks, **images)


@pytest.mark.parametrize(("name", "world", "eval_ranks"), CASES)
def test_every_rank_takes_as_many_and_each_image_is_taken_once_an_epoch(name, world, eval_ranks):
    plan = plan_of(name, world, eval_ranks)
    batch, images = plan.global_batch_size, plan.global_batch_size * 5 // 2 + 1  # a step in the middle spans two epochs
    orders = [permutation(images, seed=1, epoch=epoch) for epoch in range(3)]
    taken = [np.zeros(images, np.int64) for _ in orders]
    steps = 2 * images // batch
    for step in range(steps):
        places = np.empty((world, plan.images_per_rank), np.int64)
        for rank in range(world):
            cut = {"rank": rank, "world": world, "forwards": plan.micro_batches, "join": plan.bn_ranks}
            positions = stream_positions(step=step, global_batch_size=batch, **cut)
            epochs, found = batch_indices(images, positions, seed=1, order=lambda epoch: orders[epoch])
            for epoch in np.unique(epochs):
                np.add.at(taken[epoch], found[epochs == epoch], 1)
            places[rank] = epochs * images + found  # an image of an epoch, as one number; ragged ranks would not fit
        assert_spans(plan, orders, step, places)
    left = 2 * images - steps * batch
    assert (taken[0] == 1).all() and (taken[1] <= 1).all() and not taken[2].any()
    assert (taken[1] == 0).sum() == left < batch
    assert plan.micro_batch_size * plan.micro_batches * world == batch


def assert_spans(plan: BatchPlan, orders: list[np.ndarray], step: int, taken: np.ndarray) -> None:
    """Whoever shares BatchNorm statistics or a loss's divisor holds the same images as on one rank: a run of the stream.

    taken  (W, images of a rank), by forward
    """
    images = len(orders[0])
    stream = np.concatenate([epoch * images + order for epoch, order in enumerate(orders)])
    step_images = stream[step * plan.global_batch_size : (step + 1) * plan.global_batch_size]
    # ranks / join, join, forwards, groups of a forward, images -> a row for each set of statistics
    join, groups = plan.bn_ranks, plan.bn_groups
    rows = taken.reshape(-1, join, plan.micro_batches, groups, plan.micro_batch_size // groups)
    rows = rows.transpose(0, 2, 3, 1, 4).reshape(-1, plan.bn_batch_size)
    assert np.array_equal(in_order(rows), in_order(step_images.reshape(-1, plan.bn_batch_size)))


def in_order(rows: np.ndarray) -> np.ndarray:
    """Sets of numbers, each a row: the numbers of a row and then the rows in ascending order."""
    rows = np.sort(rows, axis=1)
    return rows[np.argsort(rows[:, 0])]


def test_other_batches_do_not_divide_over_1024_ranks_and_say_so():
    for name in set(RECIPES) - set(MANY):
        with raises(RecipeError, "1024 ranks", "nearest"):
            plan_of(name, RANKS, 0)


def test_mask_r_cnn_on_48_nodes_trains_on_256_of_384_ranks_and_evaluates_on_the_others():
    plan = plan_of("maskrcnn-nvidia-256-48nodes", 256, 128)
    assert (plan.world_size, plan.eval_ranks, plan.nodes, plan.images_per_rank) == (256, 128, 48, 1)
    assert (plan.loss_normalizer_images, plan.loss_ranks) == (1, 1)
    shares = [len(evaluation_shard(plan.val_images, rank, plan.evaluators)) for rank in range(128)]
    assert sum(shares) == 5000 and set(shares) == {39, 40}
    assert evaluation_batch(plan.micro_batch_size, plan.val_images, plan.evaluators) == 1
    alone = plan_of("maskrcnn-nvidia-256-48nodes", 256, 0)
    assert alone.nodes == 32 and alone.eval_steps == plan.eval_steps and alone.total_steps == plan.total_steps


@pytest.mark.parametrize("images", [0, 1, 1023, 5000, 50_000])
def test_evaluations_on_1024_ranks_see_every_image_once(images):
    ends = [
        (evaluation_shard(images, rank, RANKS).start, evaluation_shard(images, rank, RANKS).stop) for rank in range(RANKS)
    ]
    assert ends[0][0] == 0 and ends[-1][1] == images
    assert all(stop == start for (_, stop), (start, _) in itertools.pairwise(ends))
    assert max(stop - start for start, stop in ends) - min(stop - start for start, stop in ends) <= 1
