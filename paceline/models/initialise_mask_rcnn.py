"""First weights of Mask R-CNN, drawn from a given generator: the same seed gives the same net, whatever ran before.

Sources: the MLPerf reference (maskrcnn-benchmark) and torchvision; both draw the pyramid uniformly with variance 1 / fan_in,
the proposal head from N(0, 0.01^2), mask convolutions from N(0, 2 / fan_out), class and box outputs from N(0, 0.01^2) and
N(0, 0.001^2).
"""

from __future__ import annotations

import math

import torch
from torch import nn

from paceline.models.batch_norm import BatchNorm
from paceline.models.initialise import initialise
from paceline.models.mask_rcnn import MaskRCNN

PROPOSAL_STD = 0.01
CLASS_STD = 0.01
BOX_STD = 0.001


@torch.no_grad()
def initialise_mask_rcnn(network: MaskRCNN, generator: torch.Generator) -> None:
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
            _uniform(module, generator)
    for module in network.rpn.modules():
        if isinstance(module, nn.Conv2d):
            _normal(module, PROPOSAL_STD, generator)
    _uniform(heads.box_head.fc6, generator)
    _uniform(heads.box_head.fc7, generator)
    _normal(heads.box_predictor.cls_score, CLASS_STD, generator)
    _normal(heads.box_predictor.bbox_pred, BOX_STD, generator)
    for module in (*heads.mask_head.modules(), *heads.mask_predictor.modules()):
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
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
