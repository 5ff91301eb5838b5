"""The layers of Mask R-CNN that have parameters: trunk with pyramid, proposal head, box head, mask head.

Names are torchvision's (`maskrcnn_resnet50_fpn`), so its weights load by name. What is computed with them: segmenter.py.
"""

from __future__ import annotations

from torch import nn

from paceline.config.instances import MaskRCNNModel
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
