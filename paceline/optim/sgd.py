"""Momentum SGD over all tensors at once, in the forms that published recipes use.

Letters: g gradient of the global batch's mean loss   w weight   v velocity   m momentum   d weight decay
torch                v <- m v + (g + d w);           w <- w - lr v        (nesterov: w <- w - lr (g + d w + m v))
lr_inside            v <- m v - lr (g + d w);        w <- w + v           MXNet's sgd_mom_update
lr_inside_corrected  the same with m lr_t / lr_(t-1) in place of m, 1x on the first step: what MLPerf's LARS does;
                     equal to the torch form up to rounding (Goyal et al. 2017, section 3)
Weights, gradients and velocities are float32; under autocast the weights are the master weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from paceline.config.errors import RecipeError
from paceline.optim.clip import clip_gradients
from paceline.optim.loss_scale import LossScaler
from paceline.optim.parameter_groups import NamedParameter, by_rate
from paceline.optim.tensor_state import copy_into
from paceline.optim.update import decay, update_lr_inside, update_torch

MomentumForm = Literal["torch", "lr_inside", "lr_inside_corrected"]


class SGD:
    """Momentum SGD; the torch form equals torch.optim.SGD bit for bit."""

    def __init__(
        self,
        parameters: Sequence[NamedParameter],
        *,
        momentum: float,
        weight_decay: float,
        form: MomentumForm = "torch",
        nesterov: bool = False,
        clip_value: float = 0.0,
        clip_norm: float = 0.0,
    ) -> None:
        """
        parameters    what to train, what of it decays, and at which share of the learning rate (`named_parameters`)
        momentum      m, in [0, 1)
        weight_decay  d, added to the gradient
        nesterov      step along the look-ahead gradient; torch form only
        clip_value, clip_norm  bounds of g (optim/clip.py); 0 = off
        Raises RecipeError for nesterov in another form.
        """
        if nesterov and form != "torch":
            raise RecipeError(f"--optim.nesterov goes with --optim.momentum-form torch only, not with {form}")
        self.parameters = list(parameters)
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.form: MomentumForm = form
        self.nesterov = nesterov
        self.clip_value, self.clip_norm = clip_value, clip_norm
        self.velocities = [torch.zeros_like(parameter.tensor) for parameter in self.parameters]

    @torch.no_grad()
    def step(self, lr: float, *, previous_lr: float | None = None, scaler: LossScaler | None = None) -> None:
        """Update every parameter that has a gradient; the gradients serve as scratch. No host sync.

        lr           learning rate of this step
        previous_lr  that of the step before, for lr_inside_corrected; None on the first step
        scaler       divides the gradients first; a step that overflowed changes neither weights nor velocities
        """
        chosen = [place for place, parameter in enumerate(self.parameters) if parameter.tensor.grad is not None]
        if not chosen:
            return
        parameters = [self.parameters[place] for place in chosen]
        weights: list[Tensor] = [parameter.tensor for parameter in parameters]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        velocities = [self.velocities[place] for place in chosen]
        found = None if scaler is None else scaler.unscale(gradients)
        if found is not None:
            for gradient in gradients:
                gradient.masked_fill_(found > 0, 0.0)
        clip_gradients(gradients, value=self.clip_value, norm=self.clip_norm)
        ratios = self._ratios(parameters, weights, gradients)
        decaying = [index for index, parameter in enumerate(parameters) if parameter.decays]
        decay([gradients[index] for index in decaying], [weights[index] for index in decaying], self.weight_decay)
        for index, ratio in ratios.items():
            gradients[index].mul_(ratio)
        momentum = self.momentum
        if self.form == "lr_inside_corrected" and previous_lr:
            momentum *= lr / previous_lr
        for rate, places in by_rate(parameters).items():
            of_rate = ([group[place] for place in places] for group in (weights, gradients, velocities))
            if self.form == "torch":
                update_torch(*of_rate, lr=lr * rate, momentum=momentum, nesterov=self.nesterov, found=found)
            else:
                update_lr_inside(*of_rate, lr=lr * rate, momentum=momentum, found=found)
        if scaler is not None and found is not None:
            scaler.update(found)

    def _ratios(
        self, parameters: list[NamedParameter], weights: list[Tensor], gradients: list[Tensor]
    ) -> Mapping[int, Tensor]:
        """Factors of some tensors' (g + d w), by position; SGD has none."""
        return {}

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for parameter in self.parameters:
            parameter.tensor.grad = None

    def state(self) -> dict[str, Tensor]:
        """The velocities themselves, keyed "velocity.<parameter name>"."""
        names = (f"velocity.{parameter.name}" for parameter in self.parameters)
        return dict(zip(names, self.velocities))

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Copy a saved state in. Raises CheckpointError for another set of names or shapes."""
        copy_into(self.state(), state, "optimiser state")
