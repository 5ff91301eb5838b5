"""ResNet v1.5 and ResNeXt: depths 10 to 269, any width; a classifier, or the trunk of a detector.

Letters: B images   H, W input pixels   K classes   h, w cells
Module and parameter names are torchvision's, so weights load by name, both ways, and give its outputs.
v1.5 means that a bottleneck strides in its 3x3 convolution, not in the first 1x1 (He et al. 2015, as changed by NVIDIA and
torchvision). ResNeXt (Xie et al. 2017) splits that convolution into groups. Unit counts up to 269 are those of the MLPerf MXNet
submission.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline._utils.errors import RecipeError
from paceline.config.resnet import BackboneModel, Padding, StrideIn
from paceline.models.backbones.base import Backbone, BackboneSpec, Init
from paceline.models.layers.batch_norm import BatchNorm, norm_add_relu
from paceline.models.layers.common import Conv2d, fold_frozen, init_layers, replace_norms

Norms = Callable[[int], BatchNorm]

# depth: (units of the four stages, whether a unit is a bottleneck)
DEPTHS: dict[int, tuple[tuple[int, int, int, int], bool]] = {
    10: ((1, 1, 1, 1), False),
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
    152: ((3, 8, 36, 3), True),
    200: ((3, 24, 36, 3), True),
    269: ((3, 30, 48, 8), True),
}


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut; the unit of depths 10, 18 and 34."""

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int, norm: Norms) -> None:
        super().__init__()
        self.conv1 = Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = norm(width)
        self.conv2 = Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = norm(width)
        self.downsample = _projection(channels, width, stride, norm)

    def forward(self, input: Tensor) -> Tensor:
        """(B, channels, h, w) -> (B, width, h / stride, w / stride)."""
        shortcut = input if self.downsample is None else self.downsample(input)
        output = norm_add_relu(self.bn1, self.conv1(input))
        return norm_add_relu(self.bn2, self.conv2(output), shortcut)


class Bottleneck(nn.Module):
    """1x1, 3x3 (with the stride) and 1x1 convolution beside a shortcut; the unit of depths 50 and up."""

    expansion = 4

    def __init__(
        self,
        channels: int,
        width: int,
        stride: int,
        norm: Norms,
        *,
        groups: int = 1,
        width_per_group: int = 64,
        stride_in: StrideIn = "3x3",
    ) -> None:
        super().__init__()
        # torchvision's rule, cut towards zero: 64 of one group is the plain bottleneck.
        inner = int(width * (width_per_group / 64)) * groups
        outputs = width * self.expansion
        first, second = (stride, 1) if stride_in == "1x1" else (1, stride)
        self.conv1 = Conv2d(channels, inner, 1, first, bias=False)
        self.bn1 = norm(inner)
        self.conv2 = Conv2d(inner, inner, 3, second, padding=1, groups=groups, bias=False)
        self.bn2 = norm(inner)
        self.conv3 = Conv2d(inner, outputs, 1, bias=False)
        self.bn3 = norm(outputs)
        self.downsample = _projection(channels, outputs, stride, norm)

    def forward(self, input: Tensor) -> Tensor:
        """(B, channels, h, w) -> (B, 4 * width, h / stride, w / stride)."""
        shortcut = input if self.downsample is None else self.downsample(input)
        output = norm_add_relu(self.bn1, self.conv1(input))
        output = norm_add_relu(self.bn2, self.conv2(output))
        return norm_add_relu(self.bn3, self.conv3(output), shortcut)


def _projection(channels: int, outputs: int, stride: int, norm: Norms) -> nn.Sequential | None:
    """The shortcut's 1x1 convolution and BatchNorm where a unit changes the shape; None where it does not."""
    if stride == 1 and channels == outputs:
        return None
    return nn.Sequential(Conv2d(channels, outputs, 1, stride, bias=False), norm(outputs))


class EndMaxPool(nn.Module):
    """3x3, stride 2, padded as TensorFlow's SAME: an even side at its end alone."""

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, C, about h / 2, w / 2)."""
        return F.max_pool2d(pad_for_stride(input, -math.inf), 3, 2)


def pad_for_stride(input: Tensor, value: float = 0.0) -> Tensor:
    """(B, C, h, w) padded for a 3x3 window of stride 2 as TensorFlow's SAME: by (0, 1) where a side is even, by (1, 1) where odd."""
    height, width = input.shape[-2:]
    return F.pad(input, (width % 2, 1, height % 2, 1), value=value)


class ResNet(Backbone):
    """Stem and stages of residual units; with classes also a linear layer. Weights come from `initialize`, or from a file."""

    def __init__(
        self,
        depth: int,
        classes: int = 0,
        *,
        width: int = 64,
        groups: int = 1,
        width_per_group: int = 64,
        stem: Literal["imagenet", "small"] = "imagenet",
        input_channels: Literal[3, 4] = 3,
        steps: Sequence[int] = (1, 2, 2, 2),
        stride_in: StrideIn = "3x3",
        padding: Padding = "symmetric",
        bn_eps: float = 1e-5,
        bn_momentum: float = 0.1,
    ) -> None:
        """
        depth          10, 18, 34, 50, 101, 152, 200 or 269
        classes        K of the linear layer; 0 = a trunk without one
        width          channels of the stem and of the first stage's 3x3 convolutions; 64 is the published net
        groups         parts of a bottleneck's 3x3 convolution; torchvision's resnext50_32x4d has 32
        width_per_group    filters of a part in the first stage, at width 64 (torchvision's width_per_group)
        stem           imagenet: 7x7 stride 2 and 3x3 max-pool stride 2, an output grid of 1/32 of the input;
                       small: 3x3 stride 2 without pooling, 1/16, for inputs of about 64 to 128 pixels
        input_channels  4: the input has a fourth channel of zeros, which suits fp16 convolution kernels
        steps          stride of each stage, of four or fewer
        stride_in      which convolution of a bottleneck strides: the 3x3 (v1.5), or the first 1x1 (v1: MSRA's, detectron2's)
        padding        of the max-pool; end: an even side is padded at its end alone, as TensorFlow's SAME is (an odd one is
                       padded on both sides there too); its ResNets pad their strided convolutions on both sides
        bn_momentum    share of the new statistics in an update (MXNet's 0.9 is 0.1 here)
        Parameters are left uninitialized: call `initialize`, or load weights.
        Raises RecipeError for an unknown depth.
        """
        super().__init__()
        if depth not in DEPTHS:
            raise RecipeError(f"ResNet depth {depth} is not supported. Choose one of: {', '.join(map(str, DEPTHS))}")
        units, bottleneck = DEPTHS[depth]
        norm = partial(BatchNorm, eps=bn_eps, momentum=bn_momentum)
        unit = BasicBlock
        if bottleneck:
            unit = partial(Bottleneck, groups=groups, width_per_group=width_per_group, stride_in=stride_in)
        self.built = {"stride_in": stride_in, "padding": padding}
        expansion = Bottleneck.expansion if bottleneck else BasicBlock.expansion
        if stem == "imagenet":
            self.conv1 = Conv2d(input_channels, width, 7, 2, padding=3, bias=False)
            self.maxpool = nn.MaxPool2d(3, 2, padding=1) if padding == "symmetric" else EndMaxPool()
        else:
            self.conv1 = Conv2d(input_channels, width, 3, 2, padding=1, bias=False)
            self.maxpool = nn.Identity()
        self.bn1 = norm(width)
        self.channels, self.strides, self.stages = [], [], []
        channels, stride = width, 4 if stem == "imagenet" else 2
        for stage, step in enumerate(steps):
            filters = width * 2**stage
            first = unit(channels, filters, step, norm)
            channels, stride = filters * expansion, stride * step
            rest = (unit(channels, filters, 1, norm) for _ in range(units[stage] - 1))
            self.stages.append(f"layer{stage + 1}")
            self.add_module(self.stages[-1], nn.Sequential(first, *rest))
            self.channels.append(channels)
            self.strides.append(stride)
        if classes:
            self.add_classes(classes)

    def forward(self, images: Tensor) -> list[Tensor]:
        """(B, 3 or 4, H, W) float, normalized -> the output of each stage."""
        features = self.maxpool(norm_add_relu(self.bn1, self.conv1(images)))
        maps = []
        for stage in self.stages:
            features = self.get_submodule(stage)(features)
            maps.append(features)
        return maps

    def stage_of(self) -> dict[str, int]:
        """The stem, then layer1 and so on."""
        numbers = {"conv1": 0, "bn1": 0, **{stage: number for number, stage in enumerate(self.stages, 1)}}
        owners = {name: name.partition(".")[0] for name, _ in self.named_parameters()}
        return {name: numbers[owner] for name, owner in owners.items() if owner in numbers}

    @torch.no_grad()
    def draw(self, init: Init, generator: torch.Generator, *, zero_init_residual: bool) -> None:
        """As `init_layers`; zero_init_residual: the last BatchNorm of each residual unit starts at 0, so a unit starts as its
        shortcut (Goyal et al. 2017)."""
        init_layers(self, init, generator)
        if zero_init_residual:
            for module in self.modules():
                if isinstance(module, Bottleneck):
                    nn.init.zeros_(module.bn3.weight)
                elif isinstance(module, BasicBlock):
                    nn.init.zeros_(module.bn2.weight)

    def of_file(self, saved: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
        """torchvision's names are ours."""
        if "layer1.0.conv1.weight" not in saved:
            return {}, ()
        return dict(saved), ("fc.", *(f"layer{number}." for number in range(len(self.stages) + 1, 5)))


def build_resnet(name: str, model: BackboneModel, form: BackboneSpec) -> Backbone:
    """The ResNet that a recipe's fields describe; see `build_backbone`."""
    if name:
        raise RecipeError(f"--model.backbone resnet/{name}: use `resnet` with --model.depth and --model.width.")
    backbone = ResNet(
        model.depth,
        width=model.width,
        groups=model.groups,
        width_per_group=model.width_per_group,
        stem=form.stem,
        input_channels=form.input_channels,
        # MLPerf's SSD: three stages, of which the third keeps the second's resolution.
        steps=(1, 2, 1) if form.stride == 8 else (1, 2, 2, 2),
        stride_in=model.stride_in,
        padding=model.padding,
        bn_eps=model.bn_eps,
        bn_momentum=model.bn_momentum,
    )
    if form.norm != "batch":
        replace_norms(backbone, form.norm, model.bn_eps)
        fold_frozen(backbone)
    return backbone
