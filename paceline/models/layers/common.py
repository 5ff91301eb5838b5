"""Layers that networks share: without torch's first weights, input normalization, frozen and group norms, depthwise convolutions.

torch's first weights would cost time and move the global random state; a trunk's `draw`, the `initialize` functions or a weight file
set them.
Frozen, a BatchNorm is y = s x + b with s = weight / sqrt(running_var + eps), so conv and norm are one convolution with the weights s w
and the bias b, which saves the norm's passes over the activations, forward and backward. Gradients of w pass through s w. Names are
BatchNorm's (torchvision's FrozenBatchNorm2d has the same), so weights load by name.
Letters: B images   C channels   H, W pixels
Sources of first weights: MLPerf's MXNet ResNet (class MLPerfInit, flag --bn-gamma-init0); torchvision's ResNet.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.models.layers.batch_norm import BatchNorm
from paceline.models.ops.dispatch import uses_static_shapes

Init = Literal["mlperf", "torchvision"]
# Standard deviation of the classifier's weights in the MLPerf rule.
CLASSIFIER_STD = 0.01


class _Undrawn:
    """Before a torch layer among the base classes: the layer without torch's first weights."""

    def reset_parameters(self) -> None:
        """Draw nothing."""


# oneDNN's strided 1 x 1 kernel for AVX2 writes past its memory where a channels_last input has fewer channels than a register has
# numbers: its weight gradients are wrong, or the process dies (uxlfoundation/oneDNN issue 6035, open; its release 3.13 has it).
STRIDED_1X1_IS_BROKEN, NARROW = torch.backends.cpu.get_cpu_capability() == "AVX2", 8


class Conv2d(_Undrawn, nn.Conv2d):
    """nn.Conv2d without torch's first weights; a narrow strided 1 x 1 convolution is safe on every CPU."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        down, right = self.stride
        strided = self.kernel_size == (1, 1) and self.padding == (0, 0) and self.stride != (1, 1)
        if strided and STRIDED_1X1_IS_BROKEN and self.in_channels < NARROW:
            return F.conv2d(input[:, :, ::down, ::right], weight, bias, groups=self.groups)
        return super()._conv_forward(input, weight, bias)


class ConvTranspose2d(_Undrawn, nn.ConvTranspose2d):
    """nn.ConvTranspose2d without torch's first weights."""


class Linear(_Undrawn, nn.Linear):
    """nn.Linear without torch's first weights."""


@torch.no_grad()
def init_layers(model: nn.Module, init: Init, generator: torch.Generator) -> None:
    """Draw the weights of every convolution, BatchNorm and linear layer in `model`, in module order.

    mlperf       convolutions N(0, 2 / fan_in) (a fourth, zero input channel counts), linear N(0, 0.01^2), biases 0
    torchvision  convolutions N(0, 2 / fan_out), linear weights and biases U(+-1 / sqrt(fan_in))
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            mode = "fan_in" if init == "mlperf" else "fan_out"
            nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu", generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            if init == "mlperf":
                nn.init.normal_(module.weight, std=CLASSIFIER_STD, generator=generator)
                nn.init.zeros_(module.bias)
            else:
                bound = 1 / math.sqrt(module.in_features)
                nn.init.uniform_(module.weight, -bound, bound, generator=generator)
                nn.init.uniform_(module.bias, -bound, bound, generator=generator)


# Mean and standard deviation of ImageNet's RGB values on a scale of 0 to 1, as torchvision and MLPerf use them.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Normalize(nn.Module):
    """(pixel / 255 - mean) / std for each channel, on the device, with an optional fourth channel of zeros."""

    mean: Tensor
    scale: Tensor

    def __init__(
        self, mean: Sequence[float] = IMAGENET_MEAN, std: Sequence[float] = IMAGENET_STD, *, channels: Literal[3, 4] = 3
    ) -> None:
        """mean and std of R, G and B on a scale of 0 to 1."""
        super().__init__()
        self.channels = channels
        # In pixel units: one subtraction and one product. Recipes have these numbers, checkpoints do not.
        # On the CPU even where a network is built without memory: arithmetic on torch's meta device imports torch.compile.
        with torch.device("cpu"):
            self.register_buffer("mean", 255 * torch.tensor(mean).view(1, 3, 1, 1), persistent=False)
            self.register_buffer("scale", 1 / (255 * torch.tensor(std).view(1, 3, 1, 1)), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """uint8 (B, 3, H, W), RGB -> float32 (B, 3 or 4, H, W) in the same memory format."""
        normalized = (images.float() - self.mean) * self.scale
        return normalized if self.channels == 3 else F.pad(normalized, (0, 0, 0, 0, 0, 1))


# Least channels of one group; GroupNorm's paper has 32 groups, which fewer channels than 256 would make too small.
CHANNELS_A_GROUP = 8
MAX_GROUPS = 32


class FrozenBatchNorm(nn.Module):
    """s x + b with numbers that never train. In a folded net the convolution applies them, and `forward` changes nothing."""

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.folded = False
        self.register_buffer("weight", torch.ones(channels))
        self.register_buffer("bias", torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def line(self) -> tuple[Tensor, Tensor]:
        """s and b, (C,) each."""
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        return scale, self.bias - self.running_mean * scale

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, H, W) -> the same shape."""
        if self.folded:
            return input
        scale, shift = self.line()
        return input * scale.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1)


class FoldedConv2d(Conv2d):
    """A convolution without bias that applies the frozen norm behind it."""

    def __init__(self, conv: Conv2d, norm: FrozenBatchNorm) -> None:
        """Replaces `conv`, whose parameter it shares; `norm` stays the block's own module."""
        sizes = conv.in_channels, conv.out_channels, conv.kernel_size, conv.stride, conv.padding, conv.dilation
        super().__init__(*sizes, conv.groups, bias=False, device="meta")  # type: ignore[arg-type]  # sizes as they were given
        self.weight = conv.weight
        self.norm = (norm,)  # in a tuple, so that it is not registered as a submodule
        norm.folded = True

    def forward(self, input: Tensor) -> Tensor:
        """As nn.Conv2d, then the norm."""
        scale, shift = self.norm[0].line()
        weight = self.weight * scale.view(-1, 1, 1, 1)
        return self._conv_forward(input, weight, shift)


def make_group_norm(channels: int, eps: float = 1e-5) -> nn.GroupNorm:
    """GroupNorm with 32 groups, or fewer where channels are few. Source: Wu and He 2018."""
    return nn.GroupNorm(max(1, min(MAX_GROUPS, channels // CHANNELS_A_GROUP)), channels, eps=eps)


def replace_norms(net: nn.Module, kind: Literal["frozen", "group"], eps: float) -> None:
    """Put another norm in each BatchNorm's place, under its name."""
    for parent in list(net.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, BatchNorm):
                channels = child.num_features
                setattr(
                    parent, name, FrozenBatchNorm(channels, eps) if kind == "frozen" else make_group_norm(channels, eps)
                )


def fold_frozen(net: nn.Module) -> None:
    """Fold each frozen norm into its convolution: conv1 and bn1, ..., or the two entries of a sequence."""
    for parent in list(net.modules()):
        pairs = [(f"conv{number}", f"bn{number}") for number in (1, 2, 3)]
        if isinstance(parent, nn.Sequential):
            pairs = [("0", "1")]
        for conv_name, norm_name in pairs:
            conv, norm = getattr(parent, conv_name, None), getattr(parent, norm_name, None)
            if isinstance(conv, Conv2d) and isinstance(norm, FrozenBatchNorm) and not norm.folded:
                setattr(parent, conv_name, FoldedConv2d(conv, norm))


# Depthwise convolutions whose gradients a CPU finds in time when they are computed in bfloat16.
#
# oneDNN has fast kernels for them but for two: the gradient of weights wider than 3 x 3, and the gradient of the input of a
# convolution with a stride. Those take 20 to 110 times as long as the forward pass (results/tuning).
# Weights of 5 x 5 are four overlapping windows of 3 x 3, each with a fast gradient. The gradient of a strided convolution's input is
# computed in float32. On a CPU without AVX512-BF16, oneDNN rounds the sum of every input gradient to bfloat16 after each weight: for
# 9 x 9 it is off by 5.7 times 2**-8 of the largest value. float32 is faster there and off by 0.7, so all input gradients use it.
# Letters: k side of the kernel

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
