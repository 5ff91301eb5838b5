"""Depthwise convolutions whose gradients a CPU finds in time when they are computed in bfloat16.

oneDNN has fast kernels for them but for two: the gradient of weights wider than 3 x 3, and the gradient of the input of a convolution
with a stride. Those take 20 to 110 times as long as the forward pass (results/tuning).
Weights of 5 x 5 are four overlapping windows of 3 x 3, each with a fast gradient. The gradient of a strided convolution's input is
computed in float32. On a CPU without AVX512-BF16, oneDNN rounds the sum of every input gradient to bfloat16 after each weight: for
9 x 9 it is off by 5.7 times 2**-8 of the largest value. float32 is faster there and off by 0.7, so all input gradients use it.

Letters: B images   C channels   H, W pixels   k side of the kernel
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.models.ops.dispatch import uses_static_shapes

FAST_SIDE = 3
# True if oneDNN has bfloat16 kernels for this CPU. torch.cpu reads the CPU's flags and does not know that oneDNN is restricted.
BF16_KERNELS = (
    torch.backends.cpu.get_cpu_capability() == "AVX512"
    and torch.cpu._is_avx512_bf16_supported()
    and "ONEDNN_MAX_CPU_ISA" not in os.environ
)


def depthwise_convolution(conv: nn.Conv2d, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(B, C, H, W) -> what `conv` computes with these weights and this bias; on a CPU in bfloat16 with gradients that are fast."""
    if not uses_static_shapes(input) and torch.is_grad_enabled() and has_slow_backward(conv):
        autocast = torch.is_autocast_enabled("cpu")
        dtype = torch.get_autocast_dtype("cpu") if autocast else input.dtype
        if dtype is torch.bfloat16 and (input.requires_grad or weight.requires_grad):
            return _Depthwise.apply(input.to(dtype), weight, bias, conv.stride[0], conv.padding[0])
    return conv._conv_forward(input, weight, bias)


def has_slow_backward(conv: nn.Conv2d) -> bool:
    """Whether oneDNN's gradients of this convolution are slow in bfloat16."""
    (height, width), (down, right), around = conv.kernel_size, conv.stride, conv.padding
    depthwise = conv.groups == conv.in_channels == conv.out_channels > 1 and conv.dilation == (1, 1)
    plain = height == width >= FAST_SIDE and down == right and around in ((0, 0), (around[0],) * 2)
    return depthwise and plain and conv.padding_mode == "zeros" and (height > FAST_SIDE or down > 1)


class _Depthwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
        """input bfloat16; weight and bias of any type, whose gradients have it too."""
        ctx.save_for_backward(input, weight)
        ctx.stride, ctx.padding, ctx.bias = stride, padding, None if bias is None else bias.dtype
        low = None if bias is None else bias.to(input.dtype)
        return F.conv2d(input, weight.to(input.dtype), low, stride, padding, groups=len(weight))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad, (input, weight) = grads[0], ctx.saved_tensors
        of_input = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_input = compute_input_gradient(grad, input, weight.to(input.dtype), ctx.stride, ctx.padding)
        if ctx.needs_input_grad[1]:
            of_weight = compute_weight_gradient(grad, input, weight.shape[-1], ctx.stride, ctx.padding).to(weight.dtype)
        if ctx.needs_input_grad[2]:
            of_bias = grad.sum((0, 2, 3), dtype=torch.float32).to(ctx.bias)
        return of_input, of_weight, of_bias, None, None


def compute_input_gradient(grad: Tensor, input: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    """grad (B, C, H', W') of the output, input (B, C, H, W), weight (C, 1, k, k) -> (B, C, H, W) in the input's type."""
    if stride == 1 and BF16_KERNELS:
        return _backward(grad, input, weight, stride, padding, (True, False, False))[0]
    # Of the input the gradient needs the shape alone, so the float32 one stays unwritten.
    shape = torch.empty_like(input, dtype=torch.float32)
    result = _backward(grad.float(), shape, weight.float(), stride, padding, (True, False, False))[0]
    return result.to(input.dtype)


def compute_weight_gradient(grad: Tensor, input: Tensor, side: int, stride: int, padding: int) -> Tensor:
    """grad (B, C, H', W') of the output, input (B, C, H, W) -> (C, 1, side, side) float32, window by window of 3 x 3."""
    window = input.new_empty(input.shape[1], 1, FAST_SIDE, FAST_SIDE)
    if side == FAST_SIDE:
        return _backward(grad, input, window, stride, padding, (False, True, False))[1].float()
    height, width = grad.shape[-2:]
    padded = F.pad(input, (padding,) * 4) if padding else input
    result = torch.empty(input.shape[1], 1, side, side, dtype=torch.float32)
    starts = [*range(0, side - FAST_SIDE, FAST_SIDE), side - FAST_SIDE]
    for top in starts:
        for left in starts:
            rows = slice(top, top + (height - 1) * stride + FAST_SIDE)
            columns = slice(left, left + (width - 1) * stride + FAST_SIDE)
            part = padded[:, :, rows, columns].contiguous(memory_format=torch.channels_last)
            gradient = _backward(grad, part, window, stride, 0, (False, True, False))[1]
            result[:, :, top : top + FAST_SIDE, left : left + FAST_SIDE] = gradient
    return result


def _backward(
    grad: Tensor, input: Tensor, weight: Tensor, stride: int, padding: int, wanted: tuple[bool, bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    twice = [stride] * 2, [padding] * 2, [1, 1]
    return torch.ops.aten.convolution_backward(grad, input, weight, None, *twice, False, [0, 0], len(weight), wanted)
