"""Where a non-finite loss begins: the first module in order of computation, by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import nn

from paceline.training.nan_debug import first_non_finite_name


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 1)
        self.body = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1))

    def forward(self, batch: Any) -> dict[str, torch.Tensor]:
        return {"loss": self.body(self.stem(batch.images)).sum() / batch.count}


def batch(count: float = 1.0) -> Any:
    return cast(Any, SimpleNamespace(images=torch.ones(1, 3, 2, 2), count=count))


def test_the_innermost_module_that_is_computed_first_is_named():
    net = Net()
    assert first_non_finite_name(net, batch()) == ""
    net.body[2].weight.data[0, 0] = float("nan")
    assert first_non_finite_name(net, batch()) == "body.2"
    net.body[0].bias.data[1] = float("inf")
    assert first_non_finite_name(net, batch()) == "body.0"
    assert not net.stem._forward_hooks


def test_a_loss_that_alone_is_no_number_is_said_so():
    assert first_non_finite_name(Net(), batch(0.0)) == "the loss"
