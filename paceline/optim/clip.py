"""Gradient clipping, on the device: the host never learns whether anything was clipped.

Letters: g gradient of the global batch's mean loss, of all ranks, unscaled, before decay   c bound
value  each element of g to [-c, c], as MXNet's clip_gradient
norm   g * min(1, c / (||g|| + 1e-6)), the norm over all tensors, as torch.nn.utils.clip_grad_norm_
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# Keeps the factor finite for a gradient of zeros (torch's value).
NORM_EPSILON = 1e-6


def clip_gradients(gradients: Sequence[Tensor], *, value: float, norm: float) -> None:
    """Clip in place, by value, by norm, or not at all.

    value, norm  c; 0 = off
    NaN stays NaN either way, and an infinite element makes all of a clipped norm's gradients NaN.
    """
    if not gradients:
        return
    tensors = list(gradients)
    if value:
        torch._foreach_clamp_min_(tensors, -value)  # pyright: ignore[reportPrivateImportUsage]
        torch._foreach_clamp_max_(tensors, value)  # pyright: ignore[reportPrivateImportUsage]
    if norm:
        norms = torch._foreach_norm(tensors)  # pyright: ignore[reportPrivateImportUsage]
        whole = torch.linalg.vector_norm(torch.stack(list(norms)).float())
        factor = (norm / (whole + NORM_EPSILON)).clamp(max=1.0)
        torch._foreach_mul_(tensors, factor)  # pyright: ignore[reportPrivateImportUsage]
