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

# pyright: reportArgumentType=false
# A kernel's constants are Triton's type to pyright, and numbers here.
from __future__ import annotations

import torch
import triton
from torch import Tensor

from paceline.models.layers import triton_batch_norm_kernels as kernels

# A tile's numbers, 16 to a thread, and its most channels: rows of 128 bytes in bf16.
TILE, WIDEST = 4096, 64
# Without fused multiply-adds the mask that is computed again is the output's to the bit.
OPTIONS = {"enable_fp_fusion": False, "num_warps": 8}
# Programs of a kernel that sums, about twice what a large GPU holds and the same on every GPU, as sums must be; channels of a program
# that adds up parts.
PROGRAMS, NARROW = 1024, 8


def plan_tiles(images: Tensor, groups: int) -> tuple[int, ...]:
    """How images are cut into programs: N, C, blocks of channels, rows and channels of a tile, rows of a part, P."""
    channels = images.shape[1]
    rows = images.numel() // channels // groups
    wide = max(8, min(WIDEST, triton.next_power_of_2(channels)))
    blocks, high = triton.cdiv(channels, wide), TILE // wide
    tiles = triton.cdiv(rows, high)
    span = high * triton.cdiv(tiles, max(1, min(tiles, PROGRAMS // (blocks * groups))))
    return rows, channels, blocks, high, wide, span, triton.cdiv(rows, span)


@torch.library.custom_op("paceline::batch_norm_forward", mutates_args=())
def batch_norm_forward(
    images: Tensor, shortcut: Tensor | None, weight: Tensor, bias: Tensor, groups: int, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(B, C, H, W), channels_last, of a floating type -> the normalized images, plus the shortcut, above 0 if `relu`.

    shortcut  as the images, or None; only with `relu`
    weight, bias  (C,) float32; G divides B, and a group has a row
    return    output as the images; kept (G, 2, C) float32, mean and 1 / standard deviation of each group; statistics (2, C) float32,
              sum over the groups of (mean, unbiased variance); bits (B H W, C / 8) uint8, where ReLU let pass, empty without shortcut
    """
    results = output, kept, statistics, bits = _outputs(images, shortcut, weight, groups)
    rows, channels, blocks, high, wide, span, parts = plan_tiles(images, groups)
    sums = weight.new_empty(groups, parts, 2, channels)
    kernels.partial_moments[blocks, parts, groups](images, sums, rows, span, channels, high, wide, **OPTIONS)
    sizes = rows, span, parts, channels, groups, triton.next_power_of_2(parts), NARROW
    kernels.whole_moments[(triton.cdiv(channels, NARROW),)](sums, kept, statistics, eps, *sizes, **OPTIONS)
    sizes = rows, channels, blocks, relu, high, wide
    kernels.normalize[blocks * triton.cdiv(rows, high), groups](
        images, shortcut, weight, bias, kept, output, bits, *sizes, **OPTIONS
    )
    return results


@torch.library.custom_op("paceline::batch_norm_backward", mutates_args=())
def batch_norm_backward(
    upstream: Tensor, images: Tensor, weight: Tensor, bias: Tensor, kept: Tensor, bits: Tensor, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The output's gradient, laid out and typed as the images, and what the forward was given and returned.

    return  gradient of the images; of the shortcut, empty without one; (2, C) float32, of weight and bias
    """
    results = of_images, of_shortcut, of_line = _gradients(images, weight, bits)
    groups, (rows, channels, blocks, high, wide, span, parts) = len(kept), plan_tiles(images, len(kept))
    sums, slopes = weight.new_empty(groups, parts, 2, channels), torch.empty_like(kept)
    masked, line = of_shortcut if bits.numel() else None, (images, weight, bias, kept)
    kernels.partial_slopes[blocks, parts, groups](
        upstream, *line, bits, masked, sums, rows, span, channels, relu, high, wide, **OPTIONS
    )
    sizes = rows, parts, channels, groups, triton.next_power_of_2(parts), NARROW
    kernels.whole_slopes[(triton.cdiv(channels, NARROW),)](sums, slopes, of_line, *sizes, **OPTIONS)
    sizes = rows, channels, blocks, relu and masked is None, high, wide
    kernels.image_gradients[blocks * triton.cdiv(rows, high), groups](
        upstream if masked is None else masked, *line, slopes, of_images, *sizes, **OPTIONS
    )
    return results


def _outputs(images: Tensor, shortcut: Tensor | None, weight: Tensor, groups: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
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
