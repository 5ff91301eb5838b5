"""The layers of Mask R-CNN that have parameters (trunk, pyramid, proposal head, box head, mask head) and their first weights.

Letters: B images   C channels of the pyramid   H_l, W_l cells of level l, which has stride 2^l   K classes
Levels run from 2 (or 3) to 6. Names are torchvision's (`maskrcnn_resnet50_fpn`), so its weights load by name. What is computed with
the layers: module.py.
Sources: Lin et al. 2017, "Feature Pyramid Networks for Object Detection". First weights: the MLPerf reference (maskrcnn-benchmark) and
torchvision; both draw the pyramid uniformly with variance 1 / fan_in, the proposal head from N(0, 0.01^2), mask convolutions from
N(0, 2 / fan_out), class and box outputs from N(0, 0.01^2) and N(0, 0.001^2). A box head's convolutions are drawn as the mask's
(detectron2). GluonCV draws the pyramid's weights and biases from U(-0.07, 0.07): its code asks for U(+-1 / sqrt(fan_in)) in a symbol's
attribute, which MXNet's SymbolBlock does not read, so MXNet's default applies. Its two fully connected layers are N(0, 0.01^2), and
the mask output's fan_out counts no background. Compared with its own net: tests/oracle/test_gluoncv_init.py.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from paceline._utils.errors import RecipeError
from paceline.config.maskrcnn import FrozenLayers, HeadInit, LayerNorm, MaskRCNNModel, TopLevel
from paceline.models.backbones.base import Backbone, BackboneSpec, Part, init_weights
from paceline.models.backbones.factory import build_backbone
from paceline.models.backbones.fpn import FPN
from paceline.models.layers.batch_norm import BatchNorm
from paceline.models.maskrcnn.heads import RoIHeads, RPNHead

FROZEN: dict[FrozenLayers, Part] = {"none": "none", "stem": "stem", "stem_and_first": "first_stage"}


class BackboneWithFPN(nn.Module):
    """Trunk and pyramid."""

    def __init__(
        self,
        backbone: Backbone,
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
        if not set(wanted) <= set(backbone.strides):
            raise RecipeError(
                f"--model.trunk: this one has maps of stride {backbone.strides}, and the pyramid needs {wanted}."
            )
        self.body = backbone
        self.body.freeze(FROZEN[frozen])
        self.places = [backbone.strides.index(stride) for stride in wanted]
        inputs = [backbone.channels[index] for index in self.places]
        self.fpn = FPN(inputs, channels, norm=fpn_norm, top=top, eps=max(eps, 1e-5))
        self.strides = [2**level for level in range(first_level, 7)]

    def forward(self, images: Tensor) -> list[Tensor]:
        """(B, 3, H, W) normalized -> levels first_level to 6, each (B, C, H_l, W_l)."""
        maps = self.body(images)
        return self.fpn([maps[index] for index in self.places])


class MaskRCNN(nn.Module):
    """The layers with parameters, under torchvision's names."""

    def __init__(self, settings: MaskRCNNModel, classes: int) -> None:
        """classes: K, without the background."""
        super().__init__()
        rpn, roi, mask = settings.rpn, settings.roi, settings.mask
        channels = settings.channels
        self.backbone = BackboneWithFPN(
            build_backbone(settings, BackboneSpec(stride=32, finest=2**settings.first_level, norm=settings.norm)),
            channels,
            first_level=settings.first_level,
            frozen=settings.frozen,
            fpn_norm=settings.fpn_norm,
            top=settings.top,
            eps=settings.bn_eps,
        )
        self.rpn = nn.Module()
        self.rpn.head = RPNHead(channels, rpn.channels or channels, len(rpn.ratios))
        self.roi_heads = RoIHeads(
            channels,
            classes,
            side=roi.side,
            width=roi.channels,
            box_convs=roi.convs,
            box_channels=roi.conv_channels or channels,
            mask_convs=mask.convs,
            mask_channels=mask.channels or channels,
            norm=settings.head_norm,
            masks=settings.masks,
        )


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
