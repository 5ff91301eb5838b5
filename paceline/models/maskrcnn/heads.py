"""The three heads of Mask R-CNN: proposals on every cell, classes and boxes of regions, masks of regions. Faster R-CNN has no third.

Letters: B images   C channels of the pyramid   n anchors of a cell   R regions   K classes   S side of a pooled region
Names are torchvision's (`rpn.head`, `roi_heads`), so its weights load by name. Class 0 is the background in every output.
Source: He et al. 2017, "Mask R-CNN", section 3 and figure 4.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.config.maskrcnn import HeadNorm
from paceline.models.layers.common import Conv2d, ConvTranspose2d, Linear, make_group_norm
from paceline.models.ops.roi_align import gather_cells


class RPNHead(nn.Module):
    """A 3x3 convolution, then objectness and deltas of each anchor, the same on all levels."""

    def __init__(self, channels: int, middle: int, anchors: int) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Sequential(Conv2d(channels, middle, 3, padding=1), nn.ReLU(inplace=True)))
        self.cls_logits = Conv2d(middle, anchors, 1)
        self.bbox_pred = Conv2d(middle, 4 * anchors, 1)

    def forward(self, levels: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """-> for each level logits (B, H_l * W_l * n) and deltas (B, H_l * W_l * n, 4), cell by cell."""
        anchors = self.cls_logits.out_channels
        weight, bias = self._outputs()
        logits, deltas = [], []
        for level in levels:
            both = F.conv2d(self.conv(level), weight, bias).permute(0, 2, 3, 1)
            # Copied in any case: `reshape` copies all maps but those of one column, which a graph for any shape cannot tell apart.
            of = [part.clone(memory_format=torch.contiguous_format) for part in (both[..., :anchors], both[..., anchors:])]
            logits.append(of[0].view(len(level), -1))
            deltas.append(of[1].view(len(level), -1, 4))
        return logits, deltas

    def at(self, levels: list[Tensor], indices: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (B, S) and deltas (B, S, 4) of chosen anchors alone, with a gradient whose cost follows their number.

        A loss on sampled anchors leaves the gradient of all other cells at zero: the 3x3 convolution's backward over whole
        maps, a ninth of the whole network's work, would multiply zeros.

        indices  (B, S) int64, places among the anchors of all levels
        """
        anchors = self.cls_logits.out_channels
        image, level, row, column = unravel_cells(indices // anchors, [(map.shape[2], map.shape[3]) for map in levels])
        # Weights as rows in channels_last order: their gradients then have the layout of data parallel's buckets.
        conv = self.conv[0][0]  # pyright: ignore[reportIndexIssue]
        patches = gather_cells(levels, image, level, row, column)
        middle = F.relu(F.linear(patches, conv.weight.permute(0, 2, 3, 1).flatten(1), conv.bias), inplace=True)
        weight, bias = self._outputs()
        both = F.linear(middle, weight.permute(0, 2, 3, 1).flatten(1), bias)
        own = (indices % anchors).flatten()
        logits = both[:, :anchors].gather(1, own.unsqueeze(1))
        deltas = both[:, anchors:].unflatten(1, (anchors, 4)).gather(1, own.view(-1, 1, 1).expand(-1, 1, 4))
        return logits.view(indices.shape), deltas.view(*indices.shape, 4)

    def _outputs(self) -> tuple[Tensor, Tensor]:
        """One product of 5 n channels instead of two small ones: (5 n, middle, 1, 1) and (5 n,)."""
        assert self.cls_logits.bias is not None and self.bbox_pred.bias is not None
        weight = torch.cat((self.cls_logits.weight, self.bbox_pred.weight))
        return weight, torch.cat((self.cls_logits.bias, self.bbox_pred.bias))


def unravel_cells(cells: Tensor, grids: list[tuple[int, int]]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Image, level, row and column, (B * S,) int64 each, of cells (B, S) int64 that are numbered through all levels.

    grids    H_l and W_l of each level
    """
    image = torch.arange(len(cells), device=cells.device).repeat_interleave(cells.shape[1], output_size=cells.numel())
    within = cells.flatten()
    level, width = torch.zeros_like(within), torch.full_like(within, grids[0][1])
    # Comparisons with Python numbers: a tensor of constants would be copied from the host, which waits for the device.
    for number, ((rows, columns), (_, columns_beyond)) in enumerate(pairwise(grids)):
        beyond = (level == number) & (within >= rows * columns)
        within = torch.where(beyond, within - rows * columns, within)
        level, width = level + beyond, torch.where(beyond, columns_beyond, width)
    return image, level, within // width, within % width


class BoxHead(nn.Module):
    """Two fully connected layers on a pooled region."""

    def __init__(self, channels: int, side: int, width: int) -> None:
        super().__init__()
        self.fc6 = Linear(channels * side * side, width)
        self.fc7 = Linear(width, width)

    def forward(self, pooled: Tensor) -> Tensor:
        """(R, C, S, S) -> (R, width)."""
        return F.relu(self.fc7(F.relu(self.fc6(pooled.flatten(1)), inplace=True)), inplace=True)


class ConvBoxHead(nn.Sequential):
    """3x3 convolutions on a pooled region, then one fully connected layer: detectron2's 4conv1fc, with torchvision's names."""

    def __init__(self, channels: int, side: int, width: int, *, convs: int, conv_channels: int, norm: HeadNorm) -> None:
        inputs = [channels] + [conv_channels] * (convs - 1)
        layers = [_conv_layer(count, conv_channels, norm) for count in inputs]
        super().__init__(*layers, nn.Flatten(), Linear(conv_channels * side * side, width), nn.ReLU(inplace=True))


class BoxPredictor(nn.Module):
    """Class logits, and a box for each class."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.cls_score = Linear(width, classes + 1)
        self.bbox_pred = Linear(width, 4 * (classes + 1))

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """(R, width) -> class logits (R, K + 1) and deltas (R, 4 * (K + 1))."""
        return self.cls_score(features), self.bbox_pred(features)


class MaskPredictor(nn.Module):
    """Twice the resolution, then one number a point: only the region's own class is computed."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.conv5_mask = ConvTranspose2d(channels, channels, 2, 2)
        self.mask_fcn_logits = Conv2d(channels, classes + 1, 1)

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        """(R, C, S, S) and the classes (R,) int64 -> logits (R, 2 S, 2 S) of each region's class."""
        features = F.relu(self.conv5_mask(features), inplace=True)
        weight = self.mask_fcn_logits.weight.permute(0, 2, 3, 1).flatten(1)[labels].unsqueeze(1)
        assert self.mask_fcn_logits.bias is not None
        bias = self.mask_fcn_logits.bias[labels]
        rows, _, height, width = features.shape
        # A product over the last axis gives the gradient the layout of the features.
        if features.is_contiguous(memory_format=torch.channels_last):
            logits = features.permute(0, 2, 3, 1).flatten(1, 2) @ weight.transpose(1, 2)
        else:
            logits = weight @ features.flatten(2)
        return logits.view(rows, height, width) + bias.view(-1, 1, 1)


class RoIHeads(nn.Module):
    """Box head, and mask head where there is one."""

    def __init__(
        self,
        channels: int,
        classes: int,
        *,
        side: int,
        width: int,
        box_convs: int,
        box_channels: int,
        mask_convs: int,
        mask_channels: int,
        norm: HeadNorm,
        masks: bool = True,
    ) -> None:
        super().__init__()
        self.box_head = (
            ConvBoxHead(channels, side, width, convs=box_convs, conv_channels=box_channels, norm=norm)
            if box_convs
            else BoxHead(channels, side, width)
        )
        self.box_predictor = BoxPredictor(width, classes)
        if not masks:
            return
        inputs = [channels] + [mask_channels] * (mask_convs - 1)
        self.mask_head = nn.Sequential(*(_conv_layer(count, mask_channels, norm) for count in inputs))
        self.mask_predictor = MaskPredictor(mask_channels, classes)

    def boxes(self, pooled: Tensor) -> tuple[Tensor, Tensor]:
        """(R, C, S, S) -> class logits (R, K + 1), deltas (R, 4 * (K + 1))."""
        return self.box_predictor(self.box_head(pooled))

    def masks(self, pooled: Tensor, labels: Tensor) -> Tensor:
        """(R, C, S, S), classes (R,) -> mask logits (R, 2 S, 2 S)."""
        return self.mask_predictor(self.mask_head(pooled), labels)


def _conv_layer(inputs: int, outputs: int, norm: HeadNorm) -> nn.Sequential:
    conv = Conv2d(inputs, outputs, 3, padding=1, bias=norm == "none")
    if norm == "none":
        return nn.Sequential(conv, nn.ReLU(inplace=True))
    return nn.Sequential(conv, make_group_norm(outputs), nn.ReLU(inplace=True))
