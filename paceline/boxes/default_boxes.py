"""SSD default boxes: the fixed boxes whose classes and offsets the network predicts.

Letters: A default boxes of an image   k level
Each cell of level k has a square of side s_k, a square of side sqrt(s_k * s_(k+1)), and for each extra aspect ratio a
the box s_k sqrt(a) wide and s_k / sqrt(a) high and the same box turned.
Source: Liu et al. 2016, section 2.2, with the numbers of the MLPerf reference SSD (utils.py, train.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from paceline.boxes.geometry import to_ltrb

Order = Literal["cell", "anchor"]
BoxOrder = Literal["cell", "cell-last", "anchor", "anchor-last"]


def extra_ratios(level: int) -> tuple[int, ...]:
    """Aspect ratios of a level besides 1: 2 alone on the finest map and on the two smallest, else 2 and 3."""
    return (2, 3) if 1 <= level <= 3 else (2,)


def boxes_a_cell(levels: int) -> tuple[int, ...]:
    """Default boxes of one cell of each level: 4, 6, 6, 6, 4, 4."""
    return tuple(2 + 2 * len(extra_ratios(level)) for level in range(levels))


def default_boxes(size: int, grids: Sequence[int], scales: Sequence[float], *, order: Order = "cell") -> Tensor:
    """Default boxes of a square input.

    size    side of the input, pixels
    grids   cells along one side of each level's map
    scales  box side of each level, and one more, as fractions of the input; one entry more than `grids`
    order   cell: level, row, column, box of the cell. anchor (MLPerf reference): level, box of the cell, row, column
    return  (A, 4) float32 cxcywh, fractions of the input, each number clipped to [0, 1]: so a corner may lie outside
    """
    if len(scales) != len(grids) + 1:
        raise ValueError(f"{len(grids)} levels of default boxes need {len(grids) + 1} scales, got {len(scales)}")
    return _in_float64(size, grids, scales, order).float().clamp_(min=0.0, max=1.0)


def default_corners(size: int, grids: Sequence[int], scales: Sequence[float]) -> Tensor:
    """The same boxes in cell order as (A, 4) float32 ltrb, found in float64: by up to 6e-8 not what float32 makes of them.

    DALI and TensorFlow's systems had these. Of a small object inside several boxes of one size the last bits of their areas
    decide which is its best.
    """
    boxes = _in_float64(size, grids, scales, "cell").clamp_(min=0.0, max=1.0)
    return to_ltrb(boxes).float()


def tie_order(rule: BoxOrder, grids: Sequence[int]) -> Tensor | None:
    """(A,) int64: of an object's equally good default boxes, which lie in cell order, it takes the first in this order.

    cell: the first as they lie, which is None. anchor: the first where all cells of a shape come before the next shape's
    (MLPerf reference, Gaudi). cell-last, anchor-last: the last of that order (DALI).
    """
    if rule == "cell":
        return None
    places = anchor_to_cell(grids)
    order = torch.arange(len(places)) if rule == "cell-last" else places.argsort()
    return order if rule == "anchor" else order.flip(0)


def _in_float64(size: int, grids: Sequence[int], scales: Sequence[float], order: Order) -> Tensor:
    """(A, 4) float64 cxcywh, not clipped."""
    levels = []
    for level, grid in enumerate(grids):
        # The first four maps are taken at strides 8 to 64; later ones lose a border, so their cells share the input.
        step = 8 * 2**level if level < 4 else size / grid
        centre = (torch.arange(grid, dtype=torch.float64) + 0.5) / (size / step)
        shapes = torch.tensor(
            shapes_of_cell(scales[level], scales[level + 1], extra_ratios(level)), dtype=torch.float64
        )
        row, column = torch.meshgrid(centre, centre, indexing="ij")
        centres = torch.stack((column, row), dim=-1).reshape(-1, 1, 2).expand(-1, len(shapes), -1)
        boxes = torch.cat((centres, shapes.expand(len(centres), -1, -1)), dim=-1)
        levels.append((boxes if order == "cell" else boxes.transpose(0, 1)).reshape(-1, 4))
    return torch.cat(levels)


def shapes_of_cell(scale: float, next_scale: float, ratios: Sequence[int]) -> list[tuple[float, float]]:
    """Width and height of each default box of a cell, in order."""
    between = math.sqrt(scale * next_scale)
    shapes = [(scale, scale), (between, between)]
    for ratio in ratios:
        long, short = scale * math.sqrt(ratio), scale / math.sqrt(ratio)
        shapes += [(long, short), (short, long)]
    return shapes


def anchor_to_cell(grids: Sequence[int]) -> Tensor:
    """The permutation p with x_cell = x_anchor[p], for anything that has one row a default box.

    return  (A,) int64
    """
    parts, start = [], 0
    for grid, shapes in zip(grids, boxes_a_cell(len(grids))):
        cells = grid * grid
        parts.append(start + torch.arange(shapes * cells).reshape(shapes, cells).T.reshape(-1))
        start += shapes * cells
    return torch.cat(parts)
