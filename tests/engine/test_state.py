"""What the training state finds in a model's tensors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from paceline.engine.state import State
from paceline.models.batch_norm import BatchNorm


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
