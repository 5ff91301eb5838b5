"""Boxes as tensors: two forms, areas, IoU, and coding: a box as its offset from a reference (a default box, an anchor, a region).

Letters: N, M boxes   ... any leading dimensions, broadcast where two arguments have them
ltrb is left, top, right, bottom; cxcywh is center x, center y, width, height. Both in fractions of the image unless a function says
otherwise; nothing here depends on the unit.
Deltas are dx, dy, dw, dh without a unit. SSD divides them by two scales (Caffe's "variances"), R-CNN multiplies them by weights: the
same function, but not the same last bits.
Sources: Girshick et al. 2014, appendix C, with the weights of Fast R-CNN (its "stds" inverted), as torchvision's BoxCoder; Liu et
al. 2016, equation 2, with the two scales of the Caffe and MLPerf implementations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


def to_ltrb(boxes: Tensor) -> Tensor:
    """(..., 4) cxcywh -> (..., 4) ltrb."""
    center, half = boxes[..., :2], 0.5 * boxes[..., 2:]
    return torch.cat((center - half, center + half), dim=-1)


def to_cxcywh(boxes: Tensor) -> Tensor:
    """(..., 4) ltrb -> (..., 4) cxcywh."""
    low, high = boxes[..., :2], boxes[..., 2:]
    return torch.cat((0.5 * (low + high), high - low), dim=-1)


def box_area(boxes: Tensor) -> Tensor:
    """(..., 4) ltrb -> (...). A box whose right is left of its left, or whose bottom is above its top, has area 0."""
    width, height = (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).unbind(-1)
    return width * height


def clip_fractions(boxes: Tensor) -> Tensor:
    """(..., 4) ltrb fractions, each edge moved into [0, 1]."""
    return boxes.clamp(min=0.0, max=1.0)


def clip_to_photo(boxes: Tensor, sizes: Tensor) -> Tensor:
    """(B, ..., 4) ltrb px, each edge moved into the photo; sizes (B, 2) height and width."""
    high = sizes.flip(1).repeat(1, 2).to(boxes.dtype)
    return torch.minimum(boxes.clamp(min=0.0), high.view(-1, *[1] * (boxes.dim() - 2), 4))


def is_large_enough(boxes: Tensor, min_box_side: float) -> Tensor:
    """(..., 4) ltrb -> (...) bool: both sides are at least `min_box_side`."""
    return ((boxes[..., 2:] - boxes[..., :2]) >= min_box_side).all(dim=-1)


def pairwise_iou(left: Tensor, right: Tensor) -> Tensor:
    """Intersection over union of every pair: (..., N, 4), (..., M, 4) ltrb in one unit -> (..., N, M) in [0, 1].

    A box without area has IoU 0 with everything, itself included. N or M may be 0.
    """
    l1, t1, r1, b1 = left.unsqueeze(-2).unbind(-1)
    # Each edge of the long side contiguous in memory: several times faster than with a stride of four.
    l2, t2, r2, b2 = right.unsqueeze(-3).movedim(-1, 0).contiguous().unbind(0)
    width = (torch.minimum(r1, r2) - torch.maximum(l1, l2)).clamp_(min=0)
    height = (torch.minimum(b1, b2) - torch.maximum(t1, t2)).clamp_(min=0)
    shared = width.mul_(height)
    union = (box_area(left).unsqueeze(-1) + box_area(right).unsqueeze(-2)).sub_(shared)
    # Only two boxes without area have no union; their intersection is 0 too, and 0 / tiny is 0.
    return shared.div_(union.clamp_(min=torch.finfo(union.dtype).tiny))


# The original's "variances": deltas of matched default boxes get a spread near 1.
CENTER_SCALE = 0.1
SIZE_SCALE = 0.2


@dataclass(frozen=True)
class BoxCoder:
    """Boxes and references are ltrb (width = right - left, without the older + 1), or cxcywh, in one unit."""

    factors: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0)  # of dx, dy, dw, dh
    limit: float = math.inf  # the most that a width or a height may grow, as a logarithm
    divides: bool = False  # the factors are scales that deltas are divided by, not weights
    cxcywh: bool = False
    least: float = 1e-3  # lower bound of sides: deltas of empty slots, whose width and height are 0, stay finite

    def encode(self, boxes: Tensor, references: Tensor) -> Tensor:
        """Deltas that turn references into boxes: (..., 4), (..., 4) -> (..., 4) float32, finite even where a side is 0."""
        (center, side), (from_center, from_side) = self._parts(boxes), self._parts(references)
        from_side = from_side.clamp(min=self.least)
        moved = (center - from_center) / from_side
        grown = (side.clamp(min=self.least) / from_side).log()
        return self._scaled(torch.cat((moved, grown), dim=-1), divide=self.divides)

    def decode(self, deltas: Tensor, references: Tensor) -> Tensor:
        """Boxes that the deltas describe, encode's inverse: (..., 4), (..., 4) -> (..., 4) float32 ltrb, not clipped."""
        from_center, from_side = self._parts(references)
        deltas = self._scaled(deltas.float(), divide=not self.divides)
        center = deltas[..., :2] * from_side + from_center
        half = 0.5 * (deltas[..., 2:].clamp(max=self.limit).exp() * from_side)
        return torch.cat((center - half, center + half), dim=-1)

    def _parts(self, boxes: Tensor) -> tuple[Tensor, Tensor]:
        """(..., 2) center x, y and (..., 2) width, height, float32."""
        first, last = boxes[..., :2].float(), boxes[..., 2:].float()
        if self.cxcywh:
            return first, last
        side = last - first
        return first + 0.5 * side, side

    def _scaled(self, deltas: Tensor, *, divide: bool) -> Tensor:
        # Not with a tensor of factors: copying one to an accelerator would wait for it.
        columns = zip(deltas.unbind(-1), self.factors)
        return torch.stack([column / by if divide else column * by for column, by in columns], dim=-1)


# `least` is a thousandth of a pixel of any input: rounding of annotations. `limit`: without a bound exp() reaches inf, and IoU NaN.
SSD_CODER = BoxCoder(
    (CENTER_SCALE, CENTER_SCALE, SIZE_SCALE, SIZE_SCALE), math.log(1e6), divides=True, cxcywh=True, least=1e-6
)
