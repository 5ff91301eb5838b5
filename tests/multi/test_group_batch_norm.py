"""Two processes that join their BatchNorm statistics act as one process with the joined batch."""

from __future__ import annotations

import pytest
import torch
from batch_norm_rank import RANKS, net, train
from small_run import Trainer, assert_joined

from paceline.models.layers.batch_norm import configure_batch_norm

pytestmark = [pytest.mark.multi, pytest.mark.xdist_group("ranks")]


@pytest.fixture(scope="module")
def ranks(zygote, tmp_path_factory) -> list[dict[str, dict[str, torch.Tensor]]]:
    """What each of two ranks found, by kind."""
    return Trainer(zygote, tmp_path_factory.mktemp("ranks"), "batch_norm_rank").found(ranks=RANKS)


@pytest.mark.parametrize("kind", ["joined", "compiled"])
def test_two_joined_ranks_equal_one_process_with_the_joined_batch(ranks, kind):
    alone = train(net(), slice(None))
    wanted = {name: value for name, value in alone.items() if not name.endswith("pending")}
    assert_joined([rank[kind] for rank in ranks], wanted, halves=(".output", ".input"), shares=("grad.",))


def test_ranks_that_split_and_are_averaged_equal_one_process_that_splits(ranks):
    model = net()
    configure_batch_norm(model, groups=4, join_group=None, join=1, forwards=1)
    train(model, slice(None))
    for rank in ranks:
        for name, expected in model.named_buffers():
            torch.testing.assert_close(rank["apart"][name], expected, rtol=1e-6, atol=1e-6)
