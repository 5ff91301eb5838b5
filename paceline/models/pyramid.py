"""A trunk and the feature pyramid on top of its maps.

Letters: B images   C channels of the pyramid   H_l, W_l cells of level l, which has stride 2^l
Levels run from 2 (or 3) to 6. Names are torchvision's (`backbone.body`, `backbone.fpn`), so its weights load by name.
Source: Lin et al. 2017, "Feature Pyramid Networks for Object Detection".
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from paceline.config.errors import RecipeError
from paceline.config.instances import FrozenLayers, LayerNorm, TopLevel
from paceline.models.batch_norm import BatchNorm
from paceline.models.layers import Conv2d
from paceline.models.norms import group_norm
from paceline.models.trunk import Part, Trunk

FROZEN: dict[FrozenLayers, Part] = {"none": "none", "stem": "stem", "stem_and_first": "first_stage"}


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
    """Trunk and pyramid."""

    def __init__(
        self,
        trunk: Trunk,
        channels: int,
        *,
        first_level: int,
        frozen: FrozenLayers,
        fpn_norm: LayerNorm,
        top: TopLevel,
        eps: float,
    ) -> None:
        """channels: C. Raises RecipeError for a trunk that lacks a map of one of the levels' strides."""
        super().__init__()
        wanted = [2**level for level in range(first_level, 6)]
        if not set(wanted) <= set(trunk.strides):
            raise RecipeError(
                f"--model.trunk: this one has maps of stride {trunk.strides}, and the pyramid needs {wanted}."
            )
        self.body = trunk
        self.body.freeze(FROZEN[frozen])
        self.places = [trunk.strides.index(stride) for stride in wanted]
        inputs = [trunk.channels[place] for place in self.places]
        self.fpn = FPN(inputs, channels, norm=fpn_norm, top=top, eps=max(eps, 1e-5))
        self.strides = [2**level for level in range(first_level, 7)]

    def forward(self, images: Tensor) -> list[Tensor]:
        """(B, 3, H, W) normalised -> levels first_level to 6, each (B, C, H_l, W_l)."""
        maps = self.body(images)
        return self.fpn([maps[place] for place in self.places])


def _layer(inputs: int, outputs: int, kernel: int, norm: LayerNorm, eps: float) -> nn.Sequential:
    """A convolution, with its norm where asked; torchvision has it in a sequence too."""
    conv = Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=norm == "none")
    if norm == "none":
        return nn.Sequential(conv)
    return nn.Sequential(conv, BatchNorm(outputs, eps=eps) if norm == "batch" else group_norm(outputs, eps))
