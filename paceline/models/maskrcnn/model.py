"""The layers of Mask R-CNN that have parameters (trunk, pyramid, proposal head, box head, mask head) and their first weights.

Letters: B images   C channels of the pyramid   H_l, W_l cells of level l, which has stride 2^l   K classes
Levels run from 2 (or 3) to 6. Names are torchvision's (`maskrcnn_resnet50_fpn`), so its weights load by name. What is computed with
the layers: module.py. Class 0 is the background in every output.
Sources: Lin et al. 2017, "Feature Pyramid Networks for Object Detection". First weights: the MLPerf reference (maskrcnn-benchmark) and
torchvision; both draw the pyramid uniformly with variance 1 / fan_in, the proposal head from N(0, 0.01^2), mask convolutions from
N(0, 2 / fan_out), class and box outputs from N(0, 0.01^2) and N(0, 0.001^2). A box head's convolutions are drawn as the mask's
(detectron2). GluonCV draws the pyramid's weights and biases from U(-0.07, 0.07): its code asks for U(+-1 / sqrt(fan_in)) in a symbol's
attribute, which MXNet's SymbolBlock does not read, so MXNet's default applies. Its two fully connected layers are N(0, 0.01^2), and
the mask output's fan_out counts no background. Compared with its own net: tests/oracle/test_gluoncv_init.py.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline._utils.errors import RecipeError
from paceline.config.maskrcnn import HeadInit, HeadNorm, MaskRCNNModel
from paceline.models.backbones import build_backbone
from paceline.models.backbones.base import FPN, Backbone, BackboneSpec, init_weights
from paceline.models.layers.batch_norm import BatchNorm
from paceline.models.layers.common import Conv2d, ConvTranspose2d, Linear, make_group_norm
from paceline.models.ops.roi_align import gather_cells


class BackboneWithFPN(nn.Module):
    """Trunk and pyramid."""

    def __init__(self, backbone: Backbone, settings: MaskRCNNModel) -> None:
        """Raises RecipeError for a trunk that lacks a map of one of the levels' strides."""
        super().__init__()
        wanted = [2**level for level in range(settings.min_fpn_level, 6)]
        if not set(wanted) <= set(backbone.strides):
            raise RecipeError(f"--model.backbone: has maps of stride {backbone.strides}, but the FPN requires {wanted}.")
        self.body = backbone
        self.places = [backbone.strides.index(stride) for stride in wanted]
        inputs = [backbone.channels[index] for index in self.places]
        eps = max(settings.bn_eps, 1e-5)
        self.fpn = FPN(inputs, settings.fpn_channels, norm=settings.fpn_norm, top=settings.fpn_top, eps=eps)
        self.strides = [2**level for level in range(settings.min_fpn_level, 7)]

    def forward(self, images: Tensor) -> list[Tensor]:
        """(B, 3, H, W) normalized -> levels min_fpn_level to 6, each (B, C, H_l, W_l)."""
        maps = self.body(images)
        return self.fpn([maps[index] for index in self.places])


class MaskRCNN(nn.Module):
    """The layers with parameters, under torchvision's names."""

    def __init__(self, settings: MaskRCNNModel, classes: int) -> None:
        """classes: K, without the background."""
        super().__init__()
        rpn, channels = settings.rpn, settings.fpn_channels
        form = BackboneSpec(stride=32, finest=2**settings.min_fpn_level, norm=settings.norm)
        self.backbone = BackboneWithFPN(build_backbone(settings, form), settings)
        self.rpn = nn.Module()
        self.rpn.head = RPNHead(channels, rpn.channels or channels, len(rpn.aspect_ratios))
        self.roi_heads = RoIHeads(settings, classes)


PROPOSAL_STD = 0.01
CLASS_STD = 0.01
BOX_STD = 0.001
# GluonCV: MXNet's default for a parameter without a rule, and the fully connected layers.
MXNET_BOUND = 0.07
DENSE_STD = 0.01


@torch.no_grad()
def init_mask_rcnn(network: MaskRCNN, generator: torch.Generator, law: HeadInit = "torchvision") -> None:
    """Draw every weight, a ResNet trunk's by torchvision's rule, from a generator on the CPU, where the network must be too."""
    backbone, heads = network.backbone, network.roi_heads
    init_weights(backbone.body, "torchvision", generator)
    for module in (*backbone.fpn.modules(), *network.roi_heads.modules()):
        if isinstance(module, BatchNorm):
            module.reset_running_stats()
        if isinstance(module, BatchNorm | nn.GroupNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
    for module in backbone.fpn.modules():
        if isinstance(module, nn.Conv2d):
            if law == "torchvision":
                _uniform(module, generator)
                continue
            for part in (module.weight, module.bias):
                if part is not None:
                    part.uniform_(-MXNET_BOUND, MXNET_BOUND, generator=generator)
    for module in network.rpn.modules():
        if isinstance(module, nn.Conv2d):
            _normal(module, PROPOSAL_STD, generator)
    for module in heads.box_head.modules():
        if isinstance(module, nn.Conv2d):
            _convolution(module, generator)
        elif isinstance(module, nn.Linear) and law == "gluoncv":
            _normal(module, DENSE_STD, generator)
        elif isinstance(module, nn.Linear):
            _uniform(module, generator)
    _normal(heads.box_predictor.cls_score, CLASS_STD, generator)
    _normal(heads.box_predictor.bbox_pred, BOX_STD, generator)
    if not hasattr(heads, "mask_head"):
        return
    for module in (*heads.mask_head.modules(), *heads.mask_predictor.modules()):
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            _convolution(module, generator)
    if law == "gluoncv":
        # Drawn with the background among its outputs; GluonCV's net has none.
        outputs = heads.mask_predictor.mask_fcn_logits.weight
        outputs.mul_(math.sqrt(len(outputs) / (len(outputs) - 1)))


def _convolution(module: nn.Conv2d | nn.ConvTranspose2d, generator: torch.Generator) -> None:
    """N(0, 2 / fan_out), biases 0."""
    nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu", generator=generator)
    _zero(module)


def _uniform(module: nn.Conv2d | nn.Linear, generator: torch.Generator) -> None:
    """U(+-sqrt(3 / fan_in)), biases 0."""
    bound = math.sqrt(3 / module.weight[0].numel())
    module.weight.uniform_(-bound, bound, generator=generator)
    _zero(module)


def _normal(module: nn.Conv2d | nn.Linear, std: float, generator: torch.Generator) -> None:
    module.weight.normal_(0.0, std, generator=generator)
    _zero(module)


def _zero(module: nn.Conv2d | nn.ConvTranspose2d | nn.Linear) -> None:
    if module.bias is not None:
        nn.init.zeros_(module.bias)


# The three heads of Mask R-CNN: proposals on every cell, classes and boxes of regions, masks of regions. Faster R-CNN has no third.
#
# Letters: n anchors of a cell   R regions   S side of a pooled region
# Source: He et al. 2017, "Mask R-CNN", section 3 and figure 4.


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

    def __init__(self, settings: MaskRCNNModel) -> None:
        roi, channels = settings.roi, settings.roi.conv_channels or settings.fpn_channels
        inputs = [settings.fpn_channels] + [channels] * (roi.num_convs - 1)
        layers = [_conv_layer(count, channels, settings.head_norm) for count in inputs]
        flat = channels * roi.pool_size * roi.pool_size
        super().__init__(*layers, nn.Flatten(), Linear(flat, roi.fc_channels), nn.ReLU(inplace=True))


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

    def __init__(self, settings: MaskRCNNModel, classes: int) -> None:
        super().__init__()
        roi, mask, channels, norm = settings.roi, settings.mask, settings.fpn_channels, settings.head_norm
        self.box_head = ConvBoxHead(settings) if roi.num_convs else BoxHead(channels, roi.pool_size, roi.fc_channels)
        self.box_predictor = BoxPredictor(roi.fc_channels, classes)
        if not settings.masks:
            return
        mask_channels = mask.conv_channels or channels
        inputs = [channels] + [mask_channels] * (mask.num_convs - 1)
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
