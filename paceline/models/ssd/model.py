"""SSD: a trunk's map of stride 8, extra maps on top, a class and a box convolution on each map.

With a pyramid it stands on the trunk's maps of stride 8, 16 and 32, merged as in Lin et al. 2017, and the extra maps follow behind.

Letters: B images   L levels   n_l boxes of a cell on level l   K classes   A default boxes in all   H, W cells of a map
Outputs are in cell-major order (level, row, column, box of the cell): in channels_last memory the head convolutions write them so,
and nothing is transposed.
Trunk names are torchvision's ResNet's where it is one, so its weights load by name.
Sources: MLPerf reference SSD (ssd300.py, base_model.py); fused heads with padding: NVIDIA's MXNet submission to v0.7.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline._utils.errors import RecipeError
from paceline.config.ssd import NewBias, SSDModel
from paceline.models.backbones.base import FPN, Backbone, init_weights
from paceline.models.backbones.resnet import pad_for_stride
from paceline.models.layers.batch_norm import BatchNorm, norm_add_relu
from paceline.models.layers.common import Conv2d
from paceline.models.ops.anchors import count_boxes_per_cell

STRIDE = 8
PYRAMID_STRIDES = (8, 16, 32)
# Habana's SSD from release 1.7 on froze the stem and the first convolution behind it.
FIRST_CONV = ("layer1.0.conv1", "layer1.0.bn1")


class ExtraBlock(nn.Module):
    """1x1 to half the channels, then 3x3 to the next, smaller map; a bias and ReLU after each, BatchNorm where asked."""

    def __init__(self, channels: int, outputs: int, settings: SSDModel, *, halves: bool) -> None:
        super().__init__()
        middle, norm = outputs // 2, settings.extra_norm
        eps, momentum = settings.bn_eps, settings.bn_momentum
        self.pads_end = halves and settings.padding == "same"
        stride, around = (2, 0 if self.pads_end else 1) if halves else (1, 0)
        self.reduce = Conv2d(channels, middle, 1, bias=not norm)
        self.conv = Conv2d(middle, outputs, 3, stride, padding=around, bias=not norm)
        self.reduce_bn = BatchNorm(middle, eps=eps, momentum=momentum) if norm else nn.Identity()
        self.bn = BatchNorm(outputs, eps=eps, momentum=momentum) if norm else nn.Identity()

    def forward(self, map: Tensor) -> Tensor:
        """(B, channels, H, W) -> (B, outputs, about H / 2, W / 2), or H - 2, W - 2 without stride."""
        map = norm_add_relu(self.reduce_bn, self.reduce(map))
        if self.pads_end:
            map = pad_for_stride(map)
        return norm_add_relu(self.bn, self.conv(map))


class SeparateHead(nn.Module):
    """A class convolution and a box convolution for one map."""

    def __init__(self, channels: int, boxes: int, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs
        self.conf = Conv2d(channels, boxes * outputs, 3, padding=1)
        self.loc = Conv2d(channels, boxes * 4, 3, padding=1)

    def forward(self, map: Tensor) -> tuple[Tensor, Tensor]:
        """(B, channels, H, W) -> class logits (B, H * W * n, K + 1), deltas (B, H * W * n, 4)."""
        return _by_box(self.conf(map), self.outputs), _by_box(self.loc(map), 4)


class FusedHead(nn.Module):
    """Both convolutions in one; output channels are classes, then boxes, then padding that is dropped."""

    def __init__(self, channels: int, boxes: int, outputs: int, multiple: int) -> None:
        super().__init__()
        self.outputs, self.classes, self.deltas = outputs, boxes * outputs, boxes * 4
        padded = -(-(self.classes + self.deltas) // multiple) * multiple
        self.fused = Conv2d(channels, padded, 3, padding=1)

    def forward(self, map: Tensor) -> tuple[Tensor, Tensor]:
        """As SeparateHead."""
        both = self.fused(map)
        end = self.classes + self.deltas
        return _by_box(both[:, : self.classes], self.outputs), _by_box(both[:, self.classes : end], 4)


def _by_box(channels: Tensor, values: int) -> Tensor:
    """(B, n * values, H, W) -> (B, H * W * n, values); a view where memory is channels_last."""
    return channels.permute(0, 2, 3, 1).reshape(channels.shape[0], -1, values)


class SSD(nn.Module):
    """Trunk, extras and heads. Weights come from `init_ssd`, or from a file."""

    def __init__(self, backbone: Backbone, classes: int, settings: SSDModel, cells: Sequence[int]) -> None:
        """
        backbone  its coarsest map has stride 8; with a pyramid 32
        classes   K, without background
        cells     of each level's side: paceline.config.ssd.grid_sizes(size)
        Raises RecipeError for a trunk without such maps.
        """
        super().__init__()
        pyramid, extras = settings.fpn_channels, settings.extra_channels
        wanted = PYRAMID_STRIDES if pyramid else (STRIDE,)
        if not set(wanted) <= set(backbone.strides) or backbone.strides[-1] != wanted[-1]:
            needed = f"the FPN requires {list(wanted)}" if pyramid else f"default boxes require one of {STRIDE}"
            raise RecipeError(f"--model.backbone: has feature maps of stride {backbone.strides}, but {needed}.")
        self.trunk, self.side = backbone, cells[0]
        # The last of a stride: a ResNet that keeps stride 8 has two maps of it.
        self.places = [max(index for index, of_map in enumerate(backbone.strides) if of_map == stride) for stride in wanted]
        channels = [backbone.channels[-1]]
        if pyramid:
            inputs, norm = [backbone.channels[index] for index in self.places], "batch" if settings.extra_norm else "none"
            self.fpn = FPN(inputs, pyramid, norm=norm, top="pool", eps=settings.bn_eps)
            channels = [pyramid] * len(wanted)
        blocks = []
        for level in range(len(wanted), len(cells)):
            outputs = extras if level <= 2 else extras // 2
            # The map before is halved with padding, or loses its border; the sizes determine which.
            halves = cells[level] == (cells[level - 1] + 1) // 2 and level <= 3
            blocks.append(ExtraBlock(channels[-1], outputs, settings, halves=halves))
            channels.append(outputs)
        self.extras = nn.ModuleList(blocks)
        outputs = classes + 1
        self.heads = nn.ModuleList(
            SeparateHead(count, boxes, outputs)
            if settings.heads == "separate"
            else FusedHead(count, boxes, outputs, settings.head_channel_multiple)
            for count, boxes in zip(channels, count_boxes_per_cell(len(cells)))
        )
        if settings.parity.freeze_first_conv:
            backbone.freeze(FIRST_CONV)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 3, H, W) normalized -> class logits (B, A, K + 1) and deltas (B, A, 4), in the network's own type."""
        stages = self.trunk(images)
        maps = [stages[index] for index in self.places]
        if len(maps) > 1:
            maps = [F.relu(map, inplace=True) for map in self.fpn.merge(maps)[0]]
        if maps[0].shape[-1] != self.side:
            raise RecipeError(
                f"--input.image-size {images.shape[-1]}: this backbone gives a feature map of {maps[0].shape[-1]} cells, "
                f"but default boxes require {self.side}. Use a multiple of 32."
            )
        for block in self.extras:
            maps.append(block(maps[-1]))
        results = [head(map) for head, map in zip(self.heads, maps)]
        return torch.cat([logits for logits, _ in results], 1), torch.cat([deltas for _, deltas in results], 1)


@torch.no_grad()
def init_ssd(
    model: SSD, generator: torch.Generator, *, zero_init_residual: bool = False, new_bias: NewBias = "uniform"
) -> None:
    """First weights: a ResNet trunk as torchvision's; pyramid, extras and heads Xavier-uniform, biases U(+-1 / sqrt(fan_in)) or zero.

    The class and box parts of a fused head are drawn separately, so both kinds of head start from one distribution.
    Source: MLPerf reference SSD (_init_weights), System A's initializer.
    """
    init_weights(model.trunk, "torchvision", generator, zero_init_residual=zero_init_residual)
    added = [*model.extras.modules(), *(model.fpn.modules() if len(model.places) > 1 else ())]
    for module in added:
        if isinstance(module, Conv2d):
            _draw(module, [module.out_channels], generator)
        elif isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
    for head in model.heads:
        if isinstance(head, FusedHead):
            rest = head.fused.out_channels - head.classes - head.deltas
            _draw(head.fused, [head.classes, head.deltas, *([rest] if rest else [])], generator)
        else:
            assert isinstance(head, SeparateHead)
            _draw(head.conf, [head.conf.out_channels], generator)
            _draw(head.loc, [head.loc.out_channels], generator)
    if new_bias == "zero":
        for module in (*added, *model.heads.modules()):
            if isinstance(module, Conv2d) and module.bias is not None:
                nn.init.zeros_(module.bias)


def _draw(conv: nn.Conv2d, segments: Sequence[int], generator: torch.Generator) -> None:
    """Xavier-uniform for each segment of output channels on its own; the bias as torch draws it."""
    fan_in = conv.weight[0].numel()
    area = fan_in // conv.in_channels
    for part in conv.weight.split(list(segments)):
        bound = math.sqrt(6 / (fan_in + part.shape[0] * area))
        part.uniform_(-bound, bound, generator=generator)
    if conv.bias is not None:
        bound = 1 / math.sqrt(fan_in)
        conv.bias.uniform_(-bound, bound, generator=generator)
