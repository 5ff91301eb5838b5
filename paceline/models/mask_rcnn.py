"""The layers of Mask R-CNN that have parameters: trunk with pyramid, proposal head, box head, mask head.

Names are torchvision's (`maskrcnn_resnet50_fpn`), so its weights load by name. What is computed with them: segmenter.py.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from paceline.config.instances import HeadInit, MaskRCNNModel
from paceline.models.batch_norm import BatchNorm
from paceline.models.initialise import initialise
from paceline.models.pyramid import Backbone
from paceline.models.region_heads import RoIHeads, RPNHead
from paceline.models.trunk import Form, make_trunk


class MaskRCNN(nn.Module):
    """The layers with parameters, under torchvision's names."""

    def __init__(self, settings: MaskRCNNModel, classes: int) -> None:
        """classes: K, without the background."""
        super().__init__()
        rpn, roi, mask = settings.rpn, settings.roi, settings.mask
        channels = settings.channels
        self.backbone = Backbone(
            make_trunk(settings, Form(stride=32, finest=2**settings.first_level, norm=settings.norm)),
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
        )


# First weights of Mask R-CNN, drawn from a given generator: the same seed gives the same net, whatever ran before.
#
# Sources: the MLPerf reference (maskrcnn-benchmark) and torchvision; both draw the pyramid uniformly with variance 1 / fan_in,
# the proposal head from N(0, 0.01^2), mask convolutions from N(0, 2 / fan_out), class and box outputs from N(0, 0.01^2) and
# N(0, 0.001^2). A box head's convolutions are drawn as the mask's (detectron2).
# GluonCV draws the pyramid's weights and biases from U(-0.07, 0.07): its code asks for U(+-1 / sqrt(fan_in)) in a symbol's
# attribute, which MXNet's SymbolBlock does not read, so that MXNet's default is what trains. Its two fully connected layers are
# N(0, 0.01^2), and the mask output's fan_out counts no background. Held against its own net: tests/oracle/test_gluoncv_init.py.


PROPOSAL_STD = 0.01
CLASS_STD = 0.01
BOX_STD = 0.001
# GluonCV: what MXNet gives a parameter that names no law, and the fully connected layers.
MXNET_BOUND = 0.07
DENSE_STD = 0.01


@torch.no_grad()
def initialise_mask_rcnn(network: MaskRCNN, generator: torch.Generator, law: HeadInit = "torchvision") -> None:
    """Draw every weight, a ResNet trunk's as torchvision has them. The generator and the network live on the CPU."""
    backbone, heads = network.backbone, network.roi_heads
    initialise(backbone.body, "torchvision", generator)
    for module in (*backbone.fpn.modules(), *network.roi_heads.modules()):
        if isinstance(module, BatchNorm):
            module.reset_running_stats()
        if isinstance(module, BatchNorm | nn.GroupNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
    for module in backbone.fpn.modules():
        if isinstance(module, nn.Conv2d):
            _pyramid(module, generator, law)
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
    for module in (*heads.mask_head.modules(), *heads.mask_predictor.modules()):
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            _convolution(module, generator)
    if law == "gluoncv":
        # Drawn with the background among its outputs, which GluonCV's net has not.
        outputs = heads.mask_predictor.mask_fcn_logits.weight
        outputs.mul_(math.sqrt(len(outputs) / (len(outputs) - 1)))


def _convolution(module: nn.Conv2d | nn.ConvTranspose2d, generator: torch.Generator) -> None:
    """N(0, 2 / fan_out), biases 0."""
    nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu", generator=generator)
    _zero(module)


def _pyramid(module: nn.Conv2d, generator: torch.Generator, law: HeadInit) -> None:
    if law == "torchvision":
        _uniform(module, generator)
        return
    module.weight.uniform_(-MXNET_BOUND, MXNET_BOUND, generator=generator)
    if module.bias is not None:
        module.bias.uniform_(-MXNET_BOUND, MXNET_BOUND, generator=generator)


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
