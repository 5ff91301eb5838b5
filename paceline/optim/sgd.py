"""Momentum SGD over all tensors at once, in the forms that published recipes use.

Letters: g gradient of the global batch's mean loss   w weight   v velocity   m momentum   d weight decay
torch                v <- m v + (g + d w);           w <- w - lr v        (nesterov: w <- w - lr (g + d w + m v))
lr_inside            v <- m v - lr (g + d w);        w <- w + v           MXNet's sgd_mom_update
lr_inside_corrected  the same with m lr_t / lr_(t-1) in place of m, 1x on the first step: what MLPerf's LARS does;
                     equal to the torch form up to rounding (Goyal et al. 2017, section 3)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from paceline.config.recipe import Optim
from paceline.optim.optimiser import Optimiser
from paceline.optim.parameter_groups import NamedParameter, treated_alike
from paceline.optim.step_numbers import StepNumbers, times
from paceline.optim.update import decay, update_fused, update_lr_inside, update_torch, zero_where

# Elements that torch's fused kernel takes at a time on a CPU; what is left over is rounded otherwise there.
EQUAL_BITS = 64


class SGD(Optimiser):
    """Momentum SGD; the torch form equals torch.optim.SGD bit for bit, its foreach or its fused kernels."""

    def __init__(self, parameters: Sequence[NamedParameter], optim: Optim) -> None:
        super().__init__(parameters, optim, "velocity")
        # torch's one kernel knows this form alone, and wants no velocities without momentum; ours keep them all the same.
        self.may_fuse = optim.momentum_form == "torch" and optim.momentum > 0

    def update(
        self,
        parameters: list[NamedParameter],
        gradients: list[Tensor],
        own: Mapping[str, list[Tensor]],
        numbers: StepNumbers,
        found: Tensor | None,
    ) -> None:
        """See `Optimiser.update`."""
        optim = self.optim
        weights: list[Tensor] = [parameter.tensor for parameter in parameters]
        lists = weights, gradients, own["velocity"]
        fused = [self._fuses(*tensors, numbers, found) for tensors in zip(*lists)]

        def of(places: list[int]) -> list[list[Tensor]]:
            return [[tensors[place] for place in places] for tensors in lists]

        rest = [place for place, whole in enumerate(fused) if not whole]
        zero_where(found, of(rest)[1])
        self._decay([parameters[place] for place in rest], *of(rest)[:2])
        for (rate, decays), places in treated_alike(parameters).items():
            lr = times(numbers.lr, rate)
            decay = optim.weight_decay if decays else 0.0
            outside = {"lr": lr, "momentum": optim.momentum, "nesterov": optim.nesterov, "found": found}
            if whole := [place for place in places if fused[place]]:
                update_fused(*of(whole), weight_decay=decay, **outside)
            if rest := [place for place in places if not fused[place]]:
                if optim.momentum_form == "torch":
                    update_torch(*of(rest), **outside)
                else:
                    update_lr_inside(*of(rest), lr=lr, momentum=numbers.momentum, found=found)

    def _fuses(
        self, weight: Tensor, gradient: Tensor, velocity: Tensor, numbers: StepNumbers, found: Tensor | None
    ) -> bool:
        """Whether torch's one kernel takes this tensor: on a CPU only where it gives the bits that several give.

        There it walks memory as if the three lay alike, and rounds the last few elements otherwise.
        """
        if not self.may_fuse or self.fused or weight.device.type != "cpu":
            return self.may_fuse and self.fused
        if found is not None or isinstance(numbers.lr, Tensor) or weight.dtype != torch.float32:
            return False
        return (
            weight.numel() % EQUAL_BITS == 0
            and same_memory_order(weight, gradient)
            and same_memory_order(weight, velocity)
        )

    def _decay(self, parameters: list[NamedParameter], weights: list[Tensor], gradients: list[Tensor]) -> None:
        """g <- g + d w, in place, of those that decay."""
        decaying = [index for index, parameter in enumerate(parameters) if parameter.decays]
        decay([gradients[index] for index in decaying], [weights[index] for index in decaying], self.optim.weight_decay)


def same_memory_order(left: Tensor, right: Tensor) -> bool:
    """Whether elements of two tensors of one shape follow each other in memory in the same order. A dimension of size 1 has no say."""
    if left.stride() == right.stride():
        return True
    return all(a == b or size == 1 for a, b, size in zip(left.stride(), right.stride(), left.shape))
