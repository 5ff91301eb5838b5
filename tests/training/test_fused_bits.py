"""On a CPU torch's one kernel takes those tensors alone whose bits it leaves as torch's several kernels do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from paceline.config.plan import StepRates
from paceline.config.recipe import Optim
from paceline.training.optim import sgd
from paceline.training.optim.base import NamedParameter
from paceline.training.optim.sgd import LARS, SGD
from paceline.training.optim.step_scalars import StepScalars

# Whole lines of 64 elements, and others; dimensions of size 1, whose strides say nothing.
SHAPES = [(64, 3, 7, 7), (64, 64, 1, 1), (128, 32, 3, 3), (256,), (1000,), (63,), (5, 7, 3, 3), (40, 64), (1, 1, 8, 8)]
WHOLE = [shape for shape in SHAPES if shape not in [(1000,), (63,), (5, 7, 3, 3)]]


def parameters(*, last: bool) -> list[NamedParameter]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for number, shape in enumerate(SHAPES):
        tensor = lying(torch.randn(shape, generator=generator), last)
        made.append(NamedParameter(f"{number}", nn.Parameter(tensor), decays=number % 2 == 0, adapts=False))
    return made


def lying(tensor: Tensor, last: bool) -> Tensor:
    return (
        torch.empty(tensor.shape, memory_format=torch.channels_last).copy_(tensor) if last and tensor.dim() == 4 else tensor
    )


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(("last", "gradients_last"), [(False, False), (True, True), (True, False), (False, True)])
def test_bits_are_those_of_torchs_several_kernels(
    last: bool, gradients_last: bool, nesterov: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fused: list[torch.Size] = []
    kernel = sgd.update_fused
    monkeypatch.setattr(
        sgd, "update_fused", lambda *lists, **more: (fused.extend(w.shape for w in lists[0]), kernel(*lists, **more))
    )
    ours, theirs = parameters(last=last), parameters(last=last)
    optimizer = SGD(ours, Optim(momentum=0.9, weight_decay=0.01, nesterov=nesterov))
    groups = [
        {"params": [p.tensor for p in theirs if p.decays == decays], "weight_decay": 0.01 * decays}
        for decays in (True, False)
    ]
    oracle = torch.optim.SGD(groups, lr=1, momentum=0.9, nesterov=nesterov, foreach=True)
    numbers = StepScalars(optimizer.optim, "cpu")
    generator = torch.Generator().manual_seed(1)
    for step in range(4):
        for mine, other in zip(ours, theirs):
            gradient = lying(torch.randn(mine.tensor.shape, generator=generator), gradients_last)
            mine.tensor.grad, other.tensor.grad = gradient, gradient.clone()
        numbers.write(StepRates(0.1 / (step + 3), 0.1))
        optimizer.step(numbers)
        for group in oracle.param_groups:
            group["lr"] = numbers.lr
        oracle.step()
    for mine, other in zip(ours, theirs):
        assert torch.equal(mine.tensor, other.tensor), tuple(mine.tensor.shape)
    flat = [(256,), (40, 64), (64, 64, 1, 1), (1, 1, 8, 8)]
    assert {tuple(shape) for shape in fused} == set(WHOLE if last == gradients_last else flat)


def test_other_forms_numbers_and_steps_stay_with_several_kernels() -> None:
    (parameter, *_) = parameters(last=False)
    weight, number = parameter.tensor, StepScalars(Optim(), "cpu")
    found, half = torch.zeros(()), nn.Parameter(torch.zeros(64, dtype=torch.float64))

    def fuses(optimizer: SGD, tensor: Tensor, numbers: StepScalars = number, found: Tensor | None = None) -> bool:
        return optimizer._fuses(tensor, tensor, tensor, numbers, found)

    plain = SGD([parameter], Optim())
    assert fuses(plain, weight)
    assert not fuses(plain, weight, found=found) and not fuses(plain, half)
    assert not fuses(plain, weight, StepScalars(Optim(), "cpu", tensors=True))
    for optim in (Optim(momentum=0.0), Optim(momentum_style="mxnet")):
        assert not fuses(SGD([parameter], optim), weight)
    assert not fuses(LARS([parameter], Optim()), weight)
