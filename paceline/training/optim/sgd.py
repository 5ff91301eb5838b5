"""Momentum SGD over all tensors at once, in the forms that published recipes use, and LARS, whose step follows each tensor's norm.

Letters: N tensors   g gradient of the global batch's mean loss   w weight   v velocity   m momentum   d weight decay
torch                v <- m v + (g + d w);           w <- w - lr v        (nesterov: w <- w - lr (g + d w + m v))
mxnet            v <- m v - lr (g + d w);        w <- w + v           MXNet's sgd_mom_update
mxnet-corrected  the same with m lr_t / lr_(t-1) in place of m, 1x on the first step: what MLPerf's LARS does;
                     equal to the torch form up to rounding (Goyal et al. 2017, section 3)
LARS (You et al. 2017), as MLPerf's MXNet ResNet computes it: trust = eta ||w|| / (||g|| + d ||w|| + eps) where both norms are above
0, else 1. It multiplies (g + d w) and with it the learning rate. Norms are float32 and, like the ratio, never leave the device.

`found_inf` is None, or a float32 scalar on the device, 1 where the step must be skipped: the same kernels run and change nothing,
so the host never waits to learn of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from paceline.config.recipe import Optim
from paceline.training.optim import foreach
from paceline.training.optim.base import NamedParameter, Optimizer, param_groups
from paceline.training.optim.step_scalars import Number, StepScalars, scaled

# Elements that torch's fused kernel takes at a time on a CPU; it rounds the rest differently there.
EQUAL_BITS = 64


class SGD(Optimizer):
    """Momentum SGD; the torch form equals torch.optim.SGD bit for bit, its foreach or its fused kernels."""

    def __init__(self, parameters: Sequence[NamedParameter], optim: Optim) -> None:
        super().__init__(parameters, optim, "velocity")
        # torch's one kernel has this form alone, and takes no velocities without momentum; ours are kept all the same.
        self.may_fuse = optim.momentum_style == "torch" and optim.momentum > 0

    def update(
        self,
        parameters: list[NamedParameter],
        gradients: list[Tensor],
        own: Mapping[str, list[Tensor]],
        numbers: StepScalars,
        found_inf: Tensor | None,
    ) -> None:
        """See `Optimizer.update`."""
        optim = self.optim
        weights: list[Tensor] = [parameter.tensor for parameter in parameters]
        lists = weights, gradients, own["velocity"]
        fused = [self._fuses(*tensors, numbers, found_inf) for tensors in zip(*lists)]

        def of(positions: list[int]) -> list[list[Tensor]]:
            return [[tensors[index] for index in positions] for tensors in lists]

        rest = [index for index, whole in enumerate(fused) if not whole]
        zero_where(found_inf, of(rest)[1])
        self._decay([parameters[index] for index in rest], *of(rest)[:2])
        for (rate, decays), indices in param_groups(parameters).items():
            lr = scaled(numbers.lr, rate)
            decay = optim.weight_decay if decays else 0.0
            outside = {"lr": lr, "momentum": optim.momentum, "nesterov": optim.nesterov, "found_inf": found_inf}
            if whole := [index for index in indices if fused[index]]:
                update_fused(*of(whole), weight_decay=decay, **outside)
            if rest := [index for index in indices if not fused[index]]:
                if optim.momentum_style == "torch":
                    update_torch(*of(rest), **outside)
                else:
                    update_lr_inside(*of(rest), lr=lr, momentum=numbers.momentum, found_inf=found_inf)

    def _fuses(
        self, weight: Tensor, gradient: Tensor, velocity: Tensor, numbers: StepScalars, found_inf: Tensor | None
    ) -> bool:
        """Whether torch's one kernel takes this tensor: on a CPU only where it gives the bits that several kernels give.

        There it walks memory as if the three had one memory order, and rounds the last few elements differently.
        """
        if not self.may_fuse or self.fused or weight.device.type != "cpu":
            return self.may_fuse and self.fused
        if found_inf is not None or isinstance(numbers.lr, Tensor) or weight.dtype != torch.float32:
            return False
        alike = has_same_memory_order(weight, gradient) and has_same_memory_order(weight, velocity)
        return weight.numel() % EQUAL_BITS == 0 and alike

    def _decay(self, parameters: list[NamedParameter], weights: list[Tensor], gradients: list[Tensor]) -> None:
        """g <- g + d w, in place, of those that decay."""
        decaying = [index for index, parameter in enumerate(parameters) if parameter.decays]
        if decaying and (weight_decay := self.optim.weight_decay):
            foreach.add_(
                [gradients[index] for index in decaying], [weights[index] for index in decaying], alpha=weight_decay
            )


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
            eta=self.optim.lars_trust_coefficient,
            eps=self.optim.lars_eps,
        )
        super()._decay(parameters, weights, gradients)
        foreach.mul_([gradients[index] for index in adapting], list(ratios.unbind()))


def trust_ratios(weights: list[Tensor], gradients: list[Tensor], *, weight_decay: float, eta: float, eps: float) -> Tensor:
    """N > 0 weights and their N gradients, before decay -> (N,) float32 trust ratios."""
    weight_norms = torch.stack(foreach.norm(weights)).float()
    gradient_norms = torch.stack(foreach.norm(gradients)).float()
    ratios = eta * weight_norms / (gradient_norms + weight_decay * weight_norms + eps)
    # 0 / 0 is NaN in the ratio but never chosen here.
    return torch.where((weight_norms > 0) & (gradient_norms > 0), ratios, 1.0)


def has_same_memory_order(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors of one shape have their elements in one order in memory. Dimensions of size 1 do not count."""
    if left.stride() == right.stride():
        return True
    return all(a == b or size == 1 for a, b, size in zip(left.stride(), right.stride(), left.shape))


def zero_where(found_inf: Tensor | None, gradients: Sequence[Tensor]) -> None:
    """All gradients of a step that must be skipped become zero, in place: a product would leave its NaN."""
    if found_inf is not None:
        skipped = found_inf > 0
        for gradient in gradients:
            gradient.masked_fill_(skipped, 0.0)


def update_torch(
    weights: list[Tensor],
    gradients: list[Tensor],
    velocities: list[Tensor],
    *,
    lr: Number,
    momentum: float,
    nesterov: bool,
    found_inf: Tensor | None,
) -> None:
    """v <- m v + g; w <- w - lr v, or w - lr (g + m v) for nesterov. Changes v and w, in place."""
    _advance(velocities, gradients, momentum, 1.0, found_inf)
    direction = velocities
    if nesterov:
        direction = foreach.add(gradients, velocities, alpha=momentum)
    _move(weights, list(direction), -lr, found_inf)


def update_fused(
    weights: list[Tensor],
    gradients: list[Tensor],
    velocities: list[Tensor],
    *,
    lr: Number,
    momentum: float,
    nesterov: bool,
    weight_decay: float,
    found_inf: Tensor | None,
) -> None:
    """The decay and `update_torch` in torch's one kernel; a skipped step's gradients may be anything."""
    foreach.fused_sgd_(
        weights,
        gradients,
        velocities,
        weight_decay=weight_decay,
        momentum=momentum,
        lr=lr,
        dampening=0.0,
        nesterov=nesterov,
        maximize=False,
        is_first_step=False,  # the velocities exist from the start, as zeros
        found_inf=found_inf,
    )


def update_lr_inside(
    weights: list[Tensor],
    gradients: list[Tensor],
    velocities: list[Tensor],
    *,
    lr: Number,
    momentum: Number,
    found_inf: Tensor | None,
) -> None:
    """v <- m v - lr g; w <- w + v. Changes v and w, in place."""
    _advance(velocities, gradients, momentum, -lr, found_inf)
    _move(weights, velocities, 1.0, found_inf)


def _advance(
    velocities: list[Tensor], gradients: list[Tensor], momentum: Number, factor: Number, found_inf: Tensor | None
) -> None:
    """v <- m v + factor * g; a skipped step, whose gradients are zero before decay, keeps v."""
    if found_inf is not None:
        # m where the step is taken, 1 where it is skipped; decay has put weights into the zeroed gradients: take them out.
        momentum = torch.where(found_inf > 0, 1.0, momentum)
        foreach.mul_(gradients, 1 - found_inf)
    foreach.mul_(velocities, momentum)
    _add(velocities, gradients, factor)


def _move(weights: list[Tensor], directions: list[Tensor], factor: Number, found_inf: Tensor | None) -> None:
    """w <- w + factor * direction; a skipped step keeps w."""
    _add(weights, directions, factor if found_inf is None else factor * (1 - found_inf))


def _add(tensors: list[Tensor], others: list[Tensor], factor: Number) -> None:
    """t <- t + factor * o, in place. torch scales within the sum by Python numbers alone."""
    if isinstance(factor, Tensor):
        foreach.add_(tensors, foreach.mul(others, factor))
    else:
        foreach.add_(tensors, others, alpha=factor)
