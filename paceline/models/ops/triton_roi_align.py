"""RoIAlign over the pyramid's levels as one kernel in Triton forward, and two backward.

Letters as in roi_align.py: B images   C channels   n regions   S cells along a region's side   r samples along a cell's side
Maps are read and written as they lie, channels_last in fp16, bf16 or fp32, and everything between is computed in fp32: no copy of a
level. A sample's place, its four weights and the order of the sums are torchvision's, without fused multiply-adds: pooled cells are
those of the torch form to the bit. Backward, a program owns a few pixels of one map and adds up what each region of that map gives
them, region by region in the order of their numbers: no atomics, so the same bits each time, and no zeros written first.
Why our own: torchvision's kernel has one level, no bf16, and contiguous maps alone; in fp16 it rounds regions and sums to fp16, and
its gradient adds with atomics. No other library that is kept and installs as a wheel has it with a gradient.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# A kernel's text is Triton's language, whose types are not Python's; levels are as many as LEVELS.
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TYPES = (torch.float32, torch.float16, torch.bfloat16)
WIDEST = 512  # bytes of a pixel in a program at most
CELLS, PIXELS = 8, 4  # cells of a program; pixels along each side of a program's square
ROWS, MEMBERS = 1024, 256  # regions that are looked at together: of all, and of one map
# Without fused multiply-adds a sample's place and weights are torchvision's.
OPTIONS = {"enable_fp_fusion": False, "num_warps": 8}


def has_form(features: Sequence[Tensor]) -> bool:
    """Whether the kernels take these maps."""
    dtype = features[0].dtype
    return len(features) <= LEVELS and dtype in TYPES and all(feature.dtype == dtype for feature in features)


@torch.library.custom_op("paceline::align_levels", mutates_args=())
def align_levels(
    features: Sequence[Tensor], strides: Sequence[int], image: Tensor, boxes: Tensor, levels: Tensor,
    side: int, sampling_ratio: int, aligned: bool,
) -> Tensor:  # fmt: skip
    """RoIAlign of each region on its level, with the gradient to the features; arguments as in `pool_regions`.

    features  at most LEVELS of one type of TYPES
    return    (n, C, S, S) of the features' type, channels_last
    """
    output = _pooled(features, image, side)
    if output.numel():
        maps = [feature.contiguous(memory_format=torch.channels_last) for feature in features]
        channels = output.shape[1]
        wide = _wide(output)
        pool[len(image), triton.cdiv(side * side, CELLS), triton.cdiv(channels, wide)](
            *_padded(maps), image.contiguous(), boxes.detach().float().contiguous(), levels.contiguous(), output,
            *_geometry([tuple(feature.shape[2:]) for feature in features], strides), channels,
            side, sampling_ratio, aligned, CELLS, wide, **OPTIONS,
        )  # fmt: skip
    return output


@torch.library.custom_op("paceline::align_levels_backward", mutates_args=())
def align_levels_backward(
    upstream: Tensor, shapes: Sequence[int], strides: Sequence[int], image: Tensor, boxes: Tensor, levels: Tensor,
    sampling_ratio: int, aligned: bool,
) -> list[Tensor]:  # fmt: skip
    """upstream (n, C, S, S) of one of TYPES; shapes: B, then H and W of each level -> the gradient of each level, channels_last."""
    outputs = _gradients(upstream, shapes)
    sizes = list(zip(shapes[1::2], shapes[2::2]))
    tiles = [-(-height // PIXELS) * -(-width // PIXELS) for height, width in sizes]
    (count, channels, side, _), images = upstream.shape, shapes[0]
    if not images * sum(tiles) * channels:
        return outputs
    upstream = upstream.contiguous(memory_format=torch.channels_last)
    boxes, wide = boxes.detach().float().contiguous(), _wide(upstream)
    order = torch.empty(count, dtype=torch.int32, device=upstream.device)
    spans = torch.empty(images * len(sizes), 2, dtype=torch.int32, device=upstream.device)
    group_by_map[(len(spans),)](image.contiguous(), levels.contiguous(), order, spans, count, len(sizes), ROWS, **OPTIONS)
    ends = [sum(tiles[: level + 1]) for level in range(LEVELS)]
    gather[images * sum(tiles), triton.cdiv(channels, wide)](
        upstream, boxes, order, spans, *_padded(outputs), *_geometry(sizes, strides), *ends, channels, len(sizes),
        side, sampling_ratio, aligned, PIXELS, MEMBERS, wide, **OPTIONS,
    )  # fmt: skip
    return outputs


def _pooled(features: Sequence[Tensor], image: Tensor, side: int) -> Tensor:
    """Memory for what `align_levels` returns."""
    return _empty(features[0], len(image), features[0].shape[1], side, side)


def _gradients(upstream: Tensor, shapes: Sequence[int]) -> list[Tensor]:
    """Memory for what `align_levels_backward` returns."""
    return [_empty(upstream, shapes[0], upstream.shape[1], *size) for size in zip(shapes[1::2], shapes[2::2])]


def _empty(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def _wide(maps: Tensor) -> int:
    """Channels of a program, a power of two."""
    return min(WIDEST // maps.element_size(), triton.next_power_of_2(maps.shape[1]))


def _padded(maps: Sequence[Any]) -> list[Any]:
    """One for each of LEVELS; no region is on those that are missing."""
    return [*maps, *[maps[-1]] * (LEVELS - len(maps))]


def _geometry(sizes: Sequence[tuple[int, ...]], strides: Sequence[int]) -> list[float]:
    """Height, width and scale of each level."""
    return [number for size, stride in _padded(list(zip(sizes, strides))) for number in (*size, 1 / stride)]


align_levels.register_fake(
    lambda features, strides, image, boxes, levels, side, sampling_ratio, aligned: _pooled(features, image, side)
)
align_levels_backward.register_fake(lambda upstream, shapes, *_: _gradients(upstream, shapes))


def _save(ctx: Any, inputs: tuple, output: Tensor) -> None:
    features, ctx.strides, image, boxes, levels, _, *ctx.rules = inputs
    ctx.shapes = [len(features[0]), *(length for feature in features for length in feature.shape[2:])]
    ctx.save_for_backward(image, boxes, levels)


def _backward(ctx: Any, upstream: Tensor) -> tuple:
    gradients = align_levels_backward(upstream, ctx.shapes, ctx.strides, *ctx.saved_tensors, *ctx.rules)
    return gradients, *[None] * 7


align_levels.register_autograd(_backward, setup_context=_save)


# The kernels.

LEVELS = 4  # of a pyramid at most: a kernel takes an address for each
# Each shape of a batch would be another kernel.
OF_BATCHES = [f"{what}{level}" for level in range(LEVELS) for what in ("height", "width", "scale")]


@triton.jit
def select_level(level, first, second, third, fourth):
    return tl.where(level < 2, tl.where(level < 1, first, second), tl.where(level < 3, third, fourth))


@triton.jit
def divide_rounded(values, NUMBER: tl.constexpr):
    """values / NUMBER, correctly rounded; of a power of two without a division."""
    if (NUMBER & (NUMBER - 1)) == 0:
        values = values * (1.0 / NUMBER)
    else:
        values = tl.div_rn(values, NUMBER * 1.0)
    return values


@triton.jit
def begin_and_cell(low, high, scale, SIDE: tl.constexpr, ALIGNED: tl.constexpr):
    """Along one axis, where a region begins and how long a cell is, in its level's pixels."""
    begin = low * scale - (0.5 if ALIGNED else 0.0)
    length = high * scale - (0.5 if ALIGNED else 0.0) - begin
    if not ALIGNED:
        length = tl.maximum(length, 1.0)
    return begin, divide_rounded(length, SIDE)


@triton.jit
def sample(begin, cell, number, one, extent, RATIO: tl.constexpr):
    """A cell's sample `one` along one axis: the two pixels it lies between, the weights of both, and whether it counts."""
    location = begin + number * cell + divide_rounded((one + 0.5) * cell, RATIO)
    # Up to a pixel beyond the map a sample is its border's; further out it is 0.
    counts = (location >= -1.0) & (location <= extent)
    location = tl.where(counts, tl.maximum(location, 0.0), 0.0)
    before = tl.minimum(location.to(tl.int32), extent - 1)
    share = tl.where(before == extent - 1, 0.0, location - before)
    return before, tl.minimum(before + 1, extent - 1), 1.0 - share, share, counts


@triton.jit(do_not_specialize=OF_BATCHES)
def pool(
    map0, map1, map2, map3, image, boxes, levels, output,
    height0, width0, scale0, height1, width1, scale1, height2, width2, scale2, height3, width3, scale3, channels,
    SIDE: tl.constexpr, RATIO: tl.constexpr, ALIGNED: tl.constexpr, CELLS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """CELLS cells of one region; zeros where it has no image."""
    region = tl.program_id(0).to(tl.int64)
    number = tl.program_id(1) * CELLS + tl.arange(0, CELLS)
    channel = tl.program_id(2) * WIDE + tl.arange(0, WIDE)
    real, of = channel[None, :] < channels, tl.load(image + region)
    total = tl.zeros([CELLS, WIDE], tl.float32)
    if of >= 0:
        level = tl.load(levels + region)
        map, scale = select_level(level, map0, map1, map2, map3), select_level(level, scale0, scale1, scale2, scale3)
        height = select_level(level, height0, height1, height2, height3)
        width = select_level(level, width0, width1, width2, width3)
        left, across, top, down = locate_regions(boxes + 4 * region, scale, SIDE, ALIGNED)
        map += of * height * width * channels
        for one in range(RATIO):
            above, below, to_above, to_below, inside = sample(top, down, number // SIDE, one, height, RATIO)
            for other in range(RATIO):
                before, behind, to_before, to_behind, within = sample(left, across, number % SIDE, other, width, RATIO)
                here = (inside & within & (number < SIDE * SIDE))[:, None] & real
                upper, lower = (above * width)[:, None], (below * width)[:, None]
                first = tl.load(map + (upper + before[:, None]) * channels + channel[None, :], here, 0.0)
                value = (to_above * to_before)[:, None] * first.to(tl.float32)
                second = tl.load(map + (upper + behind[:, None]) * channels + channel[None, :], here, 0.0)
                value += (to_above * to_behind)[:, None] * second.to(tl.float32)
                third = tl.load(map + (lower + before[:, None]) * channels + channel[None, :], here, 0.0)
                value += (to_below * to_before)[:, None] * third.to(tl.float32)
                fourth = tl.load(map + (lower + behind[:, None]) * channels + channel[None, :], here, 0.0)
                value += (to_below * to_behind)[:, None] * fourth.to(tl.float32)
                total += value
    total = divide_rounded(total, RATIO * RATIO)
    location = (region * SIDE * SIDE + number)[:, None] * channels + channel[None, :]
    tl.store(output + location, total, (number < SIDE * SIDE)[:, None] & real)


@triton.jit(do_not_specialize=["count"])
def group_by_map(image, levels, order, spans, count, pooled, ROWS: tl.constexpr):
    """Write the numbers of one map's regions, in their order, behind those of the maps before it, and from where to where they lie.

    A map is one level of one image; pooled: levels of an image
    """
    own, location = tl.program_id(0), tl.arange(0, ROWS)
    start = 0
    for begin in range(0, count, ROWS):
        row = begin + location
        of = tl.load(image + row, row < count, -1)
        start += tl.sum(((of >= 0) & (of * pooled + tl.load(levels + row, row < count, 0) < own)).to(tl.int32), axis=0)
    end = start
    for begin in range(0, count, ROWS):
        row = begin + location
        of = tl.load(image + row, row < count, -1)
        mine = ((of >= 0) & (of * pooled + tl.load(levels + row, row < count, 0) == own)).to(tl.int32)
        tl.store(order + end + tl.cumsum(mine, axis=0) - 1, row, mine > 0)
        end += tl.sum(mine, axis=0)
    tl.store(spans + 2 * own, start)
    tl.store(spans + 2 * own + 1, end)


@triton.jit
def locate_regions(box, scale, SIDE: tl.constexpr, ALIGNED: tl.constexpr):
    """Where the region at an address, or each at many, begins across and down, and how long its cells are."""
    left, across = begin_and_cell(tl.load(box), tl.load(box + 2), scale, SIDE, ALIGNED)
    top, down = begin_and_cell(tl.load(box + 1), tl.load(box + 3), scale, SIDE, ALIGNED)
    return left, across, top, down


@triton.jit
def may_touch_row(begin, cell, first, SIDE: tl.constexpr, PIXELS: tl.constexpr):
    """Whether a region's samples may touch PIXELS pixels from `first` on: they reach one far, and rounding is less than a half."""
    end = begin + SIDE * cell
    return (tl.maximum(begin, end) >= first - 1.5) & (tl.minimum(begin, end) <= first + PIXELS + 0.5)


@triton.jit
def may_touch_square(boxes, scale, x, y, SIDE: tl.constexpr, ALIGNED: tl.constexpr, PIXELS: tl.constexpr):
    """Which of the regions at these addresses may touch the square whose first pixel is (x, y)."""
    left, across, top, down = locate_regions(boxes, scale, SIDE, ALIGNED)
    return may_touch_row(left, across, x, SIDE, PIXELS) & may_touch_row(top, down, y, SIDE, PIXELS)


@triton.jit
def cells_of(pixel, begin, cell, SIDE: tl.constexpr):
    """The first cell that may give to each pixel, and how many from there on: those that lie within a pixel of it."""
    few = cell > 2.0 / SIDE
    safe = tl.where(few, cell, 1.0)
    first = tl.floor((pixel - 1.0 - begin) / safe)
    first = tl.where(few, tl.minimum(tl.maximum(first, 0.0), SIDE * 1.0), 0.0).to(tl.int32)
    return first, tl.where(few, tl.minimum((2.0 / safe).to(tl.int32) + 2, SIDE), SIDE)


@triton.jit
def share_of(pixel, number, begin, cell, extent, SIDE: tl.constexpr, RATIO: tl.constexpr):
    """Along one axis, the weight that each pixel has in its cell `number`, times r."""
    weight = tl.zeros(pixel.shape, tl.float32)
    for one in tl.static_range(RATIO):
        before, behind, to_before, to_behind, counts = sample(begin, cell, number, one, extent, RATIO)
        weight += tl.where(counts & (pixel == before), to_before, 0.0) + tl.where(
            counts & (pixel == behind), to_behind, 0.0
        )
    return tl.where(number < SIDE, weight, 0.0)


@triton.jit(do_not_specialize=[*OF_BATCHES, "end0", "end1", "end2", "end3"])
def gather(
    upstream, boxes, order, spans, map0, map1, map2, map3,
    height0, width0, scale0, height1, width1, scale1, height2, width2, scale2, height3, width3, scale3,
    end0, end1, end2, end3, channels, pooled,
    SIDE: tl.constexpr, RATIO: tl.constexpr, ALIGNED: tl.constexpr,
    PIXELS: tl.constexpr, MEMBERS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The gradient of PIXELS x PIXELS pixels of one map; end: squares of all levels up to each."""
    image, square = (tl.program_id(0) // end3).to(tl.int64), tl.program_id(0) % end3
    level = (square >= end0).to(tl.int32) + (square >= end1).to(tl.int32) + (square >= end2).to(tl.int32)
    map, scale = select_level(level, map0, map1, map2, map3), select_level(level, scale0, scale1, scale2, scale3)
    height = select_level(level, height0, height1, height2, height3)
    width = select_level(level, width0, width1, width2, width3)
    square -= select_level(level, 0, end0, end1, end2)
    in_a_row = tl.cdiv(width, PIXELS)
    y, x = square // in_a_row * PIXELS, square % in_a_row * PIXELS
    pixel, channel = tl.arange(0, PIXELS * PIXELS), tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    row, column, real = y + pixel // PIXELS, x + pixel % PIXELS, channel < channels
    total = tl.zeros([PIXELS * PIXELS, WIDE], tl.float32)
    span, member = spans + 2 * (image * pooled + level), tl.arange(0, MEMBERS)
    last = tl.load(span + 1)
    for start in range(tl.load(span), last, MEMBERS):
        exists = start + member < last
        of = tl.load(order + start + member, exists, 0)
        touches = exists & may_touch_square(boxes + 4 * of, scale, x, y, SIDE, ALIGNED, PIXELS)
        next = tl.min(tl.where(touches, member, MEMBERS), axis=0)
        while next < MEMBERS:
            region = tl.load(order + start + next).to(tl.int64)
            cells = upstream + region * SIDE * SIDE * channels
            left, across, top, down = locate_regions(boxes + 4 * region, scale, SIDE, ALIGNED)
            first_row, rows = cells_of(row, top, down, SIDE)
            first_column, columns = cells_of(column, left, across, SIDE)
            for i in range(rows):
                of_row = share_of(row, first_row + i, top, down, height, SIDE, RATIO)
                for j in range(columns):
                    weight = of_row * share_of(column, first_column + j, left, across, width, SIDE, RATIO)
                    cell = (first_row + i) * SIDE + first_column + j
                    here = (weight > 0)[:, None] & real[None, :]
                    value = tl.load(cells + cell[:, None] * channels + channel[None, :], here, 0.0)
                    total += weight[:, None] * value.to(tl.float32)
            next = tl.min(tl.where(touches & (member > next), member, MEMBERS), axis=0)
    total = divide_rounded(total, RATIO * RATIO)
    location = ((image * height + row) * width + column)[:, None] * channels + channel[None, :]
    tl.store(map + location, total, ((row < height) & (column < width))[:, None] & real[None, :])
