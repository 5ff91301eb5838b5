"""SSD's box coding: how far a box is from its default box, in the default box's own size.

Boxes and default boxes are cxcywh in one unit; deltas are dx, dy, dw, dh without a unit.
Source: Liu et al. 2016, equation 2, with the two scales of the Caffe and MLPerf implementations.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from paceline.boxes.geometry import to_ltrb

# The original's "variances": deltas of matched boxes get a spread near 1.
CENTRE_SCALE = 0.1
SIZE_SCALE = 0.2
# A thousandth of a pixel of any input we feed: a thinner box is an annotation's rounding, and log(0) would be -inf.
SMALLEST_SIZE = 1e-6
# A box a million times its default box is nonsense whatever it is; without a bound exp() reaches inf, and IoU NaN.
MAX_LOG_GROWTH = math.log(1e6)


def encode(boxes: Tensor, anchors: Tensor) -> Tensor:
    """Deltas that turn default boxes into boxes.

    boxes    (..., A, 4) cxcywh
    anchors  (A, 4) cxcywh
    return   (..., A, 4) float32, finite even where a box has no width or height
    """
    boxes, anchors = boxes.float(), anchors.float()
    size = anchors[..., 2:].clamp(min=SMALLEST_SIZE)
    moved = (boxes[..., :2] - anchors[..., :2]) / size / CENTRE_SCALE
    grown = (boxes[..., 2:].clamp(min=SMALLEST_SIZE) / size).log() / SIZE_SCALE
    return torch.cat((moved, grown), dim=-1)


def decode(deltas: Tensor, anchors: Tensor) -> Tensor:
    """Boxes that the deltas describe; encode's inverse.

    deltas   (..., A, 4)
    anchors  (A, 4) cxcywh
    return   (..., A, 4) float32 ltrb, not clipped to the image
    """
    deltas, anchors = deltas.float(), anchors.float()
    centre = anchors[..., :2] + deltas[..., :2] * CENTRE_SCALE * anchors[..., 2:]
    size = anchors[..., 2:] * (deltas[..., 2:] * SIZE_SCALE).clamp(max=MAX_LOG_GROWTH).exp()
    return to_ltrb(torch.cat((centre, size), dim=-1))
