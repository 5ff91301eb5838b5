"""Anchors of a feature pyramid: one size and several aspect ratios in each cell of each level.

Letters: n anchors of a cell   h, w cells of a level's map
Anchors are ltrb in pixels of the network's input. Published ways to make them:
half_even  torchvision: centred on the cell's left upper corner, half widths and heights rounded (halves to even);
           the step between cells is the input's side over the map's, rounded down: 61, not 64, where 13 rows cover 800
legacy     Faster R-CNN (MLPerf reference, GluonCV): the shape is rounded at the size of the level's stride, then scaled;
           right and bottom name the last pixel inside, so a box w wide spans w - 1; centred on the cell's middle
legacy_edges  the same boxes by their edges, w wide: what legacy anchors are where widths are right - left + 1, as in the
           MLPerf reference; GluonCV takes right - left
none       as half_even without the rounding, the step between cells is the level's stride (detectron2)
Sources: torchvision's AnchorGenerator; py-faster-rcnn's generate_anchors.py as in maskrcnn-benchmark and GluonCV.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

Rounding = Literal["half_even", "legacy", "legacy_edges", "none"]
# What right and bottom name lies so many pixels beyond the last pixel inside.
BEYOND_LAST: dict[Rounding, float] = {"half_even": 0.0, "legacy": 0.0, "legacy_edges": 1.0, "none": 0.0}


def cell_anchors(size: float, ratios: Sequence[float], *, rounding: Rounding, stride: int) -> Tensor:
    """Anchors of the cell whose left upper corner is the origin.

    size     side of the square anchor, pixels
    ratios   height / width of each anchor
    stride   step between the level's cells, pixels; only the legacy ones depend on it
    return   (n, 4) float32 ltrb
    """
    if rounding in ("legacy", "legacy_edges"):
        made = torch.tensor([legacy_anchor(size, ratio, stride) for ratio in ratios]).reshape(-1, 4)
        made[:, 2:] += BEYOND_LAST[rounding]
        return made
    # In float32 and in torchvision's order of operations, so that the rounding falls the same way.
    growth = torch.tensor(tuple(ratios), dtype=torch.float32).sqrt()
    width, height = (1 / growth) * size, growth * size
    anchors = torch.stack((-width, -height, width, height), dim=1) / 2
    return anchors.round() if rounding == "half_even" else anchors


def legacy_anchor(size: float, ratio: float, stride: int) -> tuple[float, float, float, float]:
    """One anchor in Faster R-CNN's way."""
    # Python rounds halves to even, as the originals' numpy does: 11 x 5.5 becomes 11 x 6, 45 x 22.5 becomes 45 x 22.
    width = round(math.sqrt(stride * stride / ratio))
    height = round(width * ratio)
    middle, scale = 0.5 * (stride - 1), size / stride
    right, down = 0.5 * (width * scale - 1), 0.5 * (height * scale - 1)
    return middle - right, middle - down, middle + right, middle + down


def pyramid_anchors(
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
    height   of the network's input, pixels; the finest map's h divides it
    width    of the network's input, pixels
    sizes    anchor side of each level, pixels
    ratios   height / width of a cell's anchors
    return   of each level (h * w * n, 4) float32 ltrb; order row, column, ratio. Not clipped to the input
    """
    if len(sizes) != len(grids):
        raise ValueError(f"{len(grids)} pyramid levels need {len(grids)} anchor sizes, got {len(sizes)}")
    levels = []
    for level, ((rows, columns), size) in enumerate(zip(grids, sizes)):
        stride = (height // grids[0][0]) * 2**level
        down, right = (height // rows, width // columns) if rounding == "half_even" else (stride, stride)
        top, left = torch.meshgrid(torch.arange(rows) * down, torch.arange(columns) * right, indexing="ij")
        corners = torch.stack((left, top, left, top), dim=-1).reshape(-1, 1, 4)
        levels.append((corners + cell_anchors(size, ratios, rounding=rounding, stride=stride)).reshape(-1, 4))
    return levels
