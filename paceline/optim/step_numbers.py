"""The numbers that change from one optimiser step to the next, written before the step and only read in it.

On a CPU they are Python floats. On an accelerator they are scalars on the device: whatever was recorded of a step, a CUDA graph for
one, reads in each replay what was written last, where a Python float would stay what it was when the step was recorded.
The arithmetic between them is done in double on the host and rounded once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.config.plan import Rates
from paceline.config.recipe import Optim

Number = float | Tensor  # a float, or a scalar float32 tensor on the device of the weights


class StepNumbers:
    """Learning rate, momentum and the weight average's share of one step.

    lr        learning rate
    momentum  factor of the velocity; a tensor only where the recipe's form of momentum changes it from step to step
    fresh     share of the step's weights in the weight average, 1 - ema
    """

    lr: Number
    momentum: Number
    fresh: Number

    def __init__(self, optim: Optim, device: torch.device | str, *, tensors: bool | None = None) -> None:
        """
        device   where the weights are
        tensors  whether the numbers are tensors; None: everywhere but on a CPU
        """
        self.optim = optim
        changing = ("lr", "fresh", *(["momentum"] if optim.momentum_form == "lr_inside_corrected" else []))
        is_cpu = torch.device(device).type == "cpu"
        self._tensors: dict[str, Tensor] = {}
        if not is_cpu if tensors is None else tensors:
            self._tensors = {name: torch.zeros((), dtype=torch.float32, device=device) for name in changing}
        self._written = dict.fromkeys(self._tensors, 0.0)
        self.write(Rates(0.0, 0.0))

    def write(self, rates: Rates) -> None:
        """Set the numbers of the step to come, before it and outside of what is recorded of it. No host sync.

        On a device each number that changed is the argument of one small kernel, sent to the current stream: no host memory has
        to outlive the call.
        """
        numbers = {"lr": rates.lr, "momentum": momentum_at(self.optim, rates), "fresh": 1 - rates.ema}
        for name, number in numbers.items():
            tensor = self._tensors.get(name)
            setattr(self, name, number if tensor is None else tensor)
            if tensor is not None and self._written[name] != number:
                self._written[name] = number
                tensor.fill_(number)


def momentum_at(optim: Optim, rates: Rates) -> float:
    """Factor of the velocity: the recipe's momentum, times lr / previous lr in the corrected form (optim/sgd.py)."""
    if optim.momentum_form == "lr_inside_corrected" and rates.previous_lr:
        return optim.momentum * (rates.lr / rates.previous_lr)
    return optim.momentum


def times(number: Number, factor: float) -> Number:
    """number * factor, without a kernel where it changes nothing."""
    return number if factor == 1.0 else number * factor
