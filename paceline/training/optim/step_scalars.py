"""Numbers that change from one optimizer step to the next: learning rate, momentum, the average's share, and the loss scale.

The first three are written before a step and only read in it. On a CPU they are Python floats. On an accelerator they are scalars
on the device: a recorded step, such as a CUDA graph, reads in each replay what was written last, where a Python float would keep
the value of the recording. The arithmetic between them is done in double precision on the host and rounded once.

The loss scale for fp16 gradients lives on the device altogether: a step whose gradients overflowed is skipped without a host sync.
A static scale keeps its value (the original SSD used 128); a dynamic one halves at an overflow and doubles after GROWTH_INTERVAL
good steps (Micikevicius et al. 2018; the constants are torch.amp.GradScaler's).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from paceline.config.plan import StepRates
from paceline.config.recipe import Optim
from paceline.training.optim import foreach
from paceline.training.optim.foreach import copy_into

Number = float | Tensor  # a float, or a scalar float32 tensor on the device of the weights

GROWTH = 2.0
BACKOFF = 0.5
GROWTH_INTERVAL = 2000


class StepScalars:
    """Learning rate, momentum and the weight average's share of one step."""

    lr: Number
    momentum: Number  # factor of the velocity; a tensor only where the momentum's form changes it between steps
    fresh: Number  # share of the step's weights in the weight average, 1 - ema

    def __init__(self, optim: Optim, device: torch.device | str, *, tensors: bool | None = None) -> None:
        """
        device   where the weights are
        tensors  whether the numbers are tensors; None: everywhere but on a CPU
        """
        self.optim = optim
        changing = ("lr", "fresh", *(["momentum"] if optim.momentum_style == "mxnet-corrected" else []))
        is_cpu = torch.device(device).type == "cpu"
        self._tensors: dict[str, Tensor] = {}
        if not is_cpu if tensors is None else tensors:
            self._tensors = {name: torch.zeros((), dtype=torch.float32, device=device) for name in changing}
        self._written = dict.fromkeys(self._tensors, 0.0)
        self.write(StepRates(0.0, 0.0))

    def write(self, rates: StepRates) -> None:
        """Set the numbers of the next step, before it and outside of its recording. No host sync.

        On a device each number that changed is the argument of one small kernel, sent to the current stream: no host memory
        has to outlive the call.
        """
        numbers = {"lr": rates.lr, "momentum": get_momentum(self.optim, rates), "fresh": 1 - rates.ema}
        for name, number in numbers.items():
            tensor = self._tensors.get(name)
            setattr(self, name, number if tensor is None else tensor)
            if tensor is not None and self._written[name] != number:
                self._written[name] = number
                tensor.fill_(number)


def get_momentum(optim: Optim, rates: StepRates) -> float:
    """Factor of the velocity: the recipe's momentum, times lr / previous lr in the corrected form (training/optim/sgd.py)."""
    if optim.momentum_style == "mxnet-corrected" and rates.previous_lr:
        return optim.momentum * (rates.lr / rates.previous_lr)
    return optim.momentum


def scaled(number: Number, factor: float) -> Number:
    """number * factor, without a kernel where it changes nothing."""
    return number if factor == 1.0 else number * factor


class LossScaler:
    """Multiply the loss, divide the gradients, and decide on the device whether a step must be skipped."""

    def __init__(
        self,
        kind: Literal["static", "dynamic"],
        scale: float,
        *,
        device: torch.device | str = "cpu",
        growth_interval: int = GROWTH_INTERVAL,
    ) -> None:
        """
        scale            factor of the loss; for kind dynamic the first one (65536 is usual)
        growth_interval  good steps in a row before a dynamic scale doubles
        """
        self.kind = kind
        self.growth_interval = growth_interval
        self.current = torch.tensor(float(scale), device=device)
        self.good_steps = torch.zeros((), dtype=torch.int64, device=device)
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)  # steps so far; read it once an interval

    def scale(self, loss: Tensor) -> Tensor:
        """The loss to call backward on."""
        return loss * self.current

    def unscale(self, gradients: Sequence[Tensor]) -> Tensor:
        """Divide the gradients in place; -> 1.0 if any is infinite or NaN, else 0.0 (scalar float32, on the device).

        Call it when the gradients of all ranks are summed: then every rank gets the same answer.
        """
        found_inf = torch.zeros((), device=self.current.device)
        foreach.unscale_(list(gradients), found_inf, self.current.reciprocal())
        return found_inf

    def update(self, found_inf: Tensor) -> None:
        """After the step: count a skipped one and move a dynamic scale."""
        bad = found_inf > 0
        self.skipped += bad
        if self.kind == "static":
            return
        self.good_steps.add_(1).masked_fill_(bad, 0)
        grows = self.good_steps >= self.growth_interval
        grown = self.current * GROWTH
        # A scale that overflows itself would poison every later step.
        grown = torch.where(torch.isfinite(grown), grown, self.current)
        self.current.copy_(torch.where(bad, self.current * BACKOFF, torch.where(grows, grown, self.current)))
        self.good_steps.masked_fill_(grows, 0)

    def state(self) -> dict[str, Tensor]:
        """The tensors themselves, by name: current scale, good steps in a row, steps skipped so far."""
        return {"scale": self.current, "good_steps": self.good_steps, "skipped": self.skipped}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Copy a saved state in. Raises CheckpointError for another set of names or shapes."""
        copy_into(self.state(), state, "loss scale")
