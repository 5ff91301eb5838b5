"""The systems that lines are translated from; of two whose program knows all flags of a line the first is taken."""

from __future__ import annotations

from paceline.recipes.migrate import (
    gaudi_ssd,
    gluoncv_maskrcnn,
    gluoncv_page,
    mxnet_resnet,
    mxnet_resnet_page,
    mxnet_ssd,
    pytorch_ssd,
)
from paceline.recipes.migrate.table import Original, Page

ORIGINALS: tuple[Original, ...] = (
    mxnet_ssd.ORIGINAL,
    pytorch_ssd.REFERENCE_ORIGINAL,
    pytorch_ssd.NVIDIA_ORIGINAL,
    gaudi_ssd.ORIGINAL,
    mxnet_resnet.ORIGINAL,
    gluoncv_maskrcnn.ORIGINAL,
)
PAGES: tuple[Page, ...] = (mxnet_ssd.PAGE, pytorch_ssd.PAGE, gaudi_ssd.PAGE, mxnet_resnet_page.PAGE, gluoncv_page.PAGE)
