"""The arithmetic of a momentum step over lists of tensors, a few kernels for all of them.

Letters: g gradient   w weight   v velocity   m momentum
`found` is None, or a float32 scalar on the device that is 1 where the step must be skipped (its gradients are then all
zero): the same kernels run and change nothing, so the host never waits to learn of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def decay(gradients: Sequence[Tensor], weights: Sequence[Tensor], weight_decay: float) -> None:
    """g <- g + weight_decay * w, in place."""
    if weight_decay and gradients:
        torch._foreach_add_(list(gradients), list(weights), alpha=weight_decay)  # pyright: ignore[reportPrivateImportUsage]


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
        direction = torch._foreach_add(gradients, velocities, alpha=momentum)  # pyright: ignore[reportPrivateImportUsage]
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
        torch._foreach_mul_(velocities, momentum)  # pyright: ignore[reportPrivateImportUsage]
        torch._foreach_add_(velocities, gradients, alpha=factor)  # pyright: ignore[reportPrivateImportUsage]
        return
    # m where the step is taken, 1 where it is skipped; decay has put weights into the zeroed gradients: take them out.
    torch._foreach_mul_(velocities, torch.where(found > 0, 1.0, momentum))  # pyright: ignore[reportPrivateImportUsage]
    torch._foreach_mul_(gradients, 1 - found)  # pyright: ignore[reportPrivateImportUsage]
    torch._foreach_add_(velocities, gradients, alpha=factor)  # pyright: ignore[reportPrivateImportUsage]


def _move(weights: list[Tensor], directions: list[Tensor], factor: float, found: Tensor | None) -> None:
    """w <- w + factor * direction; a skipped step keeps w."""
    if found is None:
        torch._foreach_add_(weights, directions, alpha=factor)  # pyright: ignore[reportPrivateImportUsage]
        return
    steps = torch._foreach_mul(directions, factor * (1 - found))  # pyright: ignore[reportPrivateImportUsage]
    torch._foreach_add_(weights, steps)  # pyright: ignore[reportPrivateImportUsage]
