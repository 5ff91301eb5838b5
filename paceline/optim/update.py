"""The arithmetic of a momentum step over lists of tensors, a few kernels for all of them.

Letters: g gradient   w weight   v velocity   m momentum   d weight decay
`found` is None, or a float32 scalar on the device that is 1 where the step must be skipped (its gradients are then all
zero): the same kernels run and change nothing, so the host never waits to learn of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.optim import foreach
from paceline.optim.step_numbers import Number


def zero_where(found: Tensor | None, gradients: Sequence[Tensor]) -> None:
    """All gradients of a step that must be skipped become zero, in place: a product would leave its NaN."""
    if found is not None:
        skipped = found > 0
        for gradient in gradients:
            gradient.masked_fill_(skipped, 0.0)


def decay(gradients: Sequence[Tensor], weights: Sequence[Tensor], weight_decay: float) -> None:
    """g <- g + weight_decay * w, in place."""
    if weight_decay and gradients:
        foreach.add_(list(gradients), list(weights), alpha=weight_decay)


def update_torch(
    weights: list[Tensor],
    gradients: list[Tensor],
    velocities: list[Tensor],
    *,
    lr: Number,
    momentum: float,
    nesterov: bool,
    found: Tensor | None,
) -> None:
    """v <- m v + g; w <- w - lr v, or w - lr (g + m v) for nesterov. Changes v and w, in place."""
    _advance(velocities, gradients, momentum, 1.0, found)
    direction = velocities
    if nesterov:
        direction = foreach.add(gradients, velocities, alpha=momentum)
    _move(weights, list(direction), -lr, found)


def update_fused(
    weights: list[Tensor],
    gradients: list[Tensor],
    velocities: list[Tensor],
    *,
    lr: Number,
    momentum: float,
    nesterov: bool,
    weight_decay: float,
    found: Tensor | None,
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
        found_inf=found,
    )


def update_lr_inside(
    weights: list[Tensor],
    gradients: list[Tensor],
    velocities: list[Tensor],
    *,
    lr: Number,
    momentum: Number,
    found: Tensor | None,
) -> None:
    """v <- m v - lr g; w <- w + v. Changes v and w, in place."""
    _advance(velocities, gradients, momentum, -lr, found)
    _move(weights, velocities, 1.0, found)


def _advance(
    velocities: list[Tensor], gradients: list[Tensor], momentum: Number, factor: Number, found: Tensor | None
) -> None:
    """v <- m v + factor * g; a skipped step keeps v."""
    if found is not None:
        # m where the step is taken, 1 where it is skipped; decay has put weights into the zeroed gradients: take them out.
        momentum = torch.where(found > 0, 1.0, momentum)
        foreach.mul_(gradients, 1 - found)
    foreach.mul_(velocities, momentum)
    _add(velocities, gradients, factor)


def _move(weights: list[Tensor], directions: list[Tensor], factor: Number, found: Tensor | None) -> None:
    """w <- w + factor * direction; a skipped step keeps w."""
    _add(weights, directions, factor if found is None else factor * (1 - found))


def _add(tensors: list[Tensor], others: list[Tensor], factor: Number) -> None:
    """t <- t + factor * o, in place. torch scales within the sum by Python numbers alone."""
    if isinstance(factor, Tensor):
        foreach.add_(tensors, foreach.mul(others, factor))
    else:
        foreach.add_(tensors, others, alpha=factor)
