"""A ResNet's four stages and the feature pyramid on top of them.

Letters: B images   C channels of the pyramid   H_l, W_l cells of level l, which has stride 2^l
Levels run from 2 (or 3) to 6. Names are torchvision's (`backbone.body`, `backbone.fpn`), so its weights load by name.
Source: Lin et al. 2017, "Feature Pyramid Networks for Object Detection".
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from paceline.config.instances import FrozenLayers, LayerNorm, Norm, TopLevel
from paceline.models.batch_norm import BatchNorm
from paceline.models.norms import change_norms, fold_frozen, group_norm
from paceline.models.resnet import DEPTHS, BasicBlock, Bottleneck, Conv2d, make_stage


class Body(nn.Module):
    """Stem and four stages, without the classifier."""

    def __init__(
        self, depth: int, width: int, *, norm: Norm, frozen: FrozenLayers, eps: float, momentum: float
    ) -> None:
        """width: filters of the stem; 64 is the published net."""
        super().__init__()
        units, bottleneck = DEPTHS[depth]
        block = Bottleneck if bottleneck else BasicBlock
        widths = [width * 2**stage for stage in range(4)]
        self.channels = [block.expansion * stage_width for stage_width in widths]
        inputs = [width, *self.channels]
        self.conv1 = Conv2d(3, width, 7, 2, padding=3, bias=False)
        self.bn1 = BatchNorm(width, eps=eps, momentum=momentum)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        self.layer1 = make_stage(block, units[0], inputs[0], widths[0], 1, eps, momentum)
        self.layer2 = make_stage(block, units[1], inputs[1], widths[1], 2, eps, momentum)
        self.layer3 = make_stage(block, units[2], inputs[2], widths[2], 2, eps, momentum)
        self.layer4 = make_stage(block, units[3], inputs[3], widths[3], 2, eps, momentum)
        if norm != "batch":
            change_norms(self, norm, eps)
            fold_frozen(self)
        self.still: list[nn.Module] = []
        if frozen != "none":
            self.still = [self.conv1, self.bn1] + ([self.layer1] if frozen == "stem_and_first" else [])
        for module in self.still:
            module.requires_grad_(False)

    def forward(self, images: Tensor) -> list[Tensor]:
        """(B, 3, H, W) normalised -> the four stages' outputs, strides 4, 8, 16 and 32."""
        features = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        stages = []
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            features = stage(features)
            stages.append(features)
        return stages

    def train(self, mode: bool = True) -> Body:
        """As nn.Module's, but a frozen BatchNorm keeps its running statistics and uses them."""
        super().train(mode)
        for module in self.still:
            module.train(False)
        return self


class FPN(nn.Module):
    """Laterals to C channels, added from the coarsest level down, each smoothed by a 3x3 convolution; and level 6."""

    def __init__(self, inputs: list[int], channels: int, *, norm: LayerNorm, top: TopLevel, eps: float) -> None:
        """inputs: channels of the stages, finest first."""
        super().__init__()
        self.inner_blocks = nn.ModuleList(_layer(count, channels, 1, norm, eps) for count in inputs)
        self.layer_blocks = nn.ModuleList(_layer(channels, channels, 3, norm, eps) for _ in inputs)
        self.top = Conv2d(channels, channels, 3, 2, padding=1) if top == "conv" else None

    def forward(self, stages: list[Tensor]) -> list[Tensor]:
        """-> levels, finest first; the last is level 6, for proposals only."""
        laterals = [block(stage) for block, stage in zip(self.inner_blocks, stages)]
        top = laterals[-1] if self.top is not None else None
        for level in range(len(laterals) - 2, -1, -1):
            size = laterals[level].shape[-2:]
            laterals[level] = laterals[level] + F.interpolate(laterals[level + 1], size=size, mode="nearest")
        levels = [block(lateral) for block, lateral in zip(self.layer_blocks, laterals)]
        if self.top is not None and top is not None:
            return [*levels, self.top(top)]
        return [*levels, F.max_pool2d(levels[-1], 1, 2)]


class Backbone(nn.Module):
    """Body and pyramid."""

    def __init__(
        self,
        depth: int,
        width: int,
        channels: int,
        *,
        first_level: int,
        norm: Norm,
        frozen: FrozenLayers,
        fpn_norm: LayerNorm,
        top: TopLevel,
        eps: float,
        momentum: float,
    ) -> None:
        super().__init__()
        self.first = first_level - 2
        self.body = Body(depth, width, norm=norm, frozen=frozen, eps=eps, momentum=momentum)
        self.fpn = FPN(self.body.channels[self.first :], channels, norm=fpn_norm, top=top, eps=max(eps, 1e-5))
        self.strides = [2**level for level in range(first_level, 7)]

    def forward(self, images: Tensor) -> list[Tensor]:
        """(B, 3, H, W) normalised -> levels first_level to 6, each (B, C, H_l, W_l)."""
        return self.fpn(self.body(images)[self.first :])


def _layer(inputs: int, outputs: int, kernel: int, norm: LayerNorm, eps: float) -> nn.Sequential:
    """A convolution, with its norm where asked; torchvision has it in a sequence too."""
    conv = Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=norm == "none")
    if norm == "none":
        return nn.Sequential(conv)
    return nn.Sequential(conv, BatchNorm(outputs, eps=eps) if norm == "batch" else group_norm(outputs, eps))
