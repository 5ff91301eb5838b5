"""What is cut out of maps: regions from a feature pyramid, mask targets from objects' canvases, 3x3 neighborhoods of chosen cells.

Letters: B images   C channels, or canvas side without its ring   n regions or chosen cells   S cells along a pooled region's side
r samples along a cell's side   H_l, W_l cells of level l
Boxes are ltrb in pixels of the network input; level places count from the finest pooled level, 0.
RoIAlign is linear in the features: a cell is a weighted sum of 4 r r pixels. A CPU computes it as such, an accelerator by
torchvision's kernel, level by level, or by ours in Triton, all levels in one.
Mask targets: RoIAlign of a whole photo's bitmap needs the bitmap; the object's canvas has all of it that is not 0 and a ring of its
surroundings, so RoIAlign of the canvas, with the region moved to the canvas's corner, is the same where the canvas has the input's
resolution (pitch 1). Within a pixel of the photo's border the ring continues the mask as RoIAlign does; regions reach no farther, as
they are cut at the photo's border.
Neighborhoods: a 3x3 convolution whose loss reads few cells needs its gradient at those cells only; everywhere else it is zero.
Computed on neighborhoods, the backward of such a convolution costs n cells instead of H_l * W_l.
Sources: Lin et al. 2017 (FPN), equation 1; He et al. 2017 (RoIAlign); torchvision, ops/poolers.py; GluonCV, faster_rcnn.py. Mask
targets: "soft" is RoIAlign as torchvision's project_masks_on_boxes calls it: scale 1, not aligned, as many sample points as a cell has
pixels (GluonCV, mask_rcnn/rcnn_target.py: two along a side). "binary" follows the MLPerf reference, which scales the polygon from the
region to the cells and rasterizes it there: so a coordinate is a place, not a pixel's middle, and RoIAlign is aligned. The remaining
difference between the two ways to rasterize: docs/reference/known-differences.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from paceline.models.ops.dispatch import uses_static_shapes, uses_triton
from paceline.models.ops.torchvision_kernels import roi_align, roi_pool

PoolingMode = Literal["align", "pool"]
LevelLaw = Literal["torchvision", "gluoncv"]
# A region of this side takes this level: the size of ImageNet's crops, and the stage that classifies them.
CANONICAL_SIDE = 224
CANONICAL_LEVEL = 4
EPSILON = 1e-6
# Regions of other levels are moved here, pixels: far from every map, where all samples are 0.
FAR_AWAY = -1e6


def assign_levels(boxes: Tensor, *, levels: int, law: LevelLaw, first: Literal[2, 3]) -> Tensor:
    """Each region's place in the list of pooled levels.

    boxes    (..., 4) ltrb px; levels: how many levels there are
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

    features        of each level (B, C, H, W); strides of each level, pixels of the input
    image           (n,) int64, 0..B - 1; -1 for a row without a region
    boxes           (n, 4) ltrb px; levels (n,) int64, as from `assign_levels`
    side            S
    sampling_ratio  sample points along a cell's side, 1 or more
    aligned         shift by half a pixel (detectron2)
    mode            "pool" is RoIPool, which ignores the two above
    return          (n, C, S, S) of the features' dtype, computed in float32; zeros where image is -1. Every level takes
                    part in the graph, with or without regions. Fixed shapes and no host synchronization, except on a CPU
    """
    table = features, strides, image, boxes, levels
    if mode == "align" and uses_triton(boxes):
        from paceline.models.ops import triton_roi_align

        if triton_roi_align.has_form(features):
            return triton_roi_align.align_levels(*table, side, sampling_ratio, aligned)
    if uses_static_shapes(boxes):
        align = partial(roi_align, side=side, sampling_ratio=sampling_ratio, aligned=aligned)
        return pool_fixed(*table, align if mode == "align" else partial(roi_pool, side=side))
    if mode == "align":
        return align_cpu(*table, side=side, sampling_ratio=sampling_ratio, aligned=aligned)
    return pool_cpu(*table, side=side)


def prepare_feature_maps(features: Sequence[Tensor]) -> list[Tensor]:
    """Convert maps to what `pool_regions` reads, once for all heads: torchvision's kernel takes contiguous float32.

    features  of each level (B, C, H, W)
    return    the features, except if torchvision's kernel pools them with a gradient. The gradients of all heads are then
              added in float32, and converted to the type and layout of the features once
    """
    if not uses_static_shapes(features[0]) or uses_triton(features[0]) or not torch.is_grad_enabled():
        return list(features)
    return [
        feature if feature.dtype == torch.float32 and feature.is_contiguous() else _ContiguousFloat32.apply(feature)
        for feature in features
    ]  # pyright: ignore[reportReturnType]


class _ContiguousFloat32(torch.autograd.Function):
    """Contiguous float32; the gradient has the input's type and layout."""

    @staticmethod
    def forward(ctx: Any, feature: Tensor) -> Tensor:  # type: ignore[override]
        last = feature.is_contiguous(memory_format=torch.channels_last)
        ctx.own = feature.dtype, torch.channels_last if last else torch.contiguous_format
        return feature.to(torch.float32, memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Tensor:  # type: ignore[override]
        dtype, layout = ctx.own
        return upstream.to(dtype, memory_format=layout)


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
        column, of_column = sample_axis(edges[:, 0], edges[:, 2], width, side, sampling_ratio, aligned)
        row, of_row = sample_axis(edges[:, 1], edges[:, 3], height, side, sampling_ratio, aligned)
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


def sample_axis(
    low: Tensor, high: Tensor, extent: int, side: int, sampling_ratio: int, aligned: bool
) -> tuple[Tensor, Tensor]:
    """Along one axis, the pixels between which a cell's samples lie, and their weights.

    low, high  (n,) where regions begin and end, in the level's pixels
    extent  pixels of the level along the axis
    return  pixels (n, S, 2 r) int64 in 0..extent - 1 and weights (n, S, 2 r), of a cell in sum 1, or less beyond the map
    """
    length = high - low if aligned else (high - low).clamp(min=1.0)
    cell = (length / side).view(-1, 1, 1)
    number = torch.arange(side).view(1, -1, 1)
    inside = torch.arange(sampling_ratio).view(1, 1, -1) + 0.5
    positions = low.view(-1, 1, 1) + number * cell + inside * cell / sampling_ratio
    # Up to a pixel beyond the map a sample is its border's; further out it is 0.
    counts = (positions >= -1.0) & (positions <= extent)
    positions = positions.clamp(0, extent - 1)
    before = positions.floor().clamp(max=max(extent - 2, 0))
    share = positions - before
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
    """RoIAlign or RoIPool of all regions on every level, those of other levels far away, where they have no pixel and are 0.

    kernel   (features, regions, scale=...) of one level; the others as in `pool_regions`
    """
    result = None
    for level, (feature, stride) in enumerate(zip(features, strides)):
        member = (levels == level) & (image >= 0)
        positions = torch.where(member.unsqueeze(1), boxes.detach().float(), FAR_AWAY)
        regions = torch.cat((image.clamp(min=0).unsqueeze(1).float(), positions), dim=1)
        # In the layout that the kernel reads: of a channels_last map it would make a second copy.
        plain = feature.to(torch.float32, memory_format=torch.contiguous_format)
        part = kernel(plain, regions, scale=1 / stride)
        result = part if result is None else result + part
    assert result is not None
    return result.to(features[0].dtype)


MaskTarget = Literal["soft", "binary"]


def mask_targets(
    canvases: Tensor, frames: Tensor, boxes: Tensor, *, side: int, target: MaskTarget, sampling_ratio: int = 0
) -> Tensor:
    """(n, side, side) float32 in [0, 1]: the share of the object in each cell of its region. n may be 0.

    canvases  (n, C + 2, C + 2) uint8, 0 or 1: the mask of each region's object, see InstanceBatch
    frames    (n, 4) float32: x and y of the left upper corner of canvas pixel (1, 1), width and height of a canvas pixel
    boxes     (n, 4) ltrb pixels of the network's input
    side      cells along a region's side
    target    the share itself ("soft"), or 1 where it is at least a half and else 0 ("binary")
    sampling_ratio  sample points along a cell's side; 0: as many as it has canvas pixels
    """
    count = len(canvases)
    indices = torch.arange(count, device=boxes.device, dtype=torch.float32).unsqueeze(1)
    regions = torch.cat((indices, to_canvas(boxes.float(), frames, aligned=target == "binary")), dim=1)
    shares = roi_align(
        canvases.float().unsqueeze(1), regions, side, scale=1.0, sampling_ratio=sampling_ratio or -1, aligned=False
    ).squeeze(1)
    return shares if target == "soft" else (shares >= 0.5).float()


def to_canvas(boxes: Tensor, frames: Tensor, *, aligned: bool) -> Tensor:
    """Regions in canvas pixels, for a RoIAlign that is not aligned: (n, 4) ltrb, (n, 4) -> (n, 4).

    Such a RoIAlign takes a whole number for a pixel's middle. Canvas pixel 1 begins at the frame's corner, so its middle lies half a
    pixel of the canvas from there: with `aligned` that is the whole shift. Else number u of the input counts as a pixel's middle
    too, and lies u + 1/2 pixels from the border: in sum 1 (the ring) at pitch 1.
    """
    corner, pitch = frames[:, :2].repeat(1, 2), frames[:, 2:].repeat(1, 2)
    return (boxes - corner) / pitch + (0.5 if aligned else 0.5 / pitch + 0.5)


def gather_cells(levels: Sequence[Tensor], image: Tensor, level: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Neighborhoods as rows, zeros outside the map, with the gradient to the maps.

    levels  of each (B, C, H_l, W_l)
    image, level, row, column  (n,) int64, the place of each chosen cell
    return  (n, 9 * C) in the maps' type: row by row, column by column, channels last
    """
    form = gather_cells_fixed if uses_static_shapes(levels[0]) else gather_cells_cpu
    return form(levels, image, level, row, column)


def gather_cells_cpu(levels: Sequence[Tensor], image: Tensor, level: Tensor, row: Tensor, column: Tensor) -> Tensor:
    parts, locations = [], []
    for number, map in enumerate(levels):
        mine = (level == number).nonzero().squeeze(1)
        parts.append(_patches(map, image[mine], row[mine], column[mine]))
        locations.append(mine)
    order = torch.cat(locations).argsort()
    return torch.cat(parts)[order]


def gather_cells_fixed(levels: Sequence[Tensor], image: Tensor, level: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """The same with fixed shapes and no host synchronization: every cell is cut out on every level."""
    result = None
    for number, map in enumerate(levels):
        mine = level == number
        part = _patches(map, image, row.masked_fill(~mine, 0), column.masked_fill(~mine, 0))
        part = part.masked_fill(~mine.unsqueeze(1), 0.0)
        result = part if result is None else result + part
    assert result is not None
    return result


def _patches(map: Tensor, image: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Neighborhoods on one map: (B, C, H, W) -> (n, 9 * C). It reads a view of channels_last memory."""
    _, channels, height, width = map.shape
    step = torch.arange(-1, 2, device=map.device)
    rows, columns = row.view(-1, 1, 1) + step.view(1, 3, 1), column.view(-1, 1, 1) + step.view(1, 1, 3)
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    cell = (image.view(-1, 1, 1) * height + rows.clamp(0, height - 1)) * width + columns.clamp(0, width - 1)
    cells = map.permute(0, 2, 3, 1).reshape(-1, channels)
    patches = cells.index_select(0, cell.flatten()).masked_fill(~inside.reshape(-1, 1), 0.0)
    return patches.view(-1, 9 * channels)
