"""How large a step is: norms against an obvious loop, parts of networks, and steps that are the same whether looked at or not."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from paceline.config.plan import StepRates
from paceline.config.recipe import Optim
from paceline.training.meters import StepSizes, group_parameters
from paceline.training.optim import make_optimizer
from paceline.training.optim.base import list_named_parameters
from paceline.training.optim.step_scalars import LossScaler, StepScalars


class Three(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8))
        self.neck = nn.Linear(8, 8, bias=False)
        self.head = nn.Linear(8, 2)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.head(self.neck(self.trunk(given)).relu())


def norm(tensors: list[torch.Tensor]) -> float:
    return math.sqrt(sum(float(value) ** 2 for tensor in tensors for value in tensor.double().flatten()))


@pytest.mark.parametrize("scale", [None, 128.0])
def test_norms_are_those_of_a_loop_in_float64_before_clipping_and_the_step_is_the_same(scale):
    torch.manual_seed(0)
    network, given = Three(), torch.randn(5, 4)
    twin = copy.deepcopy(network)
    sizes = StepSizes(network)
    assert sizes.read() == {}
    for net in (network, twin):
        optim = Optim(lr=0.1, clip_norm=1e-3)
        optimizer = make_optimizer(list_named_parameters(net, optim.no_decay, bias_lr_factor=optim.bias_lr_factor), optim)
        scaler = None if scale is None else LossScaler("static", scale)
        numbers = StepScalars(optim, torch.device("cpu"))
        numbers.write(StepRates(0.1, 0.1))
        loss = net(given).square().sum()
        (loss if scaler is None else scaler.scale(loss)).backward()
        trained = {name: weight for name, weight in net.named_parameters() if weight.requires_grad}
        gradients = {name: weight.grad.double() / (scale or 1) for name, weight in trained.items()}
        before = {name: weight.detach().clone() for name, weight in trained.items()}
        if net is network:
            sizes.before(scaler)
        optimizer.step(numbers, scaler=scaler)
        if net is network:
            sizes.after()
    for mine, other in zip(network.parameters(), twin.parameters()):
        assert torch.equal(mine, other)
    found = sizes.read()
    moved = {name: weight.detach() - before[name] for name, weight in trained.items()}
    for part in ("trunk", "neck", "head"):
        own = [name for name in trained if name.startswith(part)]
        assert found["gradient_norms"][part] == pytest.approx(norm([gradients[name] for name in own]), rel=1e-5)
        ratio = norm([moved[name] for name in own]) / norm([before[name] for name in own])
        assert found["update_ratios"][part] == pytest.approx(ratio, rel=1e-4)
    assert found["gradient_norm"] == pytest.approx(norm(list(gradients.values())), rel=1e-5)
    assert found["update_ratio"] == pytest.approx(norm(list(moved.values())) / norm(list(before.values())), rel=1e-4)
    assert list(found["gradient_norms"]) == ["trunk", "neck", "head"] and sizes.read() == {}


def test_a_gradient_that_is_no_number_is_said_so_and_weights_that_are_zero_have_no_ratio():
    network = nn.Linear(2, 1)
    nn.init.zeros_(network.weight), nn.init.zeros_(network.bias)
    sizes = StepSizes(network)
    network.weight.grad, network.bias.grad = torch.tensor([[math.inf, 1.0]]), torch.ones(1)
    sizes.before(None)
    sizes.after()
    found = sizes.read()
    assert math.isnan(found["gradient_norm"]) and "update_ratio" not in found and found["update_ratios"] == {}


def test_parts_are_the_fewest_levels_of_names_that_make_three():
    assert list(group_parameters(["network.conv1.weight", "network.layer1.0.bias", "network.fc.weight"])) == [
        "network.conv1", "network.layer1", "network.fc",
    ]  # fmt: skip
    assert group_parameters(["a.weight", "b.weight", "a.bias", "c.weight"]) == {"a": [0, 2], "b": [1], "c": [3]}
    assert group_parameters(["weight", "bias"]) == {"weight": [0], "bias": [1]} and group_parameters([]) == {}
