"""Plans: published steps, any cut of a batch, refusals that say why."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from messages import raises

from paceline._utils.errors import RecipeError
from paceline.config.plan import count_training_ranks, ema_at, ema_initial_share, limit_steps, lr_at, make_plan, split_batch
from paceline.config.recipe import DATA_IMAGES, override
from paceline.config.recipes import RECIPES
from paceline.distributed.device.systems import SYSTEMS, h100x8

IMAGENET = DATA_IMAGES["imagenet"]

# spec: global batch, ranks, images a rank, peak lr, warm-up and schedule epochs, first evaluation, steps an epoch.
PUBLISHED = {
    "resnet50-mlperf-3200": (3200, 8, 400, 11.0, 2, 37, 3, 401),
    "resnet50-mlperf-3200-4x8": (3200, 32, 100, 10.7, 5, 37, 3, 401),
    "resnet50-mlperf-3200-8x8": (3200, 64, 50, 11.0, 2, 37, 3, 401),
    "resnet50-mlperf-20480": (20480, 512, 40, 22.0, 12, 52, 2, 63),
    "resnet50-mlperf-32256": (32256, 768, 42, 21.2, 16, 58, 4, 40),
    "resnet50-mlperf-57344": (57344, 3584, 16, 23.0, 32, 78, 1, 23),
    "resnet50-a100-3264": (3264, 8, 408, 10.5, 2, 37, 4, 393),
    "resnet50-a100-3264-8x8": (3264, 64, 51, 10.5, 2, 37, 3, 393),
    "resnet50-gaudi2-2048": (2048, 8, 256, 9.0, 3, 36, 3, 625),
}


def imagenet_plan(name: str, world: int, most: int = 512):
    return make_plan(RECIPES[name](), h100x8(), world=world, most=most, train_images=IMAGENET[0], val_images=IMAGENET[1])


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_has_its_published_plan(name: str) -> None:
    batch, world, each, lr, warmup, schedule, first, per_epoch = PUBLISHED[name]
    recipe, plan = RECIPES[name](), imagenet_plan(name, world)
    assert (plan.global_batch_size, plan.images_per_rank, plan.micro_batch_size, plan.micro_batches) == (
        batch,
        each,
        each,
        1,
    )
    assert plan.steps_per_epoch == per_epoch
    # Habana's decay takes one step more than its epochs have.
    end = schedule * per_epoch + ("gaudi2" in name)
    assert plan.warmup_steps == warmup * per_epoch and plan.decay_end_step == pytest.approx(end, rel=1e-12)
    assert plan.total_steps == (35 if "gaudi" in name else schedule) * per_epoch
    assert plan.eval_steps[0] == first * per_epoch and plan.eval_steps[1] == (first + 4) * per_epoch
    assert lr_at(recipe, plan, 0) == pytest.approx(lr / (warmup * per_epoch))
    assert lr_at(recipe, plan, warmup * per_epoch - 1) == pytest.approx(lr)
    assert lr_at(recipe, plan, end - 1) == pytest.approx(1e-4)
    assert max(lr_at(recipe, plan, step) for step in range(0, plan.total_steps, 7)) <= lr


def test_the_3584_rank_plan_joins_pairs_of_ranks_for_batch_norm() -> None:
    plan = imagenet_plan("resnet50-mlperf-57344", 3584)
    assert (plan.bn_batch_size, plan.bn_ranks, plan.bn_groups) == (32, 2, 1)


@pytest.mark.parametrize("world", [1, 8, 64, 3584])
@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_a_plan_or_a_refusal_that_says_why(name: str, world: int) -> None:
    recipe = RECIPES[name]()
    train, val = DATA_IMAGES[recipe.target_data]
    try:
        plan = make_plan(recipe, h100x8(), world=world, most=512, train_images=train, val_images=val)
    except RecipeError as refusal:
        assert str(recipe.global_batch_size) in str(refusal) or "--bn-batch-size" in str(refusal)
        assert "nearest" in str(refusal).lower()
        return
    assert plan.micro_batch_size * plan.micro_batches * world == recipe.global_batch_size
    assert plan.bn_batch_size * plan.bn_groups == plan.micro_batch_size * plan.bn_ranks
    assert plan.eval_steps[-1] == plan.total_steps


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_can_be_asked(name: str) -> None:
    if name == "gpu":
        pytest.importorskip("torch")
        import torch

        if not torch.cuda.is_available():
            with pytest.raises(RecipeError, match="no CUDA"):
                SYSTEMS[name]()
            return
    assert SYSTEMS[name]().ranks_per_node >= 1


@examples(300)
@given(st.integers(1, 64), st.integers(1, 16), st.integers(1, 64), st.sampled_from([1, 2, 4, 8, 16, 32, 64]))
def test_a_split_adds_up_and_reaches_the_span_exactly(share: int, world: int, most: int, span: int) -> None:
    try:
        images, forwards, groups, join = split_batch(share * world, world, most, span)
    except RecipeError:
        # Refused: then no forward that fits holds a multiple of the span or an exact fraction of it.
        for size in range(1, min(most, share) + 1):
            if share % size == 0:
                assert size % span and (span % size or world % (span // size))
        return
    assert images * forwards * world == share * world and images <= most
    assert images * join == span * groups and (groups == 1 or join == 1)


@pytest.mark.parametrize("world", [1, 4, 6])
@pytest.mark.parametrize("share", [1, 6, 8, 12])
@pytest.mark.parametrize("most", [1, 4, 12])
def test_a_refused_span_names_the_nearest_that_are_not_refused(share: int, world: int, most: int) -> None:
    def refusal(span: int) -> str:
        try:
            split_batch(share * world, world, most, span)
        except RecipeError as error:
            return str(error)
        return ""

    reached = [span for span in range(1, share * world + 1) if not refusal(span)]
    for span in sorted(set(range(1, share * world + 1)) - set(reached)):
        named = re.search(r"Nearest possible values: ([\d, ]+)\.", refusal(span))
        assert named is not None
        spans = [int(one) for one in named[1].split(", ")]
        assert spans == sorted(set(spans) & set(reached))
        ratios = sorted(max(span / one, one / span) for one in reached)[:3]
        assert sorted(max(span / one, one / span) for one in spans) == ratios


def test_a_batch_that_does_not_divide_names_the_nearest_ones() -> None:
    with raises(RecipeError, "7 ranks", "63", "70"):
        split_batch(64, 7, 64, 16)


def test_a_changed_batch_without_its_lr_prints_both_ways_out() -> None:
    with pytest.raises(RecipeError) as refusal:
        override(RECIPES["resnet50"](), {"global_batch_size": 256})
    assert 'overrides={"optim.lr": 0.256}' in str(refusal.value) and 'overrides={"optim.lr": 2.048}' in str(refusal.value)
    assert override(RECIPES["resnet50"](), {"global_batch_size": 256, "optim.lr": 0.256}).optim.lr == 0.256


@pytest.mark.parametrize(
    ("typo", "meant"), [("optim.lrr", "lr"), ("global_bach", "global_batch_size"), ("eval.evry", "every")]
)
def test_an_unknown_field_names_its_neighbour(typo: str, meant: str) -> None:
    with pytest.raises(RecipeError, match=f"Did you mean {meant}"):
        override(RECIPES["classify-demo"](), {typo: 1})


def test_a_span_beyond_the_batch_is_the_whole_batch() -> None:
    recipe = replace(RECIPES["resnet50"](), global_batch_size=16, optim=replace(RECIPES["resnet50"]().optim, lr=0.016))
    plan = make_plan(recipe, h100x8(), world=2, most=64, train_images=100, val_images=10)
    assert (plan.bn_batch_size, plan.bn_ranks) == (16, 2)


def test_exact_epochs_are_fractions_and_any_batch_fits_any_data_set() -> None:
    recipe = override(RECIPES["classify-demo"](), {"global_batch_size": 64, "optim.lr": 0.2, "epochs": 3.0})
    plan = make_plan(recipe, h100x8(), world=1, most=64, train_images=10, val_images=3)
    assert plan.steps_per_epoch == pytest.approx(10 / 64)
    assert plan.total_steps == 1  # three epochs of ten images are not one batch


def test_steps_and_eval_every_shorten_the_run_but_not_the_schedule() -> None:
    plan = imagenet_plan("resnet50", 8)
    short = limit_steps(plan, steps=25, eval_every=10)
    assert short.eval_steps == (10, 20, 25) and short.stop_after == 25
    assert (short.decay_end_step, short.total_steps) == (plan.decay_end_step, plan.total_steps)


def test_a_run_long_enough_to_forget_its_first_weights_keeps_one_decay() -> None:
    averaged = [name for name, make in RECIPES.items() if make().ema_decay and "finetune" not in name]
    assert len(averaged) >= 3
    for name in averaged:
        recipe = RECIPES[name]()
        plan = make_plan(recipe, SYSTEMS["cpu"](), world=1, most=512, train_images=1000, val_images=100)
        assert {ema_at(recipe, plan, step) for step in range(plan.total_steps)} == {recipe.ema_decay}


@given(steps=st.integers(1, 2000), ema=st.floats(0.5, 0.9999))
def test_the_first_weights_are_forgotten_at_the_end_of_a_run_of_any_length(steps: int, ema: float) -> None:
    recipe = replace(RECIPES["classify-demo"](), ema_decay=ema)
    plan = make_plan(recipe, SYSTEMS["cpu"](), world=1, most=512, train_images=1000, val_images=100)
    plan = limit_steps(plan, steps=steps)
    left = 1.0
    for step in range(plan.stop_after):
        decay = ema_at(recipe, plan, step)
        assert 0 < decay <= ema
        left *= decay
    # One or two steps cannot do better than the rule's first decays, 1/10 and 2/11.
    assert left <= 0.01 or (steps < 3 and left <= 0.1)
    assert (ema_initial_share(recipe, plan) <= 0.01) == (left == pytest.approx(ema**plan.stop_after, rel=1e-9, abs=1e-300))


def test_exact_evaluation_points_replace_the_cadence() -> None:
    recipe = override(RECIPES["resnet50"](), {"eval.at": (40.0, 50.0, 55.0)})
    plan = make_plan(recipe, h100x8(), world=8, most=512, train_images=IMAGENET[0], val_images=IMAGENET[1])
    assert len(plan.eval_steps) == 4  # three points, and the end
    assert plan.eval_steps[0] == -(-40 * IMAGENET[0] // 2048)


def test_weights_that_no_step_has_changed_are_not_evaluated() -> None:
    recipe = override(RECIPES["resnet50"](), {"eval.start": 0.0, "eval.every": 4.0})
    plan = make_plan(recipe, h100x8(), world=8, most=512, train_images=IMAGENET[0], val_images=IMAGENET[1])
    assert plan.eval_steps[0] == -(-4 * IMAGENET[0] // 2048)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"epochs": 0.0}, "--epochs"),
        ({"max_images": 5, "epochs": 3.0}, "--epochs"),
        ({"optim.lr": 0.0}, "--optim.lr"),
        ({"bn_batch_size": 0}, "--bn-batch-size"),
        ({"ema_decay": 1.0}, "--ema-decay"),
        ({"eval.every": 0.0}, "--eval.every"),
        ({"optim.nesterov": True, "optim.momentum_style": "mxnet"}, "--optim.nesterov"),
    ],
)
def test_a_recipe_that_contradicts_itself_is_refused_by_flag(changes: dict, names: str) -> None:
    with pytest.raises(RecipeError, match=names):
        override(RECIPES["resnet50"](), changes)


def test_evaluation_ranks_train_nothing_and_count_as_machines() -> None:
    recipe = RECIPES["resnet50-mlperf-3200"]()
    alone, plan = (
        make_plan(recipe, h100x8(), world=8, most=512, train_images=IMAGENET[0], val_images=IMAGENET[1], eval_ranks=count)
        for count in (0, 9)
    )
    assert replace(plan, eval_ranks=0, nodes=alone.nodes) == alone
    assert alone == make_plan(recipe, h100x8(), world=8, most=512, train_images=IMAGENET[0], val_images=IMAGENET[1])
    assert (alone.nodes, plan.nodes, alone.evaluators, plan.evaluators) == (1, 3, 8, 9)


def test_a_refusal_says_how_many_of_the_ranks_train() -> None:
    recipe = RECIPES["resnet50-mlperf-3200"]()
    with raises(RecipeError, "7 ranks", "8 ranks", "1 only"):
        make_plan(recipe, h100x8(), world=7, most=512, train_images=1000, val_images=10, eval_ranks=1)


@pytest.mark.parametrize(
    ("ranks", "eval_ranks", "said"),
    [(1, 1, "one rank"), (4, 4, "4 ranks ... 0 to 3"), (4, 9, "--dedicated-eval-ranks 9"), (4, -1, "0 to 3")],
)
def test_somebody_has_to_train(ranks: int, eval_ranks: int, said: str) -> None:
    with raises(RecipeError, said):
        count_training_ranks(ranks, eval_ranks)
    assert (count_training_ranks(4, 0), count_training_ranks(4, 3), count_training_ranks(1, 0)) == (4, 1, 1)
