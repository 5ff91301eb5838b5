"""Gradient clipping, on the device: the host never learns whether anything was clipped.

Letters: g gradient of the global batch's mean loss, of all ranks, unscaled, before decay   c bound
value  each element of g to [-c, c], as MXNet's clip_gradient
norm   g * min(1, c / (||g|| + 1e-6)), the norm over all tensors, as torch.nn.utils.clip_grad_norm_
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.optim import foreach

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
        foreach.clamp_min_(tensors, -value)
        foreach.clamp_max_(tensors, value)
    if norm:
        norms = foreach.norm(tensors)
        whole = torch.linalg.vector_norm(torch.stack(list(norms)).float())
        factor = (norm / (whole + NORM_EPSILON)).clamp(max=1.0)
        foreach.mul_(tensors, factor)
