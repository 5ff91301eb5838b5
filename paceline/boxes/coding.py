"""How far a box is from its reference box (a default box, an anchor, a region), in the reference's own size; and back.

Deltas are dx, dy, dw, dh without a unit. SSD divides them by two scales (Caffe's "variances"), R-CNN multiplies them by weights:
one thing, but not the same last bits.
Sources: Girshick et al. 2014, appendix C, with the weights of Fast R-CNN (its "stds" inverted), as torchvision's BoxCoder; Liu et
al. 2016, equation 2, with the two scales of the Caffe and MLPerf implementations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# The original's "variances": deltas of matched default boxes get a spread near 1.
CENTRE_SCALE = 0.1
SIZE_SCALE = 0.2


@dataclass(frozen=True)
class BoxCoder:
    """Boxes and references are ltrb (width = right - left, without the older + 1), or cxcywh, in one unit."""

    factors: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0)  # of dx, dy, dw, dh
    limit: float = math.inf  # the most that a width or a height may grow, as a logarithm
    divides: bool = False  # the factors are scales that deltas are divided by, not weights
    cxcywh: bool = False
    least: float = (
        1e-3  # sides count as this at least: deltas of empty slots, where width and height are 0, stay finite
    )

    def encode(self, boxes: Tensor, references: Tensor) -> Tensor:
        """Deltas that turn references into boxes.

        boxes       (..., 4)
        references  (..., 4); leading dimensions broadcast
        return      (..., 4) float32, finite even where a side is 0
        """
        (centre, side), (from_centre, from_side) = self._parts(boxes), self._parts(references)
        from_side = from_side.clamp(min=self.least)
        moved = (centre - from_centre) / from_side
        grown = (side.clamp(min=self.least) / from_side).log()
        return self._scaled(torch.cat((moved, grown), dim=-1), divide=self.divides)

    def decode(self, deltas: Tensor, references: Tensor) -> Tensor:
        """Boxes that the deltas describe; encode's inverse.

        deltas      (..., 4)
        references  (..., 4); leading dimensions broadcast
        return      (..., 4) float32 ltrb, not clipped to the image
        """
        from_centre, from_side = self._parts(references)
        deltas = self._scaled(deltas.float(), divide=not self.divides)
        centre = deltas[..., :2] * from_side + from_centre
        half = 0.5 * (deltas[..., 2:].clamp(max=self.limit).exp() * from_side)
        return torch.cat((centre - half, centre + half), dim=-1)

    def _parts(self, boxes: Tensor) -> tuple[Tensor, Tensor]:
        """(..., 2) centre x, y and (..., 2) width, height, float32."""
        first, last = boxes[..., :2].float(), boxes[..., 2:].float()
        if self.cxcywh:
            return first, last
        side = last - first
        return first + 0.5 * side, side

    def _scaled(self, deltas: Tensor, *, divide: bool) -> Tensor:
        """No tensor of factors: copying one to an accelerator would wait for it."""
        columns = zip(deltas.unbind(-1), self.factors)
        return torch.stack([column / by if divide else column * by for column, by in columns], dim=-1)


# A side of a thousandth of a pixel of any input we feed is an annotation's rounding. A box a million times its default box is
# nonsense whatever it is; without a bound exp() reaches inf, and IoU NaN.
SSD_CODER = BoxCoder(
    (CENTRE_SCALE, CENTRE_SCALE, SIZE_SCALE, SIZE_SCALE), math.log(1e6), divides=True, cxcywh=True, least=1e-6
)
