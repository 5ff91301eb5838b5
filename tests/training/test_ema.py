"""The average of the weights: its formula, its place in the model and back, its state."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from paceline._utils.errors import CheckpointError
from paceline.training.optim.ema import EMA


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3))


def move(model: nn.Module, step: int) -> None:
    model(torch.full((2, 2, 3, 3), float(step)) + torch.randn(2, 2, 3, 3, generator=torch.Generator().manual_seed(step)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * step)


def test_average_is_the_exponential_one_of_weights_and_running_statistics():
    model = net()
    average = EMA(model)
    expected = {name: tensor.double() for name, tensor in model.state_dict().items() if "num" not in name}
    for step in range(5):
        move(model, step)
        average.update(1 - 0.9)
        for name, value in expected.items():
            expected[name] = 0.9 * value + 0.1 * model.state_dict()[name].double()
    assert average.state().keys() == expected.keys()
    assert "1.running_var" in expected
    for name, value in expected.items():
        torch.testing.assert_close(average.state()[name].double(), value, rtol=1e-5, atol=1e-6)


def test_applied_lends_the_average_and_gives_the_weights_back_after_an_exception():
    model = net()
    average = EMA(model)
    move(model, 3)
    average.update(0.5)
    own = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    parameter = model[0].weight
    with pytest.raises(KeyError), average.applied():
        for name, value in average.state().items():
            assert torch.equal(model.state_dict()[name], value)
            assert not torch.equal(value, own[name])
        raise KeyError
    assert model[0].weight is parameter
    assert all(torch.equal(value, own[name]) for name, value in model.state_dict().items())


def test_state_comes_back_by_name_and_another_models_is_refused():
    model = net()
    first, second = EMA(model), EMA(model)
    move(model, 1)
    first.update(1 - 0.9)
    second.load_state(first.state())
    assert all(torch.equal(value, first.state()[name]) for name, value in second.state().items())
    with pytest.raises(CheckpointError, match="weight average"):
        second.load_state({})
