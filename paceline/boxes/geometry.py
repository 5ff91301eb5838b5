"""Boxes as tensors: two forms, areas, IoU.

Letters: N, M boxes   ... any leading dimensions, broadcast where two arguments have them
ltrb is left, top, right, bottom; cxcywh is centre x, centre y, width, height. Both in fractions of the image
unless a function says otherwise; nothing here depends on the unit.
"""

from __future__ import annotations

import torch
from torch import Tensor


def to_ltrb(boxes: Tensor) -> Tensor:
    """(..., 4) cxcywh -> (..., 4) ltrb."""
    centre, half = boxes[..., :2], 0.5 * boxes[..., 2:]
    return torch.cat((centre - half, centre + half), dim=-1)


def to_cxcywh(boxes: Tensor) -> Tensor:
    """(..., 4) ltrb -> (..., 4) cxcywh."""
    low, high = boxes[..., :2], boxes[..., 2:]
    return torch.cat((0.5 * (low + high), high - low), dim=-1)


def area(boxes: Tensor) -> Tensor:
    """(..., 4) ltrb -> (...). A box whose right is left of its left has area 0, as has one turned upside down."""
    width, height = (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).unbind(-1)
    return width * height


def clip_fractions(boxes: Tensor) -> Tensor:
    """(..., 4) ltrb fractions, each edge moved into [0, 1]."""
    return boxes.clamp(min=0.0, max=1.0)


def clip_to_photo(boxes: Tensor, sizes: Tensor) -> Tensor:
    """(B, ..., 4) ltrb px, each edge moved into the photo; sizes (B, 2) height and width."""
    high = sizes.flip(1).repeat(1, 2).to(boxes.dtype)
    return torch.minimum(boxes.clamp(min=0.0), high.view(-1, *[1] * (boxes.dim() - 2), 4))


def large_enough(boxes: Tensor, least_side: float) -> Tensor:
    """(..., 4) ltrb -> (...) bool: neither narrower nor lower than that."""
    return ((boxes[..., 2:] - boxes[..., :2]) >= least_side).all(dim=-1)


def pairwise_iou(left: Tensor, right: Tensor) -> Tensor:
    """Intersection over union of every pair.

    left    (..., N, 4) ltrb
    right   (..., M, 4) ltrb, same unit
    return  (..., N, M) in [0, 1]; a box without area has IoU 0 with everything, itself included. N or M may be 0.
    """
    l1, t1, r1, b1 = left.unsqueeze(-2).unbind(-1)
    # Each edge of the long side as one run of memory: several times faster than every fourth number of it.
    l2, t2, r2, b2 = right.unsqueeze(-3).movedim(-1, 0).contiguous().unbind(0)
    width = (torch.minimum(r1, r2) - torch.maximum(l1, l2)).clamp_(min=0)
    height = (torch.minimum(b1, b2) - torch.maximum(t1, t2)).clamp_(min=0)
    shared = width.mul_(height)
    union = (area(left).unsqueeze(-1) + area(right).unsqueeze(-2)).sub_(shared)
    # Only two boxes without area have no union; their intersection is 0 too, and 0 / tiny is 0.
    return shared.div_(union.clamp_(min=torch.finfo(union.dtype).tiny))
