"""The kernels of triton_batch_norm.py, which says what they do together; its letters, and names of arguments as there.

A program of a `partial` kernel reads one part of one group, of WIDE channels, in tiles of HIGH rows; one of a `whole` kernel adds up
the PARTS parts, a power of two, of NARROW channels; one of the others has a single tile. Rows and channels outside count for nothing.
"""

# pyright: reportArgumentType=false, reportOperatorIssue=false
# A kernel's text is Triton's language, whose types are not Python's.
from __future__ import annotations

import triton
import triton.language as tl


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
