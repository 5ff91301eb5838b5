"""SyncBatchNorm's five operations as a CPU computes them, in float32: torch has them for CUDA alone.

Arguments and results are those of the operations in torch.ops.aten; images are (B, C, H, W) of any floating type.
Source of the formulas: PyTorch's aten/src/ATen/native/cuda/Normalization.cuh.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

PIXELS = (0, 2, 3)


def over_channels(values: Tensor) -> Tensor:
    return values.float().view(1, -1, 1, 1)


def batch_norm_stats(input: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """-> mean (C,) and 1 / standard deviation (C,)."""
    variance, mean = torch.var_mean(input.float(), dim=PIXELS, correction=0)
    return mean, torch.rsqrt(variance + eps)


def batch_norm_gather_stats_with_counts(
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """R ranks' (R, C), (R, C) and (R,) -> joint mean (C,) and 1 / standard deviation (C,); the running statistics move in place."""
    total, average, squares = torch.zeros(()), torch.zeros_like(mean[0]), torch.zeros_like(mean[0])
    for count, one, scale in zip(counts, mean, invstd):
        squares = squares + (scale.pow(-2) - eps) * count + (one - average).square() * total * count / (total + count)
        average = (total * average + count * one) / (total + count)
        total = total + count
    if running_mean is not None and running_var is not None:
        running_mean.mul_(1 - momentum).add_(average, alpha=momentum)
        running_var.mul_(1 - momentum).add_(squares / (total - 1), alpha=momentum)
    return average, torch.rsqrt(squares / total + eps)


def batch_norm_elemt(input: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, invstd: Tensor, eps: float) -> Tensor:
    """-> the normalized images, of the input's type."""
    output = (input.float() - over_channels(mean)) * over_channels(invstd) * over_channels(weight) + over_channels(bias)
    return output.to(input.dtype)


def batch_norm_backward_reduce(
    grad_out: Tensor, input: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor, *wanted: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """-> (C,) each: sum of the gradient, sum of gradient times distance from the mean, gradients of weight and bias."""
    assert wanted == (True, True, True)
    grad_sum = grad_out.float().sum(PIXELS)
    product_sum = (grad_out.float() * (input.float() - over_channels(mean))).sum(PIXELS)
    return grad_sum, product_sum, (product_sum * invstd).to(weight.dtype), grad_sum.to(weight.dtype, copy=True)


def batch_norm_backward_elemt(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> Tensor:
    """The joint sums and every rank's count (R,), int32 -> the gradient of the images, of their type."""
    assert count.dtype == torch.int32, "the kernel reads 32-bit whole numbers, whatever it is given"
    pixels = int(count.sum())
    centered = (input.float() - over_channels(mean)) * over_channels(invstd.square() * sum_dy_xmu / pixels)
    grad = (grad_out.float() - over_channels(sum_dy / pixels) - centered) * over_channels(weight.float() * invstd)
    return grad.to(input.dtype)


OPERATIONS: dict[str, Callable[..., Any]] = {
    operation.__name__: operation
    for operation in (
        batch_norm_stats,
        batch_norm_gather_stats_with_counts,
        batch_norm_elemt,
        batch_norm_backward_reduce,
        batch_norm_backward_elemt,
    )
}
