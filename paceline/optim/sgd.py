"""Momentum SGD over all tensors at once, in the forms that published recipes use.

Letters: g gradient of the global batch's mean loss   w weight   v velocity   m momentum   d weight decay
torch                v <- m v + (g + d w);           w <- w - lr v        (nesterov: w <- w - lr (g + d w + m v))
lr_inside            v <- m v - lr (g + d w);        w <- w + v           MXNet's sgd_mom_update
lr_inside_corrected  the same with m lr_t / lr_(t-1) in place of m, 1x on the first step: what MLPerf's LARS does;
                     equal to the torch form up to rounding (Goyal et al. 2017, section 3)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from paceline.config.recipe import Optim
from paceline.optim.optimiser import Optimiser
from paceline.optim.parameter_groups import NamedParameter, treated_alike
from paceline.optim.step_numbers import StepNumbers, times
from paceline.optim.update import decay, update_fused, update_lr_inside, update_torch, zero_where


class SGD(Optimiser):
    """Momentum SGD; the torch form equals torch.optim.SGD bit for bit, its foreach or its fused kernels."""

    def __init__(self, parameters: Sequence[NamedParameter], optim: Optim) -> None:
        super().__init__(parameters, optim, "velocity")

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
        # torch's kernel wants no velocities where there is no momentum; ours keep them all the same.
        fused = self.fused and optim.momentum_form == "torch" and optim.momentum > 0
        if not fused:
            zero_where(found, gradients)
            self._decay(parameters, weights, gradients)
        for (rate, decays), places in treated_alike(parameters).items():
            alike = [[group[place] for place in places] for group in (weights, gradients, own["velocity"])]
            lr = times(numbers.lr, rate)
            if fused:
                update_fused(
                    *alike,
                    lr=lr,
                    momentum=optim.momentum,
                    nesterov=optim.nesterov,
                    weight_decay=optim.weight_decay if decays else 0.0,
                    found=found,
                )
            elif optim.momentum_form == "torch":
                update_torch(*alike, lr=lr, momentum=optim.momentum, nesterov=optim.nesterov, found=found)
            else:
                update_lr_inside(*alike, lr=lr, momentum=numbers.momentum, found=found)

    def _decay(self, parameters: list[NamedParameter], weights: list[Tensor], gradients: list[Tensor]) -> None:
        """g <- g + d w, in place, of those that decay."""
        decaying = [index for index, parameter in enumerate(parameters) if parameter.decays]
        decay([gradients[index] for index in decaying], [weights[index] for index in decaying], self.optim.weight_decay)
