"""Which of ResNet-50's tensors decay and adapt, by the recipe's word."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from paceline.training.optim.base import list_named_parameters


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1, bias=True)
        self.bn = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, 2)


@pytest.mark.parametrize(
    ("no_decay", "decaying"),
    [
        ("none", {"conv.weight", "conv.bias", "bn.weight", "bn.bias", "fc.weight", "fc.bias"}),
        ("norm", {"conv.weight", "conv.bias", "fc.weight", "fc.bias"}),
        ("norm-and-bias", {"conv.weight", "fc.weight"}),
    ],
)
def test_decay_follows_the_owning_module(no_decay, decaying):
    found = list_named_parameters(Block(), no_decay)
    assert [p.name for p in found] == [name for name, _ in Block().named_parameters()]
    assert {p.name for p in found if p.decays} == decaying
    assert {p.name for p in found if p.adapts} == {"conv.weight", "fc.weight"}


def test_frozen_and_shared_tensors():
    model = nn.Sequential(Block(), Block())
    model[1].fc.weight = model[0].fc.weight
    model[0].conv.weight.requires_grad_(False)
    names = [p.name for p in list_named_parameters(model, "none")]
    assert "0.conv.weight" not in names
    assert "1.fc.weight" not in names
    assert len(names) == 10


def test_a_model_without_parameters_has_none():
    assert list_named_parameters(nn.ReLU(), "none") == []
    assert isinstance(list_named_parameters(nn.Linear(1, 1), "none")[0].tensor, torch.nn.Parameter)
