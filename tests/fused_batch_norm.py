"""BatchNorm, sum with a shortcut and ReLU: our kernels, the operations of torch and the same in float64 beside each other."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

EPS = 1e-3
LAST = torch.channels_last
# (B, C, H, W) and G: odd grids, one image a group, one pixel an image, fewer channels than a byte has bits, several tiles a part.
SHAPES = (
    ((4, 64, 7, 9), 2), ((4, 5, 13, 3), 4), ((6, 16, 1, 1), 1), ((8, 9, 1, 1), 2), ((1, 3, 9, 11), 1), ((2, 24, 26, 13), 2),
)  # fmt: skip
# Several blocks of channels, the last one half full.
WIDE = (((2, 130, 3, 5), 2), ((2, 288, 2, 2), 1), ((4, 2048, 1, 2), 1))


class Layer(NamedTuple):
    images: Tensor
    shortcut: Tensor | None
    weight: Tensor
    bias: Tensor
    upstream: Tensor


class Found(NamedTuple):
    """What a forward and backward gave; an empty tensor for no shortcut."""

    output: Tensor
    statistics: Tensor
    of_images: Tensor
    of_shortcut: Tensor
    of_weight: Tensor
    of_bias: Tensor


def a_layer(shape: tuple[int, ...], dtype: torch.dtype, *, shortcut: bool, device: str = "cpu", seed: int = 1) -> Layer:
    """Images whose channels and whose images lie apart; a weight of 0, of less than 0 and of more.

    With this seed no output is so near 0 that rounding decides whether ReLU lets it pass.
    """
    random = torch.Generator().manual_seed(seed)
    images, other, upstream = (torch.randn(shape, generator=random) for _ in range(3))
    images = images * 2 + torch.arange(shape[0]).view(-1, 1, 1, 1) + torch.arange(shape[1]).view(1, -1, 1, 1) % 9
    upstream = upstream + images / 5  # else its product with the images vanishes, and with it a part of the gradient
    weight, bias = torch.randn(2, shape[1], generator=random) / 2 + 0.5
    weight[-1] = 0
    laid = [values.to(device, dtype).contiguous(memory_format=LAST) for values in (images, other, upstream)]
    return Layer(laid[0], laid[1] if shortcut else None, weight.to(device), bias.to(device), laid[2])


def of_torch(
    images: Tensor, shortcut: Tensor | None, weight: Tensor, bias: Tensor, groups: int, eps: float, relu: bool
) -> tuple[Tensor, Tensor]:
    """torch's operations, one after the other, in the type of the images."""
    statistics = weight.new_zeros((groups, 2, len(weight)))
    parts = [
        F.batch_norm(part, own[0], own[1], weight, bias, True, momentum=1.0, eps=eps)
        for part, own in zip(images.chunk(groups), statistics)
    ]
    output = torch.cat(parts)
    output = output if shortcut is None else output + shortcut
    return output.relu() if relu else output, statistics.sum(0)


def taken(form, layer: Layer, groups: int, relu: bool) -> Found:
    """A forward and backward of `form`."""
    kept = torch.preserve_format
    leaves = [values if values is None else values.clone(memory_format=kept).requires_grad_() for values in layer[:4]]
    output, statistics = form(*leaves, groups, EPS, relu)
    assert output.dtype == layer.images.dtype and not statistics.requires_grad
    assert layer.images.is_contiguous(memory_format=LAST) == output.is_contiguous(memory_format=LAST)
    output.backward(layer.upstream)
    images, shortcut, weight, bias = (values if values is None else values.grad for values in leaves)
    assert images.dtype == layer.images.dtype
    return Found(output.detach(), statistics, images, images.new_empty(0) if shortcut is None else shortcut, weight, bias)


def in_float64(layer: Layer, groups: int, relu: bool) -> Found:
    return taken(of_torch, Layer(*(values if values is None else values.cpu().double() for values in layer)), groups, relu)


def check(form, layer: Layer, groups: int, relu: bool, *, rounds: bool = True) -> None:
    """`form` is right to the last digit of the images' type, and no worse than torch's operations.

    rounds  whether a number goes to the nearest of its type; Triton's interpreter cuts bf16 off
    """
    found, wanted = taken(form, layer, groups, relu), in_float64(layer, groups, relu)
    theirs = taken(of_torch, Layer(*(values if values is None else values.cpu() for values in layer)), groups, relu)
    for name in Found._fields:
        own, exact, other = (getattr(one, name).cpu().double() for one in (found, wanted, theirs))
        assert own.shape == exact.shape, name
        if not own.numel():
            continue
        # Sums of fp32 are right to its digits beside the largest of what they add up; an image's own number to its last digit.
        sums = 3e-6 * max(1.0, layer.images[:, 0].numel() ** 0.5) * max(1.0, float(exact.abs().max()))
        last = (
            torch.finfo(layer.images.dtype).eps / (2 if rounds else 1) if name.startswith(("output", "of_i", "of_s")) else 0
        )
        far = (own - exact).abs() - sums - last * 1.01 * exact.abs()
        assert far.max() <= 0, f"{name}: {float(far.max())} too far"
        if rounds:
            assert (own - exact).abs().max() <= (other - exact).abs().max() + sums, f"{name}: worse than torch's"
