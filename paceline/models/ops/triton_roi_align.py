"""RoIAlign over the pyramid's levels as one kernel in Triton forward, and two backward.

Letters as in roi_align.py: B images   C channels   n regions   S cells along a region's side   r samples along a cell's side
Maps are read and written as they lie, channels_last in fp16, bf16 or fp32, and everything between is computed in fp32: no copy of a
level. A sample's place, its four weights and the order of the sums are torchvision's, without fused multiply-adds: pooled cells are
those of the torch form to the bit. Backward, a program owns a few pixels of one map and adds up what each region of that map gives
them, region by region in the order of their numbers: no atomics, so the same bits each time, and no zeros written first.
Why our own: torchvision's kernel has one level, no bf16, and contiguous maps alone; in fp16 it rounds regions and sums to fp16, and
its gradient adds with atomics. No other library that is kept and installs as a wheel has it with a gradient.
"""

# pyright: reportArgumentType=false, reportCallIssue=false
# A kernel's constants are Triton's type to pyright, and numbers here; levels are as many as LEVELS.
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from paceline.models.ops.triton_roi_align_kernels import LEVELS, gather, group_by_map, pool

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
