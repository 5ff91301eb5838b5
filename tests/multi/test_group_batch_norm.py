"""Two processes that join their BatchNorm statistics act as one process with the joined batch."""

from __future__ import annotations

import pytest
import torch
from batch_norm_rank import RANKS, net, train
from small_run import said
from zygote import Zygote

from paceline.models.batch_norm import configure_batch_norm

pytestmark = pytest.mark.multi


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> dict[str, list[dict[str, torch.Tensor]]]:
    folder = tmp_path_factory.mktemp("ranks")
    with Zygote("batch_norm_rank") as zygote:
        ended = zygote.run(folder, [{"RANK": str(rank)} for rank in range(RANKS)], str(folder))
    assert [rank.code for rank in ended] == [0] * RANKS, said(ended)
    return {
        kind: [torch.load(folder / f"{kind}{rank}.pt", weights_only=True) for rank in range(RANKS)]
        for kind in ("joined", "compiled", "apart")
    }


@pytest.mark.parametrize("kind", ["joined", "compiled"])
def test_two_joined_ranks_equal_one_process_with_the_joined_batch(ranks, kind):
    model = net()
    alone = train(model, slice(None))
    first, second = ranks[kind]
    for name, expected in alone.items():
        if name.endswith((".output", ".input")):
            got = torch.cat((first[name], second[name]))
        elif name.startswith("grad."):
            got = first[name] + second[name]
        elif name.endswith("pending"):
            continue
        else:
            got = first[name]
            assert torch.equal(first[name], second[name]), f"ranks disagree about {name}"
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


def test_ranks_that_split_and_are_averaged_equal_one_process_that_splits(ranks):
    model = net()
    configure_batch_norm(model, groups=4, join_group=None, join=1, forwards=1)
    train(model, slice(None))
    for rank in range(RANKS):
        for name, expected in model.named_buffers():
            torch.testing.assert_close(ranks["apart"][rank][name], expected, rtol=1e-6, atol=1e-6)
