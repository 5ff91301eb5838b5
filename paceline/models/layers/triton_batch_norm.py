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

# pyright: reportArgumentType=false, reportOperatorIssue=false
# A kernel's text is Triton's language, whose types are not Python's.
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

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
    partial_moments[blocks, parts, groups](images, sums, rows, span, channels, high, wide, **OPTIONS)
    sizes = rows, span, parts, channels, groups, triton.next_power_of_2(parts), NARROW
    whole_moments[(triton.cdiv(channels, NARROW),)](sums, kept, statistics, eps, *sizes, **OPTIONS)
    sizes = rows, channels, blocks, relu, high, wide
    normalize[blocks * triton.cdiv(rows, high), groups](
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
    partial_slopes[blocks, parts, groups](
        upstream, *line, bits, masked, sums, rows, span, channels, relu, high, wide, **OPTIONS
    )
    sizes = rows, parts, channels, groups, triton.next_power_of_2(parts), NARROW
    whole_slopes[(triton.cdiv(channels, NARROW),)](sums, slopes, of_line, *sizes, **OPTIONS)
    sizes = rows, channels, blocks, relu and masked is None, high, wide
    image_gradients[blocks * triton.cdiv(rows, high), groups](
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


# The  A program of a `partial` one reads one part of one group, of WIDE channels, in tiles of HIGH rows; one of a `whole`
# kernel adds up the PARTS parts, a power of two, of NARROW channels; one of the others has a single tile. Rows and channels outside
# count for nothing.


@triton.jit
def line_of(kept, weight, bias, group, channel, real, channels):
    """A group's mean, 1 / standard deviation, weight and bias of a program's channels."""
    own = kept + group * 2 * channels + channel
    mean, inverse = tl.load(own, real, 0.0), tl.load(own + channels, real, 0.0)
    return mean, inverse, tl.load(weight + channel, real, 0.0), tl.load(bias + channel, real, 0.0)


@triton.jit
def passes(centered, inverse, weight, bias):
    """Where ReLU lets the normalized images pass; like torch's, it lets NaN pass."""
    return ~(centered * (inverse * weight)[None, :] + bias[None, :] <= 0)


@triton.jit
def partial_moments(images, sums, rows, span, channels, HIGH: tl.constexpr, WIDE: tl.constexpr):
    """Mean of a part's rows and the sum of squares around it, taken around the mean of its first tile: nothing cancels."""
    channel, row = tl.program_id(0) * WIDE + tl.arange(0, WIDE), tl.arange(0, HIGH)
    part, group = tl.program_id(1), tl.program_id(2)
    count = tl.minimum(rows - part * span, span)
    start = images + (group.to(tl.int64) * rows + part * span) * channels
    real, location = channel < channels, row[:, None] * channels + channel[None, :]
    first = tl.load(start + location, (row < count)[:, None] & real[None, :], 0.0).to(tl.float32)
    near = tl.sum(first, axis=0) / tl.minimum(count, HIGH)
    total, squares = tl.zeros([HIGH, WIDE], tl.float32), tl.zeros([HIGH, WIDE], tl.float32)
    for begin in range(0, count, HIGH):
        here = (begin + row < count)[:, None] & real[None, :]
        value = tl.load(start + begin * channels + location, here, 0.0).to(tl.float32)
        apart = tl.where(here, value - near[None, :], 0.0)
        total += apart
        squares += apart * apart
    rest, to = tl.sum(total, axis=0), sums + (group * tl.num_programs(1) + part) * 2 * channels + channel
    tl.store(to, near + rest / count, real)
    tl.store(to + channels, tl.sum(squares, axis=0) - rest * rest / count, real)


@triton.jit
def whole_moments(
    sums, kept, statistics, eps, rows, span, parts, channels, groups, PARTS: tl.constexpr, NARROW: tl.constexpr
):
    """Each group's moments from its parts' (Chan et al. 1983), and their sum over the groups."""
    channel, part = tl.program_id(0) * NARROW + tl.arange(0, NARROW), tl.arange(0, PARTS)
    real = channel < channels
    here, location = (part < parts)[:, None] & real[None, :], part[:, None] * 2 * channels + channel[None, :]
    count = tl.minimum(rows - part * span, span).to(tl.float32)[:, None]
    means, variances = tl.zeros([NARROW], tl.float32), tl.zeros([NARROW], tl.float32)
    for group in range(groups):
        own = sums + group * parts * 2 * channels + location
        mean_of, spread_of = tl.load(own, here, 0.0), tl.load(own + channels, here, 0.0)
        mean = tl.sum(tl.where(here, mean_of * count, 0.0), axis=0) / rows
        apart = mean_of - mean[None, :]
        spread = tl.sum(tl.where(here, spread_of + count * apart * apart, 0.0), axis=0)
        # Below 0 by rounding alone; NaN stays NaN.
        spread = tl.where(spread < 0, 0.0, spread)
        to = kept + group * 2 * channels + channel
        tl.store(to, mean, real)
        tl.store(to + channels, tl.rsqrt(spread / rows + eps), real)
        means += mean
        variances += spread / tl.maximum(rows - 1, 1)
    tl.store(statistics + channel, means, real)
    tl.store(statistics + channels + channel, variances, real)


@triton.jit
def normalize(
    images, shortcut, weight, bias, kept, output, bits, rows, channels, blocks,
    RELU: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """One tile of the output, and where there is a shortcut its bits: a byte for eight channels, the first in the lowest bit."""
    block, first, group = tl.program_id(0) % blocks, tl.program_id(0) // blocks * HIGH, tl.program_id(1)
    channel, row = block * WIDE + tl.arange(0, WIDE), tl.arange(0, HIGH)
    real, there = channel < channels, first + row < rows
    here, base = there[:, None] & real[None, :], group.to(tl.int64) * rows + first
    mean, inverse, slope, shift = line_of(kept, weight, bias, group, channel, real, channels)
    location = base * channels + (row[:, None] * channels + channel[None, :])
    value = tl.load(images + location, here, 0.0).to(tl.float32) - mean[None, :]
    value = value * (inverse * slope)[None, :] + shift[None, :]
    if shortcut is not None:
        value += tl.load(shortcut + location, here, 0.0).to(tl.float32)
        passed = tl.reshape((~(value <= 0)).to(tl.int32), [HIGH, WIDE // 8, 8])
        byte, bytes = block * (WIDE // 8) + tl.arange(0, WIDE // 8), tl.cdiv(channels, 8)
        to = bits + base * bytes + (row[:, None] * bytes + byte[None, :])
        packed = tl.sum(passed << tl.arange(0, 8)[None, None, :], axis=2)
        tl.store(to, packed.to(tl.uint8), there[:, None] & (byte < bytes)[None, :])
    if RELU:
        value = tl.where(value <= 0, 0.0, value)
    tl.store(output + location, value, here)


@triton.jit
def partial_slopes(
    upstream, images, weight, bias, kept, bits, masked, sums, rows, span, channels,
    RELU: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Sums over a part's rows of the gradient behind ReLU and of its product with the normalized images; with bits, that gradient."""
    channel, row = tl.program_id(0) * WIDE + tl.arange(0, WIDE), tl.arange(0, HIGH)
    part, group = tl.program_id(1), tl.program_id(2)
    count = tl.minimum(rows - part * span, span)
    real, start = channel < channels, group.to(tl.int64) * rows + part * span
    mean, inverse, slope, shift = line_of(kept, weight, bias, group, channel, real, channels)
    total, products = tl.zeros([HIGH, WIDE], tl.float32), tl.zeros([HIGH, WIDE], tl.float32)
    for begin in range(0, count, HIGH):
        here = (begin + row < count)[:, None] & real[None, :]
        location = (start + begin) * channels + (row[:, None] * channels + channel[None, :])
        grad = tl.load(upstream + location, here, 0.0).to(tl.float32)
        centered = tl.load(images + location, here, 0.0).to(tl.float32) - mean[None, :]
        if masked is not None:
            bytes = tl.cdiv(channels, 8)
            byte = tl.load(bits + (start + begin) * bytes + (row[:, None] * bytes + (channel // 8)[None, :]), here, 0)
            grad = tl.where((byte.to(tl.int32) >> (channel % 8)[None, :]) & 1 == 1, grad, 0.0)
            tl.store(masked + location, grad, here)
        elif RELU:
            grad = tl.where(passes(centered, inverse, slope, shift), grad, 0.0)
        total += grad
        products += grad * centered
    to = sums + (group * tl.num_programs(1) + part) * 2 * channels + channel
    tl.store(to, tl.sum(total, axis=0), real)
    tl.store(to + channels, tl.sum(products, axis=0) * inverse, real)


@triton.jit
def whole_slopes(sums, slopes, of_line, rows, parts, channels, groups, PARTS: tl.constexpr, NARROW: tl.constexpr):
    """Both sums of each group over its rows, and over all groups the gradients of weight and bias."""
    channel, part = tl.program_id(0) * NARROW + tl.arange(0, NARROW), tl.arange(0, PARTS)
    real = channel < channels
    here, location = (part < parts)[:, None] & real[None, :], part[:, None] * 2 * channels + channel[None, :]
    of_weight, of_bias = tl.zeros([NARROW], tl.float32), tl.zeros([NARROW], tl.float32)
    for group in range(groups):
        own, to = sums + group * parts * 2 * channels + location, slopes + group * 2 * channels + channel
        total = tl.sum(tl.load(own, here, 0.0), axis=0)
        products = tl.sum(tl.load(own + channels, here, 0.0), axis=0)
        tl.store(to, total / rows, real)
        tl.store(to + channels, products / rows, real)
        of_weight += products
        of_bias += total
    tl.store(of_line + channel, of_weight, real)
    tl.store(of_line + channels + channel, of_bias, real)


@triton.jit
def image_gradients(
    upstream, images, weight, bias, kept, slopes, of_images, rows, channels, blocks,
    RELU: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """One tile of the gradient of the images; RELU: the gradient that is read has not been masked."""
    block, first, group = tl.program_id(0) % blocks, tl.program_id(0) // blocks * HIGH, tl.program_id(1)
    channel, row = block * WIDE + tl.arange(0, WIDE), tl.arange(0, HIGH)
    real, there = channel < channels, first + row < rows
    here = there[:, None] & real[None, :]
    mean, inverse, slope, shift = line_of(kept, weight, bias, group, channel, real, channels)
    own = slopes + group * 2 * channels + channel
    total, product = tl.load(own, real, 0.0), tl.load(own + channels, real, 0.0)
    location = (group.to(tl.int64) * rows + first) * channels + (row[:, None] * channels + channel[None, :])
    grad = tl.load(upstream + location, here, 0.0).to(tl.float32)
    centered = tl.load(images + location, here, 0.0).to(tl.float32) - mean[None, :]
    if RELU:
        grad = tl.where(passes(centered, inverse, slope, shift), grad, 0.0)
    grad = (grad - total[None, :]) - centered * (inverse * product)[None, :]
    tl.store(of_images + location, grad * (inverse * slope)[None, :], here)
