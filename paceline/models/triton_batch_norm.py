"""BatchNorm of G groups of images, with the sum with a shortcut and the ReLU behind it, as three kernels in Triton each way.

Letters: B images   C channels   H, W pixels   G groups of consecutive images   N rows of a group, B / G x H x W   P parts of a group
channels_last images are B x H x W rows of C numbers. Forward: each part's mean and spread; each group's, from its parts; the output,
and with a shortcut a bit for each number that says whether ReLU let it pass. Backward: the two sums that the input's gradient needs,
by parts and then by groups; the gradients. Without a shortcut the mask of ReLU is computed again from the images, with one the bits
are read, and the shortcut's gradient is what the last kernel reads in place of the mask.
So images are read twice and written once, forward; backward they and the output's gradient are read twice, and a gradient is written.
Numbers of fp16 and bf16 are read as they are, everything is computed in fp32, and sums have one order: the same bits each time.
Why our own: cuDNN's fused BatchNorm (CUDNN_BATCHNORM_OPS_BN_ADD_ACTIVATION) is not behind torch's operation, which takes no shortcut
and no ReLU. Its frontend's graph of them chooses its engine on a device, so nothing could be proven without one, and has no groups.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from paceline.models import triton_batch_norm_kernels as kernels

# A tile's numbers, 16 to a thread, and its most channels: rows of 128 bytes in bf16.
TILE, WIDEST = 4096, 64
# Without fused multiply-adds the mask that is computed again is the output's to the bit.
OPTIONS = {"enable_fp_fusion": False, "num_warps": 8}
# Programs of a kernel that sums, about twice what a large GPU holds; a constant, so that sums are the same on every GPU.
PROGRAMS = 1024
NARROW = 8  # channels of a program that adds up parts


class Cut(NamedTuple):
    """How images are cut into programs: N, C, blocks of channels, rows and channels of a tile, rows of a part, P."""

    rows: int
    channels: int
    blocks: int
    high: int
    wide: int
    span: int
    parts: int

    @classmethod
    def of(cls, images: Tensor, groups: int) -> Cut:
        channels = images.shape[1]
        rows = images.numel() // channels // groups
        wide = max(8, min(WIDEST, triton.next_power_of_2(channels)))
        blocks, high = triton.cdiv(channels, wide), TILE // wide
        tiles = triton.cdiv(rows, high)
        span = high * triton.cdiv(tiles, max(1, min(tiles, PROGRAMS // (blocks * groups))))
        return cls(rows, channels, blocks, high, wide, span, triton.cdiv(rows, span))


@torch.library.custom_op("paceline::batch_norm_forward", mutates_args=())
def batch_norm_forward(
    images: Tensor, shortcut: Tensor | None, weight: Tensor, bias: Tensor, groups: int, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(B, C, H, W), channels_last, of a floating type -> the normalised images, plus the shortcut, above 0 if `relu`.

    shortcut  as the images, or None; only with `relu`
    weight, bias  (C,) float32; G divides B, and a group has a row
    return    output as the images; kept (G, 2, C) float32, mean and 1 / standard deviation of each group; statistics (2, C) float32,
              sum over the groups of (mean, unbiased variance); bits (B H W, C / 8) uint8, where ReLU let pass, empty without shortcut
    """
    results = output, kept, statistics, bits = _outputs(images, shortcut, weight, groups)
    cut = Cut.of(images, groups)
    sums = weight.new_empty(groups, cut.parts, 2, cut.channels)
    grid = cut.blocks, cut.parts, groups
    kernels.partial_moments[grid](images, sums, cut.rows, cut.span, cut.channels, cut.high, cut.wide, **OPTIONS)
    kernels.whole_moments[(triton.cdiv(cut.channels, NARROW),)](
        sums, kept, statistics, eps, cut.rows, cut.span, cut.parts, cut.channels, groups,
        triton.next_power_of_2(cut.parts), NARROW, **OPTIONS,
    )  # fmt: skip
    kernels.normalise[(cut.blocks * triton.cdiv(cut.rows, cut.high), groups)](
        images, shortcut, weight, bias, kept, output, bits, cut.rows, cut.channels, cut.blocks,
        relu, cut.high, cut.wide, **OPTIONS,
    )  # fmt: skip
    return results


@torch.library.custom_op("paceline::batch_norm_backward", mutates_args=())
def batch_norm_backward(
    upstream: Tensor, images: Tensor, weight: Tensor, bias: Tensor, kept: Tensor, bits: Tensor, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The output's gradient, laid out and typed as the images, and what the forward was given and returned.

    return  gradient of the images; of the shortcut, empty without one; (2, C) float32, of weight and bias
    """
    results = of_images, of_shortcut, of_line = _gradients(images, weight, bits)
    groups, cut = len(kept), Cut.of(images, len(kept))
    sums = weight.new_empty(groups, cut.parts, 2, cut.channels)
    slopes = torch.empty_like(kept)
    masked = of_shortcut if bits.numel() else None
    kernels.partial_slopes[cut.blocks, cut.parts, groups](
        upstream, images, weight, bias, kept, bits, masked, sums, cut.rows, cut.span, cut.channels,
        relu, cut.high, cut.wide, **OPTIONS,
    )  # fmt: skip
    kernels.whole_slopes[(triton.cdiv(cut.channels, NARROW),)](
        sums, slopes, of_line, cut.rows, cut.parts, cut.channels, groups,
        triton.next_power_of_2(cut.parts), NARROW, **OPTIONS,
    )  # fmt: skip
    kernels.image_gradients[(cut.blocks * triton.cdiv(cut.rows, cut.high), groups)](
        upstream if masked is None else masked, images, weight, bias, kept, slopes, of_images,
        cut.rows, cut.channels, cut.blocks, relu and masked is None, cut.high, cut.wide, **OPTIONS,
    )  # fmt: skip
    return results


def _outputs(
    images: Tensor, shortcut: Tensor | None, weight: Tensor, groups: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Memory for what `batch_norm_forward` returns."""
    channels = images.shape[1]
    rows = 0 if shortcut is None else images.shape[0] * images.shape[2] * images.shape[3]
    bits = images.new_empty((rows, (channels + 7) // 8), dtype=torch.uint8)
    return torch.empty_like(images), weight.new_empty(groups, 2, channels), weight.new_empty(2, channels), bits


def _gradients(images: Tensor, weight: Tensor, bits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for what `batch_norm_backward` returns."""
    of_shortcut = torch.empty_like(images) if bits.numel() else images.new_empty(0)
    return torch.empty_like(images), of_shortcut, weight.new_empty(2, len(weight))


batch_norm_forward.register_fake(
    lambda images, shortcut, weight, bias, groups, *_: _outputs(images, shortcut, weight, groups)
)
batch_norm_backward.register_fake(lambda _, images, weight, bias, kept, bits, relu: _gradients(images, weight, bits))


class FusedBatchNorm(torch.autograd.Function):
    """Both operations as one step of autograd: (output, statistics), the statistics without a gradient."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx, images: Tensor, shortcut: Tensor | None, weight: Tensor, bias: Tensor, groups: int, eps: float, relu: bool
    ) -> tuple[Tensor, Tensor]:
        joins = shortcut is not None
        shortcut = shortcut.contiguous(memory_format=torch.channels_last) if joins else None
        output, kept, statistics, bits = batch_norm_forward(images, shortcut, weight, bias, groups, eps, relu)
        ctx.save_for_backward(images, weight, bias, kept, bits)
        ctx.relu, ctx.joins = relu, joins
        ctx.mark_non_differentiable(statistics)
        return output, statistics

    @staticmethod
    def backward(ctx, upstream: Tensor, _: Tensor):  # type: ignore[override]
        images, weight, bias, kept, bits = ctx.saved_tensors
        upstream = upstream.contiguous(memory_format=torch.channels_last)
        of_images, of_shortcut, of_line = batch_norm_backward(upstream, images, weight, bias, kept, bits, ctx.relu)
        return of_images, of_shortcut if ctx.joins else None, of_line[0], of_line[1], None, None, None
