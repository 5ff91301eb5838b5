"""The feature pyramid of Mask R-CNN, and of an SSD that stands on several of its trunk's maps.

Letters: C channels of the pyramid
Names are torchvision's. Source: Lin et al. 2017, "Feature Pyramid Networks for Object Detection".
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.config.maskrcnn import LayerNorm, TopLevel
from paceline.models.layers.batch_norm import BatchNorm
from paceline.models.layers.common import Conv2d, make_group_norm


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
        levels, coarsest = self.merge(stages)
        return [*levels, F.max_pool2d(levels[-1], 1, 2) if self.top is None else self.top(coarsest)]

    def merge(self, stages: list[Tensor]) -> tuple[list[Tensor], Tensor]:
        """-> a level for each stage, finest first, and the lateral of the coarsest."""
        laterals = [block(stage) for block, stage in zip(self.inner_blocks, stages)]
        coarsest = laterals[-1]
        # autocast would copy to float32, add there, and round to its type again for the convolutions that follow.
        native = torch.autocast(coarsest.device.type, enabled=False) if coarsest.element_size() == 2 else nullcontext()
        for level in range(len(laterals) - 2, -1, -1):
            size = laterals[level].shape[-2:]
            with native:
                larger = F.interpolate(laterals[level + 1], size=size, mode="nearest")
            laterals[level] = laterals[level] + larger
        return [block(lateral) for block, lateral in zip(self.layer_blocks, laterals)], coarsest


def _layer(inputs: int, outputs: int, kernel: int, norm: LayerNorm, eps: float) -> nn.Sequential:
    """A convolution and its norm, in a sequence as torchvision has them."""
    conv = Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=norm == "none")
    if norm == "none":
        return nn.Sequential(conv)
    return nn.Sequential(conv, BatchNorm(outputs, eps=eps) if norm == "batch" else make_group_norm(outputs, eps))
