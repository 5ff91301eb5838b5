"""Optimizers on a GPU, where torch's fused kernels take whole steps: the weights that a CPU computes.

Run by scripts/gpu/campaign.py; CI has no GPU, so these skip there.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from paceline.config.plan import StepRates
from paceline.config.recipe import Optim
from paceline.training.optim import make_optimizer
from paceline.training.optim.base import list_named_parameters
from paceline.training.optim.step_scalars import LossScaler, StepScalars

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
OPTIMS = {
    "sgd": Optim(lr=0.1, weight_decay=1e-3),
    "sgd, nesterov": Optim(lr=0.1, weight_decay=1e-3, nesterov=True),
    "sgd, twice the rate for biases": Optim(lr=0.1, weight_decay=1e-3, bias_lr_factor=2.0),
    "sgd, corrected momentum": Optim(lr=0.1, weight_decay=1e-3, momentum_style="mxnet-corrected"),
    "sgd, clipped": Optim(lr=0.1, weight_decay=1e-3, clip_norm=0.5),
    "lars": Optim(name="lars", lr=1.0, weight_decay=1e-3, momentum_style="mxnet-corrected"),
    "adamw": Optim(name="adamw", lr=0.01, weight_decay=1e-2),
}


def trained(optim: Optim, device: str, *, scaled: bool) -> list[Tensor]:
    """Weights after six steps of changing rates; with a loss scale, the third of them overflows."""
    random = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 9, 3), nn.BatchNorm2d(9), nn.Conv2d(9, 16, 1, bias=False), nn.Linear(7, 5))
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=random))
    model = model.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = make_optimizer(list_named_parameters(model, "norm-and-bias"), optim)
    numbers = StepScalars(optim, device)
    scaler = LossScaler("dynamic", 1024.0, device=device) if scaled else None
    for step in range(6):
        for weight in model.parameters():
            gradient = torch.randn(weight.shape, generator=random)
            gradient = (
                gradient.to(device).contiguous(memory_format=torch.channels_last)
                if weight.ndim == 4
                else gradient.to(device)
            )
            if scaler is not None:
                gradient = gradient * (float("inf") if step == 2 else scaler.current)
            weight.grad = gradient
        numbers.write(StepRates(optim.lr / (1 + step), optim.lr / max(1, step)))
        optimizer.step(numbers, scaler=scaler)
    if scaler is not None:
        assert int(scaler.skipped) == 1
    return [weight.detach().cpu() for weight in model.parameters()]


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("name", OPTIMS)
def test_weights_are_those_of_a_cpu(name: str, scaled: bool) -> None:
    on_gpu, on_cpu = (trained(OPTIMS[name], device, scaled=scaled) for device in ("cuda", "cpu"))
    for mine, theirs in zip(on_gpu, on_cpu, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-5, atol=2e-6)
