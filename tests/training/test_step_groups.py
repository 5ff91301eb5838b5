"""The training step normalizes losses over groups of images, however the batch is cut into forwards."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor
from toy_loss_groups import IMAGES, TERMS, Toy, slow_losses, toy_batch, toy_recipe

from paceline._utils.errors import RecipeError
from paceline.config.plan import BatchPlan, StepRates, make_plan
from paceline.config.recipe import Optim
from paceline.config.system import System
from paceline.models.layers.batch_norm import configure_batch_norm
from paceline.training.logging.events import COUNT
from paceline.training.loss_normalization import configure_loss_groups, group_losses
from paceline.training.meters import Meters
from paceline.training.optim.base import list_named_parameters
from paceline.training.optim.sgd import SGD
from paceline.training.optim.step_scalars import LossScaler
from paceline.training.state import State
from paceline.training.step import TrainStep

MANY = [3, 0, 1, 4, 2, 2, 0, 5]


def cut(loss_normalizer_images: int, most: int) -> BatchPlan:
    return make_plan(toy_recipe(loss_normalizer_images), System(), world=1, most=most, train_images=80, val_images=8)


def step(plan: BatchPlan, objects: list[int], *, scale: float = 0.0) -> tuple[dict[str, Tensor], Toy, dict[str, Tensor]]:
    """One step of the toy from its first weights; -> (losses, the toy, gradients)."""
    toy = Toy()
    configure_batch_norm(toy, groups=plan.bn_groups, join=1, join_group=None, forwards=plan.micro_batches)
    configure_loss_groups(toy, plan)
    # Without momentum and decay the velocity is the gradient.
    optimizer = SGD(list_named_parameters(toy, "none"), Optim(momentum=0.0, weight_decay=0.0))
    scaler = LossScaler("static", scale) if scale else None
    state = State(toy, optimizer, None, scaler, Meters(torch.device("cpu")))
    each = plan.micro_batch_size
    batches = [toy_batch(objects, slice(start, start + each)) for start in range(0, IMAGES, each)]
    losses = TrainStep(state, plan, System(precision="fp32"), torch.device("cpu"))(batches, StepRates(0.1, 0.1))
    return losses, toy, {name.removeprefix("velocity."): value for name, value in optimizer.state().items()}


@pytest.mark.parametrize("most", [8, 4, 2, 1])
@pytest.mark.parametrize("group", [1, 2, 4, 8, 0])
def test_losses_and_gradients_are_the_obvious_loop_s_for_every_cut(group, most):
    plan = cut(group, most)
    assert (plan.micro_batch_size, plan.loss_normalizer_images) == (most, group or IMAGES)
    losses, _, found = step(plan, MANY)
    wanted, gradients = slow_losses(MANY, group or IMAGES)
    assert list(losses) == ["loss", *TERMS]
    for name, value in wanted.items():
        assert float(losses[name]) == pytest.approx(value, rel=2e-6), name
    for name, expected in gradients.items():
        torch.testing.assert_close(
            found[name].double(), expected, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f"{name} {text}"
        )
        assert expected.abs().max() > 1e-3


def test_group_sizes_give_different_losses():
    losses = {group: float(step(cut(group, 8), MANY)[0]["loss"]) for group in (1, 2, 4, 8)}
    values = sorted(losses.values())
    assert all(later - earlier > 1e-2 for earlier, later in pairwise(values)), losses


@pytest.mark.parametrize("most", [8, 2])
@pytest.mark.parametrize("group", [2, 8])
def test_images_without_objects_have_loss_zero_and_a_gradient_of_zeros(group, most):
    losses, _, gradients = step(cut(group, most), [0] * IMAGES)
    assert all(float(value) == 0.0 for value in losses.values())
    assert gradients and all(torch.equal(value, torch.zeros_like(value)) for value in gradients.values())


@pytest.mark.parametrize(("group", "most", "passes"), [(8, 8, 0), (2, 2, 0), (2, 8, 0), (2, 1, 8), (8, 2, 4), (0, 4, 2)])
def test_a_counting_pass_comes_only_where_a_group_takes_several_forwards(group, most, passes):
    _, toy, _ = step(cut(group, most), MANY)
    assert toy.passes == passes  # one for each forward of the step


def test_counting_leaves_batch_norm_s_statistics_alone():
    (_, alone, _), (_, counted, _) = step(cut(8, 8), MANY), step(cut(8, 2), MANY)
    assert counted.passes == 4
    for name in ("running_mean", "running_var", "num_batches_tracked", "pending"):
        torch.testing.assert_close(getattr(counted.norm, name), getattr(alone.norm, name), msg=name)
    assert counted.norm.num_batches_tracked is not None and int(counted.norm.num_batches_tracked) == 1


def test_a_loss_scale_changes_nothing():
    (losses, _, gradients), (scaled, _, others) = step(cut(4, 2), MANY), step(cut(4, 2), MANY, scale=1024.0)
    assert {name: float(value) for name, value in losses.items()} == {name: float(v) for name, v in scaled.items()}
    for name, mine in gradients.items():
        torch.testing.assert_close(others[name], mine, rtol=1e-6, atol=0)


def test_a_count_between_0_and_1_divides_by_1():
    found = {"sums": torch.full((2, 5), 6.0), "counts": torch.tensor([[0.5], [3.0]]).expand(2, 5)}
    losses = group_losses(found, TERMS, cut(4, 8), None)
    assert [float(losses[name]) for name in TERMS] == [(6.0 + 2.0) * 4] * 5
    assert torch.equal(found["counts"], torch.tensor([[0.5], [3.0]]).expand(2, 5))


def test_boxes_left_unsettled_pass_by_undivided():
    found = {"sums": torch.ones(2, 5), "counts": torch.ones(2, 5), "unsettled": torch.tensor(3)}
    losses = group_losses(found, TERMS, cut(4, 8), None)
    assert losses["unsettled"] == 3 and losses["loss"] == 2 * 5 * 4


def test_an_accuracy_passes_by_with_how_many_it_is_of():
    right, of = torch.tensor(3.0), torch.tensor(4.0)
    found = {
        "sums": torch.ones(1, len(TERMS)),
        "counts": torch.ones(1, len(TERMS)),
        "accuracies": {"acc_mask": (right, of)},
    }
    losses = group_losses(found, TERMS, cut(4, 8), None)
    assert (losses["acc_mask"], losses["acc_mask" + COUNT]) == (right, of)
    assert losses.keys() == {"loss", *TERMS, "acc_mask", "acc_mask" + COUNT}


def test_a_model_without_loss_groups_is_refused():
    with pytest.raises(RecipeError, match=r"Linear.*loss_normalizer_images"):
        configure_loss_groups(torch.nn.Linear(1, 1), cut(4, 8))
