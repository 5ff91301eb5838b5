"""The loop that a careful user writes around a network, with torch's fastest SGD."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn

from paceline.config.recipe import Optim
from paceline.tools.bench.harness import Step


def plain_loop(model: nn.Module, loss_of: Callable[[], Tensor], optim: Optim) -> Step:
    """Around a model in training, which is on its device: each call takes a step, -> the loss."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.SGD(weights, lr=optim.lr, momentum=optim.momentum, weight_decay=optim.weight_decay, fused=True)

    def step() -> Tensor:
        loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def normalized(images: Tensor) -> Tensor:
    """(B, 3, H, W) uint8 by ImageNet's mean and standard deviation."""
    mean, std = _mean_and_std(images.device)
    return (images.float() - mean) / std


@cache
def _mean_and_std(device: torch.device) -> tuple[Tensor, ...]:
    """On the device, once: made from Python numbers they would make each step wait for it, and end a capture."""
    return tuple(
        255 * torch.tensor(values, device=device).view(1, 3, 1, 1)
        for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    )
