"""Losses normalized over groups of images on two processes: losses and weights are the obvious loop's, objects or not."""

from __future__ import annotations

import pytest
import torch
from loss_group_rank import CUTS, OBJECTS
from small_run import Trainer
from torch import Tensor
from toy_loss_groups import IMAGES, Toy, slow_losses

from paceline.config.recipe import Optim

pytestmark = [pytest.mark.multi, pytest.mark.xdist_group("ranks")]


@pytest.fixture(scope="module")
def ranks(zygote, tmp_path_factory) -> list[dict[str, dict[str, Tensor]]]:
    """What each of two ranks found, by case."""
    return Trainer(zygote, tmp_path_factory.mktemp("loss-groups"), "loss_group_rank").found()


@pytest.mark.parametrize("case", OBJECTS)
@pytest.mark.parametrize(("group", "most"), CUTS)
def test_two_ranks_take_the_obvious_loop_s_step(ranks, case, group, most):
    first, second = (rank[f"{case} {group} {most}"] for rank in ranks)
    losses, gradients = slow_losses(OBJECTS[case], group or IMAGES)
    for name, value in losses.items():
        shares = float(first[f"loss.{name}"]), float(second[f"loss.{name}"])
        assert sum(shares) == pytest.approx(value, rel=2e-6, abs=1e-12), name
        assert case != "half" or shares[1] == 0
    optim = Optim()
    for name, weight in Toy().named_parameters():
        assert torch.equal(first[f"weight.{name}"], second[f"weight.{name}"]), f"ranks disagree about {name}"
        moved = (first[f"weight.{name}"].double() - weight.detach().double()) / -0.1
        expected = gradients[name] + optim.weight_decay * weight.detach().double()
        torch.testing.assert_close(moved, expected, rtol=1e-4, atol=5e-6, msg=lambda text, name=name: f"{name}: {text}")


def test_ranks_count_first_only_where_a_group_takes_several_of_their_forwards(ranks):
    passes = [int(ranks[1][f"all {group} {most}"]["passes"]) for group, most in CUTS]
    assert passes == [0, 4, 0, 4, 8]  # of two steps, one of them discarded: forwards of the rank, twice
