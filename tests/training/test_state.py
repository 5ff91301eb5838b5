"""What the training state finds in a model's tensors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from messages import raises
from torch import nn

from paceline._utils.errors import CheckpointError
from paceline.models.layers.batch_norm import BatchNorm
from paceline.training.state import State


def state_of(model: nn.Module) -> Any:
    return SimpleNamespace(model=model, average=None)


@pytest.mark.parametrize("name", ["0.weight", "0.bias", "1.running_mean", "1.running_var"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_one_number_that_is_not_finite_is_found_wherever_it_is(name: str, bad: float) -> None:
    model = nn.Sequential(nn.Linear(3, 4), BatchNorm(4))
    assert State.is_finite(state_of(model))
    model.state_dict()[name].view(-1)[1] = bad
    assert not State.is_finite(state_of(model))


def test_what_differs_from_rank_to_rank_are_the_running_statistics_of_every_norm() -> None:
    model = nn.Sequential(BatchNorm(4), nn.Linear(4, 4), BatchNorm(2))
    found = State._running(state_of(model))
    assert [len(tensor) for tensor in found] == [4, 4, 2, 2]
    assert found[0] is model[0].running_mean and found[3] is model[2].running_var


def restored(state: Any, flat: torch.Tensor | None, ranks: int) -> None:
    """What rank 1 of two takes from a checkpoint that so many ranks wrote."""
    kept = {} if flat is None else {"ranks": {"0001": flat}}
    facts = {"world_size": ranks, "step": 3, "meters": {}}
    tensors = {"model": state.model.state_dict(), "optimizer": {}, **kept}
    State.restore(state, SimpleNamespace(tensors=tensors, facts=facts), SimpleNamespace(world=2, rank=1))  # type: ignore[arg-type]


def test_a_rank_gets_its_own_running_statistics_back() -> None:
    model = nn.Sequential(BatchNorm(2), nn.Linear(2, 2), BatchNorm(1))
    nothing = SimpleNamespace(load_state=lambda _: None, restore=lambda *_: None)
    state = SimpleNamespace(model=model, average=None, scaler=None, optimizer=nothing, meters=nothing, step=0)
    state._running = lambda: State._running(state)  # type: ignore[arg-type]
    flat = torch.arange(1.0, 7.0)
    restored(state, flat, 2)
    assert torch.cat(State._running(state)).tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0] and state.step == 3  # type: ignore[arg-type]
    for wrong in (None, flat[:5], torch.arange(7.0)):
        with raises(CheckpointError, "running statistics"):
            restored(state, wrong, 2)
    restored(state, None, 1)  # of another number of ranks there are none
