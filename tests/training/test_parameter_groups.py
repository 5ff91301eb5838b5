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
    ("decay_on", "decaying"),
    [
        ("all", {"conv.weight", "conv.bias", "bn.weight", "bn.bias", "fc.weight", "fc.bias"}),
        ("no_norm", {"conv.weight", "conv.bias", "fc.weight", "fc.bias"}),
        ("no_norm_no_bias", {"conv.weight", "fc.weight"}),
    ],
)
def test_decay_follows_the_owning_module(decay_on, decaying):
    found = list_named_parameters(Block(), decay_on)
    assert [p.name for p in found] == [name for name, _ in Block().named_parameters()]
    assert {p.name for p in found if p.decays} == decaying
    assert {p.name for p in found if p.adapts} == {"conv.weight", "fc.weight"}


def test_frozen_and_shared_tensors():
    model = nn.Sequential(Block(), Block())
    model[1].fc.weight = model[0].fc.weight
    model[0].conv.weight.requires_grad_(False)
    names = [p.name for p in list_named_parameters(model, "all")]
    assert "0.conv.weight" not in names
    assert "1.fc.weight" not in names
    assert len(names) == 10


def test_a_model_without_parameters_has_none():
    assert list_named_parameters(nn.ReLU(), "all") == []
    assert isinstance(list_named_parameters(nn.Linear(1, 1), "all")[0].tensor, torch.nn.Parameter)
