"""Pooling regions from a feature pyramid: which level a region takes, and RoIAlign or RoIPool on it.

Letters: B images   C channels   n regions of all images   S cells along a pooled region's side   r samples along a cell's
Boxes are ltrb in pixels of the network input; level places count from the finest pooled level, 0.
RoIAlign is linear in the features: a cell is a weighted sum of 4 r r pixels. A CPU computes it as such, an accelerator by
torchvision's kernel.
Sources: Lin et al. 2017 (FPN), equation 1; He et al. 2017 (RoIAlign); torchvision, ops/poolers.py; GluonCV, faster_rcnn.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from paceline.boxes.forms import fixed_shapes
from paceline.boxes.kernels import roi_align, roi_pool

PoolingMode = Literal["align", "pool"]
LevelLaw = Literal["torchvision", "gluoncv"]
# A region of this side takes this level: the size of ImageNet's crops, and the stage that classifies them.
CANONICAL_SIDE = 224
CANONICAL_LEVEL = 4
EPSILON = 1e-6
# Regions of other levels are moved here, pixels: far from every map, where all samples are 0.
FAR_AWAY = -1e6


def levels_of(boxes: Tensor, *, levels: int, law: LevelLaw, first: Literal[2, 3]) -> Tensor:
    """Each region's place in the list of pooled levels.

    boxes    (..., 4) ltrb px
    levels   how many levels there are
    law      "torchvision", or "gluoncv": sides grow by 1 pixel and the epsilon is inside the logarithm
    first    number of the finest: 2 for stride 4, 3 for stride 8
    return   (...) int64 in 0..levels - 1; a box without area takes the finest
    """
    width, height = (boxes[..., 2:] - boxes[..., :2]).float().unbind(-1)
    if law == "torchvision":
        exponent = CANONICAL_LEVEL + torch.log2((width * height).sqrt() / CANONICAL_SIDE) + EPSILON
    else:
        exponent = CANONICAL_LEVEL + torch.log2(((width + 1) * (height + 1)).sqrt() / CANONICAL_SIDE + EPSILON)
    return (exponent.floor().clamp(first, first + levels - 1) - first).to(torch.int64)


def pool_regions(
    features: Sequence[Tensor],
    strides: Sequence[int],
    image: Tensor,
    boxes: Tensor,
    levels: Tensor,
    *,
    side: int,
    sampling_ratio: int,
    aligned: bool,
    mode: PoolingMode = "align",
) -> Tensor:
    """RoIAlign of each region on its level, or RoIPool, with the gradient to the features.

    features        of each level (B, C, H, W)
    strides         of each level, pixels of the input
    image           (n,) int64, 0..B - 1; -1 for a row without a region
    boxes           (n, 4) ltrb px
    levels          (n,) int64, as from `levels_of`
    side            S
    sampling_ratio  sample points along a cell's side, 1 or more
    aligned         shift by half a pixel (detectron2)
    mode            "pool" is RoIPool, for which the two above mean nothing
    return          (n, C, S, S) of the features' dtype, computed in float32; zeros where image is -1. Every level takes
                    part in the graph, with or without regions. Fixed shapes and no host synchronisation, except on a CPU
    """
    table = features, strides, image, boxes, levels
    if fixed_shapes(boxes):
        align = partial(roi_align, side=side, sampling_ratio=sampling_ratio, aligned=aligned)
        return pool_fixed(*table, align if mode == "align" else partial(roi_pool, side=side))
    if mode == "align":
        return align_cpu(*table, side=side, sampling_ratio=sampling_ratio, aligned=aligned)
    return pool_cpu(*table, side=side)


def align_cpu(
    features: Sequence[Tensor],
    strides: Sequence[int],
    image: Tensor,
    boxes: Tensor,
    levels: Tensor,
    *,
    side: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    """RoIAlign where each level pools its own regions, as weighted sums of pixels; arguments as in `pool_regions`.

    On one core, 512 regions with 256 channels and 7 x 7 cells on an input of 800 x 1216, forward and backward: 24 and
    46 ms on features in channels_last, 43 and 69 ms on contiguous ones; torchvision's MultiScaleRoIAlign takes 225 and
    459 ms, and 147 and 469 ms (its kernel copies channels_last to contiguous, and has no bf16).
    """
    channels = features[0].shape[1]
    pooled, rows = [], []
    for level, (feature, stride) in enumerate(zip(features, strides)):
        members = ((levels == level) & (image >= 0)).nonzero().squeeze(1)
        edges = boxes[members].detach().float() * (1 / stride) - (0.5 if aligned else 0.0)
        height, width = feature.shape[2:]
        column, of_column = samples(edges[:, 0], edges[:, 2], width, side, sampling_ratio, aligned)
        row, of_row = samples(edges[:, 1], edges[:, 3], height, side, sampling_ratio, aligned)
        # (members, cells down, cells across, taps down, taps across)
        first = image[members].view(-1, 1, 1, 1, 1) * height
        pixel = (first + row[:, :, None, :, None]) * width + column[:, None, :, None, :]
        weight = of_row[:, :, None, :, None] * of_column[:, None, :, None, :]
        # Copies nothing where the features are channels_last.
        pixels = feature.float().permute(0, 2, 3, 1).contiguous().view(-1, channels)
        taps = (2 * sampling_ratio) ** 2
        part = embedding_bag(
            pixel.reshape(-1, taps), pixels, per_sample_weights=weight.reshape(-1, taps), mode="sum"
        )  # fmt: skip
        pooled.append(part.view(-1, side, side, channels))
        rows.append(members)
    result = pooled[0].new_zeros(len(boxes), side, side, channels)
    result = result.index_copy(0, torch.cat(rows), torch.cat(pooled))
    return result.permute(0, 3, 1, 2).to(features[0].dtype)


def samples(
    low: Tensor, high: Tensor, extent: int, side: int, sampling_ratio: int, aligned: bool
) -> tuple[Tensor, Tensor]:
    """Along one axis, the pixels between which a cell's samples lie, and their weights.

    low     (n,) where regions begin, high (n,) where they end, in the level's pixels
    extent  pixels of the level along the axis
    return  pixels (n, S, 2 r) int64 in 0..extent - 1 and weights (n, S, 2 r), of a cell in sum 1, or less beyond the map
    """
    length = high - low if aligned else (high - low).clamp(min=1.0)
    cell = (length / side).view(-1, 1, 1)
    number = torch.arange(side).view(1, -1, 1)
    inside = torch.arange(sampling_ratio).view(1, 1, -1) + 0.5
    place = low.view(-1, 1, 1) + number * cell + inside * cell / sampling_ratio
    # Up to a pixel beyond the map a sample is its border's; further out it is 0.
    counts = (place >= -1.0) & (place <= extent)
    place = place.clamp(0, extent - 1)
    before = place.floor().clamp(max=max(extent - 2, 0))
    share = place - before
    pixel = torch.stack((before, (before + 1).clamp(max=extent - 1)), dim=-1)
    weight = torch.stack((1.0 - share, share), dim=-1) * (counts.unsqueeze(-1) / sampling_ratio)
    return pixel.to(torch.int64).flatten(2), weight.flatten(2)


def pool_cpu(
    features: Sequence[Tensor], strides: Sequence[int], image: Tensor, boxes: Tensor, levels: Tensor, *, side: int
) -> Tensor:
    """RoIPool: each level pools its own regions; arguments as in `pool_regions`."""
    pooled, rows = [], []
    for level, (feature, stride) in enumerate(zip(features, strides)):
        members = ((levels == level) & (image >= 0)).nonzero().squeeze(1)
        regions = torch.cat((image[members].unsqueeze(1).float(), boxes[members].detach().float()), dim=1)
        pooled.append(roi_pool(feature.float(), regions, side, scale=1 / stride))
        rows.append(members)
    result = pooled[0].new_zeros(len(boxes), *pooled[0].shape[1:])
    return result.index_copy(0, torch.cat(rows), torch.cat(pooled)).to(features[0].dtype)


def pool_fixed(
    features: Sequence[Tensor],
    strides: Sequence[int],
    image: Tensor,
    boxes: Tensor,
    levels: Tensor,
    kernel: Callable[..., Tensor],
) -> Tensor:
    """RoIAlign or RoIPool of all regions on every level, those of others far away, where they have no pixel and are 0.

    kernel   (features, regions, scale=...) of one level; the others as in `pool_regions`
    """
    result = None
    for level, (feature, stride) in enumerate(zip(features, strides)):
        member = (levels == level) & (image >= 0)
        place = torch.where(member.unsqueeze(1), boxes.detach().float(), FAR_AWAY)
        regions = torch.cat((image.clamp(min=0).unsqueeze(1).float(), place), dim=1)
        part = kernel(feature.float(), regions, scale=1 / stride)
        result = part if result is None else result + part
    assert result is not None
    return result.to(features[0].dtype)
