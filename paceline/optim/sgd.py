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
from paceline.optim.parameter_groups import NamedParameter, by_rate
from paceline.optim.update import decay, update_lr_inside, update_torch


class SGD(Optimiser):
    """Momentum SGD; the torch form equals torch.optim.SGD bit for bit."""

    def __init__(self, parameters: Sequence[NamedParameter], optim: Optim) -> None:
        super().__init__(parameters, optim, "velocity")

    def update(
        self,
        parameters: list[NamedParameter],
        gradients: list[Tensor],
        own: Mapping[str, list[Tensor]],
        *,
        lr: float,
        previous_lr: float | None,
        found: Tensor | None,
    ) -> None:
        """See `Optimiser.update`."""
        optim = self.optim
        weights: list[Tensor] = [parameter.tensor for parameter in parameters]
        ratios = self._ratios(parameters, weights, gradients)
        decaying = [index for index, parameter in enumerate(parameters) if parameter.decays]
        decay([gradients[index] for index in decaying], [weights[index] for index in decaying], optim.weight_decay)
        for index, ratio in ratios.items():
            gradients[index].mul_(ratio)
        momentum = optim.momentum
        if optim.momentum_form == "lr_inside_corrected" and previous_lr:
            momentum *= lr / previous_lr
        for rate, places in by_rate(parameters).items():
            of_rate = ([group[place] for place in places] for group in (weights, gradients, own["velocity"]))
            if optim.momentum_form == "torch":
                update_torch(*of_rate, lr=lr * rate, momentum=momentum, nesterov=optim.nesterov, found=found)
            else:
                update_lr_inside(*of_rate, lr=lr * rate, momentum=momentum, found=found)

    def _ratios(
        self, parameters: list[NamedParameter], weights: list[Tensor], gradients: list[Tensor]
    ) -> Mapping[int, Tensor]:
        """Factors of some tensors' (g + d w), by position; SGD has none."""
        return {}
