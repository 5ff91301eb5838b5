"""The R-CNN box coding: how far a box is from its reference box (an anchor or a region), in the reference's own size.

Boxes are ltrb pixels, width = right - left without the older + 1; deltas are dx, dy, dw, dh without a unit.
Source: Girshick et al. 2014, appendix C, with the weights of Fast R-CNN (its "stds" inverted), as torchvision's BoxCoder.
"""

from __future__ import annotations

import torch
from torch import Tensor

Weights = tuple[float, float, float, float]

# Pixels; the least side of a proposal. Keeps the deltas of empty slots finite, where width and height are 0.
SMALLEST_SIDE = 1e-3


def encode_deltas(boxes: Tensor, references: Tensor, weights: Weights) -> Tensor:
    """Deltas that turn references into boxes.

    boxes       (..., 4) ltrb pixels
    references  (..., 4) ltrb pixels; leading dimensions broadcast
    weights     factors of dx, dy, dw, dh: (1, 1, 1, 1) for anchors, (10, 10, 5, 5) for regions
    return      (..., 4) float32, finite even where a side is 0
    """
    centre, side = centres_and_sides(boxes)
    from_centre, from_side = centres_and_sides(references)
    from_side = from_side.clamp(min=SMALLEST_SIDE)
    moved = (centre - from_centre) / from_side
    grown = (side.clamp(min=SMALLEST_SIDE) / from_side).log()
    return torch.cat((weighted(moved, weights[:2]), weighted(grown, weights[2:])), dim=-1)


def decode_deltas(deltas: Tensor, references: Tensor, weights: Weights, limit: float) -> Tensor:
    """Boxes that the deltas describe; encode_deltas' inverse.

    deltas      (..., 4)
    references  (..., 4) ltrb pixels; leading dimensions broadcast
    weights     as in encode_deltas
    limit       the most that a width or a height may grow, as a logarithm
    return      (..., 4) float32 ltrb pixels, not clipped to the photo
    """
    from_centre, from_side = centres_and_sides(references)
    dx, dy, dw, dh = (delta / weight for delta, weight in zip(deltas.float().unbind(-1), weights))
    centre = torch.stack((dx, dy), dim=-1) * from_side + from_centre
    half = 0.5 * (torch.stack((dw, dh), dim=-1).clamp(max=limit).exp() * from_side)
    return torch.cat((centre - half, centre + half), dim=-1)


def centres_and_sides(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """(..., 4) ltrb -> (..., 2) centre x, y and (..., 2) width, height, float32."""
    low, high = boxes[..., :2].float(), boxes[..., 2:].float()
    side = high - low
    return low + 0.5 * side, side


def weighted(pair: Tensor, weights: tuple[float, float]) -> Tensor:
    """(..., 2) times two numbers. No tensor of weights: copying one to an accelerator would wait for it."""
    return torch.stack((pair[..., 0] * weights[0], pair[..., 1] * weights[1]), dim=-1)
