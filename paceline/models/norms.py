"""BatchNorm with fixed statistics, folded into the convolution before it; and how a net's BatchNorms become another norm.

Frozen, a BatchNorm is y = s x + b with s = weight / sqrt(running_var + eps), so conv and norm are one convolution with the
weights s w and the bias b: neither pass over the activations that the norm costs, forward and backward, is made. Gradients of w
pass through s w. Names are BatchNorm's (torchvision's FrozenBatchNorm2d has the same), so weights load by name.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.models.batch_norm import BatchNorm
from paceline.models.layers import Conv2d

# Channels of one group at least; GroupNorm's paper has 32 groups, which fewer channels than 256 would make too small.
CHANNELS_A_GROUP = 8
MOST_GROUPS = 32


class FrozenBatchNorm(nn.Module):
    """s x + b with numbers that never train. Inside a folded net its convolution does it, and `forward` changes nothing."""

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
    """A convolution without bias that carries out the frozen norm behind it."""

    def __init__(self, conv: Conv2d, norm: FrozenBatchNorm) -> None:
        """It takes the place of `conv`, whose parameter it has; `norm` stays the block's own module."""
        sizes = conv.in_channels, conv.out_channels, conv.kernel_size, conv.stride, conv.padding, conv.dilation
        super().__init__(*sizes, conv.groups, bias=False, device="meta")  # type: ignore[arg-type]  # sizes as they were given
        self.weight = conv.weight
        self.norm = (norm,)  # in a tuple, so that it is no module of this one
        norm.folded = True

    def forward(self, input: Tensor) -> Tensor:
        """As nn.Conv2d, then the norm."""
        scale, shift = self.norm[0].line()
        weight = self.weight * scale.view(-1, 1, 1, 1)
        return F.conv2d(input, weight, shift, self.stride, self.padding, self.dilation, self.groups)


def group_norm(channels: int, eps: float = 1e-5) -> nn.GroupNorm:
    """GroupNorm with 32 groups, or fewer where channels are few. Source: Wu and He 2018."""
    return nn.GroupNorm(max(1, min(MOST_GROUPS, channels // CHANNELS_A_GROUP)), channels, eps=eps)


def change_norms(net: nn.Module, kind: Literal["frozen", "group"], eps: float) -> None:
    """Put another norm in each BatchNorm's place, under its name."""
    for parent in list(net.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, BatchNorm):
                channels = child.num_features
                setattr(parent, name, FrozenBatchNorm(channels, eps) if kind == "frozen" else group_norm(channels, eps))


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
