"""Boxes that predictions are relative to: SSD's default boxes, and the anchors of a feature pyramid.

Letters: A default boxes of an image   k level   n anchors of a cell   h, w cells of a level's map
Each cell of SSD's level k has a square of side s_k, a square of side sqrt(s_k * s_(k+1)), and for each extra aspect ratio a the box
s_k sqrt(a) wide and s_k / sqrt(a) high and the same box turned.
A pyramid has one size and several aspect ratios in each cell of each level, ltrb in pixels of the network's input. Published ways:
half-even  torchvision: centered on the cell's left upper corner, half widths and heights rounded (halves to even);
           the step between cells is the input's side over the map's, rounded down: 61, not 64, where 13 rows cover 800
legacy     Faster R-CNN (MLPerf reference, GluonCV): the shape is rounded at the size of the level's stride, then scaled;
           right and bottom name the last pixel inside, so a box w wide spans w - 1; centered on the cell's middle
legacy-edges  the same boxes by their edges, w wide: what legacy anchors are where widths are right - left + 1, as in the
           MLPerf reference; GluonCV takes right - left
none       as half-even without the rounding, the step between cells is the level's stride (detectron2)
Sources: Liu et al. 2016, section 2.2, with the numbers of the MLPerf reference SSD (utils.py, train.py); torchvision's
AnchorGenerator; py-faster-rcnn's generate_anchors.py as in maskrcnn-benchmark and GluonCV.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from paceline.models.ops.boxes import to_ltrb

Order = Literal["cell", "anchor"]
BoxOrder = Literal["cell", "cell-last", "anchor", "anchor-last"]


def extra_ratios(level: int) -> tuple[int, ...]:
    """Aspect ratios of a level besides 1: 2 alone on the finest map and on the two smallest, else 2 and 3."""
    return (2, 3) if 1 <= level <= 3 else (2,)


def count_boxes_per_cell(levels: int) -> tuple[int, ...]:
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
        raise ValueError(f"{len(grids)} levels of default boxes require {len(grids) + 1} scales, got {len(scales)}")
    return _in_float64(size, grids, scales, order).float().clamp_(min=0.0, max=1.0)


def default_corners(size: int, grids: Sequence[int], scales: Sequence[float]) -> Tensor:
    """The same boxes in cell order as (A, 4) float32 ltrb, computed in float64; float32 differs by up to 6e-8.

    DALI and TensorFlow's systems had these. For a small object inside several boxes of one size the last bits of their areas
    decide which is its best.
    """
    boxes = _in_float64(size, grids, scales, "cell").clamp_(min=0.0, max=1.0)
    return to_ltrb(boxes).float()


def tie_order(rule: BoxOrder, grids: Sequence[int]) -> Tensor | None:
    """(A,) int64, an order of default boxes in cell order: an object takes the first of its equally good ones in this order.

    cell: the order as it is, given as None. anchor: all cells of a shape come before the next shape's (MLPerf reference, Gaudi).
    cell-last, anchor-last: the reverse of either (DALI).
    """
    if rule == "cell":
        return None
    indices = anchor_to_cell(grids)
    order = torch.arange(len(indices)) if rule == "cell-last" else indices.argsort()
    return order if rule == "anchor" else order.flip(0)


def _in_float64(size: int, grids: Sequence[int], scales: Sequence[float], order: Order) -> Tensor:
    """(A, 4) float64 cxcywh, not clipped."""
    levels = []
    for level, grid in enumerate(grids):
        # The first four maps are taken at strides 8 to 64; later ones lose a border, so their cells share the input.
        step = 8 * 2**level if level < 4 else size / grid
        center = (torch.arange(grid, dtype=torch.float64) + 0.5) / (size / step)
        shapes = shapes_of_cell(scales[level], scales[level + 1], extra_ratios(level))
        shapes = torch.tensor(shapes, dtype=torch.float64)
        row, column = torch.meshgrid(center, center, indexing="ij")
        centers = torch.stack((column, row), dim=-1).reshape(-1, 1, 2).expand(-1, len(shapes), -1)
        boxes = torch.cat((centers, shapes.expand(len(centers), -1, -1)), dim=-1)
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
    """(A,) int64: the permutation p with x_cell = x_anchor[p], for anything that has one row a default box."""
    parts, start = [], 0
    for grid, shapes in zip(grids, count_boxes_per_cell(len(grids))):
        cells = grid * grid
        parts.append(start + torch.arange(shapes * cells).reshape(shapes, cells).T.reshape(-1))
        start += shapes * cells
    return torch.cat(parts)


Rounding = Literal["half-even", "legacy", "legacy-edges", "none"]
# Pixels from the last pixel inside to what right and bottom name.
BEYOND_LAST: dict[Rounding, float] = {"half-even": 0.0, "legacy": 0.0, "legacy-edges": 1.0, "none": 0.0}


def make_cell_anchors(size: float, ratios: Sequence[float], *, rounding: Rounding, stride: int) -> Tensor:
    """(n, 4) float32 ltrb: anchors of the cell whose left upper corner is the origin.

    size     side of the square anchor, pixels
    ratios   height / width of each anchor
    stride   step between the level's cells, pixels; only the legacy ones depend on it
    """
    if rounding in ("legacy", "legacy-edges"):
        made = torch.tensor([legacy_anchor(size, ratio, stride) for ratio in ratios]).reshape(-1, 4)
        made[:, 2:] += BEYOND_LAST[rounding]
        return made
    # In float32 and in torchvision's order of operations, so that the rounding falls the same way.
    growth = torch.tensor(tuple(ratios), dtype=torch.float32).sqrt()
    width, height = (1 / growth) * size, growth * size
    anchors = torch.stack((-width, -height, width, height), dim=1) / 2
    return anchors.round() if rounding == "half-even" else anchors


def legacy_anchor(size: float, ratio: float, stride: int) -> tuple[float, float, float, float]:
    # Python rounds halves to even, as the originals' numpy does: 11 x 5.5 becomes 11 x 6, 45 x 22.5 becomes 45 x 22.
    width = round(math.sqrt(stride * stride / ratio))
    height = round(width * ratio)
    middle, scale = 0.5 * (stride - 1), size / stride
    right, down = 0.5 * (width * scale - 1), 0.5 * (height * scale - 1)
    return middle - right, middle - down, middle + right, middle + down


def make_pyramid_anchors(
    grids: Sequence[tuple[int, int]],
    height: int,
    width: int,
    *,
    sizes: Sequence[float],
    ratios: Sequence[float],
    rounding: Rounding,
) -> list[Tensor]:
    """Anchors of every cell of every level, on the CPU.

    grids    (h, w) of each level's map, finest first, each level at twice the stride of the one before
    height, width  of the network's input, pixels; the finest map's h divides the height
    sizes    anchor side of each level, pixels
    ratios   height / width of a cell's anchors
    return   of each level (h * w * n, 4) float32 ltrb; order row, column, ratio. Not clipped to the input
    """
    if len(sizes) != len(grids):
        raise ValueError(f"{len(grids)} FPN levels require {len(grids)} anchor sizes, got {len(sizes)}")
    levels = []
    for level, ((rows, columns), size) in enumerate(zip(grids, sizes)):
        stride = (height // grids[0][0]) * 2**level
        down, right = (height // rows, width // columns) if rounding == "half-even" else (stride, stride)
        top, left = torch.meshgrid(torch.arange(rows) * down, torch.arange(columns) * right, indexing="ij")
        corners = torch.stack((left, top, left, top), dim=-1).reshape(-1, 1, 4)
        levels.append((corners + make_cell_anchors(size, ratios, rounding=rounding, stride=stride)).reshape(-1, 4))
    return levels
