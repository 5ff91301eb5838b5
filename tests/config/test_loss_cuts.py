"""Which loss groups a cut batch reaches, counted image by image, and what is said where it does not."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from messages import check_text, raises

from paceline._utils.errors import RecipeError
from paceline.config.maskrcnn import InstanceInput, MaskRCNNModel
from paceline.config.plan import make_plan, recipe_loss_group, split_batch, split_loss_groups
from paceline.config.recipe import Recipe
from paceline.config.resnet import ImageInput, ResNetModel
from paceline.config.system import System
from paceline.data.loader.sampler import stream_positions


def recipe_of(loss_normalizer_images: int, batch: int = 16) -> Recipe:
    return Recipe(
        task="instance-segmentation",
        model=MaskRCNNModel(loss_normalizer_images=loss_normalizer_images),
        input=InstanceInput(),
        global_batch_size=batch,
        epochs=1,
        bn_batch_size=1,
    )


@given(
    world=st.sampled_from([1, 2, 3, 4]),
    share=st.integers(1, 24),
    most=st.integers(1, 24),
    group=st.integers(1, 48),
    span=st.sampled_from([1, 2, 4]),
)
def test_a_group_that_is_reached_holds_neighbouring_images_of_the_stream(world, share, most, group, span):
    batch = share * world
    try:
        images, forwards, _, bn_join = split_batch(batch, world, most, span, group)
    except RecipeError as refusal:
        # Without joined statistics every group that divides a rank's share is reached, and so is the whole batch.
        assert "--bn-batch-size" in str(refusal) or span > 1 or (share % group and group != batch)
        return
    cut = split_loss_groups(group, images=images, forwards=forwards, world=world, bn_join=bn_join)
    assert cut is not None and images <= most
    assert images * cut.forwards * cut.join == group * cut.groups and min(cut.groups, cut.forwards * cut.join) == 1
    if cut.join == world > 1:
        return  # all of the batch, whoever holds it
    for rank in range(world):
        places = stream_positions(
            step=3, rank=rank, world=world, global_batch_size=batch, forwards=forwards, join=bn_join
        ).reshape(-1, group)
        assert (places % group == range(group)).all()  # the same images in any cut


@pytest.mark.parametrize(
    ("group", "world", "most", "found"),
    [
        # loss_normalizer_images, ranks, images at most -> (images, forwards, loss_normalizer_images, loss_groups,
        # loss_forwards, loss_join)
        (0, 1, 16, (16, 1, 16, 1, 1, 1)),
        (0, 1, 4, (4, 4, 16, 1, 4, 1)),
        (0, 4, 16, (4, 1, 16, 1, 1, 4)),
        (0, 4, 2, (2, 2, 16, 1, 2, 4)),
        (16, 4, 2, (2, 2, 16, 1, 2, 4)),
        (2, 8, 16, (2, 1, 2, 1, 1, 1)),
        (2, 1, 16, (16, 1, 2, 8, 1, 1)),
        (2, 2, 1, (1, 8, 2, 1, 2, 1)),
        (8, 2, 4, (4, 2, 8, 1, 2, 1)),
        (1, 16, 1, (1, 1, 1, 1, 1, 1)),
    ],
)
def test_plans_of_known_cuts(group, world, most, found):
    plan = make_plan(recipe_of(group), System(), world=world, most=most, train_images=160, val_images=1)
    assert found == (
        plan.micro_batch_size, plan.micro_batches,
        plan.loss_normalizer_images, plan.loss_groups, plan.loss_micro_batches, plan.loss_ranks,
    )  # fmt: skip


def test_a_smaller_forward_is_taken_where_it_reaches_the_group():
    assert split_batch(24, 1, 10, 1, 12) == (6, 4, 6, 1)  # 8 images would not make up 12
    assert split_batch(24, 1, 10, 1) == (8, 3, 8, 1)


def test_a_group_beyond_a_rank_s_share_is_refused_with_both_ways_out():
    with pytest.raises(RecipeError) as refusal:
        make_plan(recipe_of(4), System(), world=8, most=2, train_images=160, val_images=1)
    text = str(refusal.value)
    assert "--model.loss-normalizer-images 4" in text and check_text(text, "2 images", "8 ranks")
    check_text(text, "1, 2, or 0")
    assert "ranks" in text and "--system.micro-batch-size" in text


def test_neighbouring_forwards_of_ranks_that_share_statistics_are_no_group():
    # 2 ranks x 4 forwards of 2, statistics over 4: a rank's neighboring forwards are 4 images apart in the stream.
    assert split_batch(16, 2, 2, 4) == (2, 4, 1, 2)
    with raises(RecipeError, "--model.loss-normalizer-images 8", "1, 2"):
        split_batch(16, 2, 2, 4, 8)
    assert split_batch(16, 2, 2, 4, 16) == (2, 4, 1, 2)


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("span", [1, 2, 4])
def test_a_refused_group_names_the_nearest_that_are_not_refused(world, span):
    def refusal(share, most, group):
        try:
            split_batch(share * world, world, most, span, group)
        except RecipeError as error:
            return str(error)
        return ""

    named = 0
    for share, most in itertools.product((4, 8, 12), (2, 4, 6)):
        reached = [size for size in range(1, share + 1) if not refusal(share, most, size)]
        for group in range(2, share * world):
            found = re.search(r"Nearest possible values: ([\d, ]+), or 0 ", refusal(share, most, group))
            if found:
                groups = [int(one) for one in found[1].split(", ")]
                assert groups == sorted(set(groups) & set(reached))
                ratios = sorted(max(group / one, one / group) for one in reached)[:3]
                assert sorted(max(group / one, one / group) for one in groups) == ratios
                named += 1
    assert named


def test_tasks_without_loss_groups_have_none():
    recipe = Recipe(task="classification", model=ResNetModel(), input=ImageInput(), epochs=1)
    assert recipe_loss_group(recipe) == 0
    plan = make_plan(recipe, System(), world=2, most=64, train_images=512, val_images=1)
    assert (plan.loss_normalizer_images, plan.loss_groups, plan.loss_micro_batches, plan.loss_ranks) == (0, 1, 1, 1)
