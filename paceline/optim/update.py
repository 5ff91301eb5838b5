"""The arithmetic of a momentum step over lists of tensors, a few kernels for all of them.

Letters: g gradient   w weight   v velocity   m momentum
`found` is None, or a float32 scalar on the device that is 1 where the step must be skipped (its gradients are then all
zero): the same kernels run and change nothing, so the host never waits to learn of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.optim import foreach


def decay(gradients: Sequence[Tensor], weights: Sequence[Tensor], weight_decay: float) -> None:
    """g <- g + weight_decay * w, in place."""
    if weight_decay and gradients:
        foreach.add_(list(gradients), list(weights), alpha=weight_decay)


def update_torch(
    weights: list[Tensor],
    gradients: list[Tensor],
    velocities: list[Tensor],
    *,
    lr: float,
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


def update_lr_inside(
    weights: list[Tensor],
    gradients: list[Tensor],
    velocities: list[Tensor],
    *,
    lr: float,
    momentum: float,
    found: Tensor | None,
) -> None:
    """v <- m v - lr g; w <- w + v. Changes v and w, in place."""
    _advance(velocities, gradients, momentum, -lr, found)
    _move(weights, velocities, 1.0, found)


def _advance(
    velocities: list[Tensor], gradients: list[Tensor], momentum: float, factor: float, found: Tensor | None
) -> None:
    """v <- m v + factor * g; a skipped step keeps v."""
    if found is None:
        foreach.mul_(velocities, momentum)
        foreach.add_(velocities, gradients, alpha=factor)
        return
    # m where the step is taken, 1 where it is skipped; decay has put weights into the zeroed gradients: take them out.
    foreach.mul_(velocities, torch.where(found > 0, 1.0, momentum))
    foreach.mul_(gradients, 1 - found)
    foreach.add_(velocities, gradients, alpha=factor)


def _move(weights: list[Tensor], directions: list[Tensor], factor: float, found: Tensor | None) -> None:
    """w <- w + factor * direction; a skipped step keeps w."""
    if found is None:
        foreach.add_(weights, directions, alpha=factor)
        return
    steps = foreach.mul(directions, factor * (1 - found))
    foreach.add_(weights, steps)
