"""LARS: a step whose length follows each tensor's own norm (You et al. 2017), as MLPerf's MXNet ResNet computes it.

Letters: N tensors   g gradient of the global batch's mean loss, before decay   w weight   d weight decay
trust = eta ||w|| / (||g|| + d ||w|| + eps) where both norms are above 0, else 1. It multiplies (g + d w) and with
it the learning rate. Norms are float32 and, like the ratio, never leave the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.config.recipe import Optim
from paceline.optim import foreach
from paceline.optim.parameter_groups import NamedParameter
from paceline.optim.sgd import SGD


class LARS(SGD):
    """Momentum SGD whose convolution and linear weights move in proportion to their trust ratio; the rest is SGD."""

    def __init__(self, parameters: Sequence[NamedParameter], optim: Optim) -> None:
        super().__init__(parameters, optim)
        # One decay serves all ratios: every DecayOn decays weights, and only weights adapt.
        assert all(parameter.decays for parameter in parameters if parameter.adapts)
        self.may_fuse = False  # torch's one kernel decays by itself, and the ratios come between the decay and the step

    def _decay(self, parameters: list[NamedParameter], weights: list[Tensor], gradients: list[Tensor]) -> None:
        """g <- trust * (g + d w), in place."""
        adapting = [index for index, parameter in enumerate(parameters) if parameter.adapts]
        if not adapting:
            return super()._decay(parameters, weights, gradients)
        ratios = trust_ratios(
            [weights[index] for index in adapting],
            [gradients[index] for index in adapting],
            weight_decay=self.optim.weight_decay,
            eta=self.optim.lars_eta,
            eps=self.optim.lars_eps,
        )
        super()._decay(parameters, weights, gradients)
        foreach.mul_([gradients[index] for index in adapting], list(ratios.unbind()))


def trust_ratios(
    weights: list[Tensor], gradients: list[Tensor], *, weight_decay: float, eta: float, eps: float
) -> Tensor:
    """N > 0 weights and their N gradients -> (N,) float32 trust ratios."""
    weight_norms = torch.stack(foreach.norm(weights)).float()
    gradient_norms = torch.stack(foreach.norm(gradients)).float()
    ratios = eta * weight_norms / (gradient_norms + weight_decay * weight_norms + eps)
    # 0 / 0 is NaN in the ratio but never chosen here.
    return torch.where((weight_norms > 0) & (gradient_norms > 0), ratios, 1.0)
