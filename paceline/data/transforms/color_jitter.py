"""Random color of one sample: brightness, contrast, saturation and hue.

  hsv     each change by itself, cut to 0..255 after each, hue along the hexagon of HSV; in random order, as torchvision's
          ColorJitter. Where brightness is added (TensorFlow's way), the order is fixed: brightness, contrast, saturation, hue.
  matrix  all four as one linear map of (R, G, B, 1), cut once: saturation and hue as a scale and a turn of YIQ's color plane,
          contrast around mid-gray.
  dali    the same by two maps, rounded and cut after each: DALI's `hsv`, then its `brightness_contrast`.
  tensorflow  brightness, contrast around each channel's own mean, a factor on HSV's saturation, hue; cut once, at the end.
Pixels are float32 planes meanwhile, rounded once at the end. Pillow, which ColorJitter uses, rounds to 8 bits after each change and to
1/256 turn in hue; that is the only difference from it.

Numbers drawn, always all of them: the order (hsv with factors only), brightness, contrast, saturation, hue.
numpy's element-wise calls release the GIL and start no threads, which torch's would.
Letters: S side of the picture, pixels.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from paceline.config.maskrcnn import InstanceInput
from paceline.config.ssd import BoxInput, Jitter
from paceline.data.loader.sample_rng import SampleRng
from paceline.data.transforms.resample import scratch_array

# Shares of R, G and B in gray (ITU-R BT.601).
GRAY = (0.299, 0.587, 0.114)
MID_GRAY = 128.0
ORDER = ("brightness", "contrast", "saturation", "hue")
# The distance between corners of the hexagon of hues; `_turn` goes no further at once.
_SEXTANT = 1 / 6
_SIGN = np.int32(-(2**31))

_RGB_TO_YIQ = np.array([GRAY, (0.596, -0.274, -0.322), (0.211, -0.523, 0.312)])
# DALI's last digits differ.
_DALI_YIQ = np.array([GRAY, (0.596, -0.274, -0.321), (0.211, -0.523, 0.311)])


class ColorJitter(NamedTuple):
    """The changes of one sample's colors, as drawn."""

    kind: Jitter
    order: tuple[str, ...]  # of the changes, where each is made by itself
    factor: float  # brightness: levels times this,
    shift: float  # plus this
    contrast: float  # 1: as it is
    saturation: float  # 1: as it is
    turns: float  # of the hue; 1 is the full circle


def sample_color_jitter(random: SampleRng, settings: BoxInput | InstanceInput) -> ColorJitter | None:
    """Draw by the settings' fields `jitter` to `hue`; None, and nothing drawn, where colors stay."""
    if settings.color_jitter == "none":
        return None
    order = list(ORDER)
    if settings.color_jitter == "hsv" and settings.parity.brightness_mode == "multiply":
        for last in range(len(order) - 1, 0, -1):
            other = random.integer(0, last + 1)
            order[last], order[other] = order[other], order[last]
    center = 1.0 if settings.parity.brightness_mode == "multiply" else 0.0
    brightness = random.uniform(center - settings.brightness, center + settings.brightness)
    contrast = random.uniform(1 - settings.contrast, 1 + settings.contrast)
    saturation = random.uniform(1 - settings.saturation, 1 + settings.saturation)
    turns = random.uniform(-settings.hue, settings.hue)
    factor, shift = (brightness, 0.0) if settings.parity.brightness_mode == "multiply" else (1.0, 255.0 * brightness)
    return ColorJitter(settings.color_jitter, tuple(order), factor, shift, contrast, saturation, turns)


def apply_color_jitter(pixels: np.ndarray, color: ColorJitter) -> None:
    """Change the colors of (S, S, 3) uint8 RGB pixels in place."""
    if color.kind == "matrix":
        apply_color_matrix(pixels, color_matrix(*color[2:]))
        return
    if color.kind == "dali":
        apply_color_matrix(pixels, color_matrix(1.0, 0.0, 1.0, color.saturation, color.turns, yiq=_DALI_YIQ))
        apply_color_matrix(pixels, color_matrix(color.factor, color.shift, color.contrast, 1.0, 0.0, yiq=_DALI_YIQ))
        return
    planes, work = _planes(*pixels.shape[:2])
    _load(pixels, planes)
    if color.kind == "tensorflow":
        _as_tensorflow(planes, color, work)
        _store(planes, pixels)
        return
    for change in color.order:
        if change == "brightness":
            _scale(planes, color.factor, color.shift)
        elif change == "contrast":
            means = planes.mean(axis=(1, 2))
            gray = sum(share * float(mean) for share, mean in zip(GRAY, means))
            _scale(planes, color.contrast, (1 - color.contrast) * gray)
        elif change == "saturation":
            _saturate(planes, color.saturation, work)
        else:
            adjust_hue(planes, color.turns, work)
    _store(planes, pixels)


def color_matrix(
    factor: float, shift: float, contrast: float, saturation: float, turns: float, *, yiq: np.ndarray = _RGB_TO_YIQ
) -> np.ndarray:
    """(3, 4) float64, from (R, G, B, 1) to RGB, levels 0..255.

    Saturation and hue, then contrast around MID_GRAY, then brightness: `factor` times, plus `shift`.
    turns  of the hue, positive from red to yellow, as in HSV
    yiq    (3, 3), from RGB to YIQ
    """
    cosine, sine = math.cos(2 * math.pi * turns), math.sin(2 * math.pi * turns)
    # YIQ's color plane has yellow clockwise of red.
    chroma = np.array(
        [[1, 0, 0], [0, saturation * cosine, saturation * sine], [0, -saturation * sine, saturation * cosine]]
    )
    matrix = np.empty((3, 4))
    matrix[:, :3] = factor * contrast * (np.linalg.inv(yiq) @ chroma @ yiq)
    matrix[:, 3] = factor * (1 - contrast) * MID_GRAY + shift
    return matrix


def apply_color_matrix(pixels: np.ndarray, matrix: np.ndarray) -> None:
    """Map (S, S, 3) uint8 pixels in place by a (3, 4) matrix; rounded and cut to 0..255."""
    planes, work = _planes(*pixels.shape[:2])
    _load(pixels, planes)
    mapped, product = work[:3], work[3]
    for row, target in zip(matrix.tolist(), mapped):
        np.multiply(planes[0], row[0], out=target)
        for plane, weight in zip(planes[1:], row[1:3]):
            target += np.multiply(plane, weight, out=product)
        target += row[3]
    np.clip(mapped, 0, 255, out=mapped)
    _store(mapped, pixels)


def adjust_hue(planes: np.ndarray, turns: float, work: np.ndarray) -> None:
    """Turn the hue of (3, S, S) float32 planes, in place; the largest and smallest of R, G, B stay in each pixel.

    turns  1 is the full circle; positive from red to yellow
    work   (7, S, S) float32, overwritten
    """
    steps = math.ceil(abs(turns) / _SEXTANT)
    for _ in range(steps):
        _turn(planes, 6 * turns / steps, work)


def _turn(planes: np.ndarray, sextants: float, work: np.ndarray) -> None:
    """At most one sextant. No division and no choice by sector: hues are measured in sextants times the chroma C.

    With q = |G - B| and u = (largest - R), a hue lies max(q + u, 3 u - q) from red, towards green where G > B. (R is
    largest: u = 0, distance q. R is in the middle: q = C, distance C + u. R is smallest: u = C, distance 3 C - q.)
    A channel is largest up to C from its own hue, smallest from 2 C on, and linear between.
    """
    red, green, blue = planes
    largest, smallest, chroma, hue, opposite, falling, span = work
    np.maximum(np.maximum(red, green, out=largest), blue, out=largest)
    np.minimum(np.minimum(red, green, out=smallest), blue, out=smallest)
    np.subtract(largest, smallest, out=chroma)

    towards_green, below = np.subtract(green, blue, out=falling), np.subtract(largest, red, out=span)
    apart = np.abs(towards_green, out=opposite)
    np.add(apart, below, out=hue)
    below *= 3
    below -= apart
    np.maximum(hue, below, out=hue)
    # The sign bit of one on the other: copysign, but eight times as fast.
    signs = towards_green.view(np.int32)
    signs &= _SIGN
    bits = hue.view(np.int32)
    bits |= signs

    hue += np.multiply(chroma, sextants, out=span)
    np.multiply(chroma, 3, out=opposite)
    np.multiply(chroma, 2, out=span)
    np.subtract(largest, span, out=falling)
    green_hue, blue_hue = green, blue  # the planes themselves: the old colors are not read again
    np.subtract(hue, span, out=green_hue)
    np.add(hue, span, out=blue_hue)
    for distance, plane in ((hue, red), (green_hue, green), (blue_hue, blue)):
        np.abs(distance, out=plane)  # from the channel's own hue, 0 to 6 C, in the direction without another zero
        plane -= opposite
        np.abs(plane, out=plane)
        plane += falling
        np.maximum(plane, smallest, out=plane)
        np.minimum(plane, largest, out=plane)


def _as_tensorflow(planes: np.ndarray, color: ColorJitter, work: np.ndarray) -> None:
    """tf.image's adjust_brightness, _contrast, _saturation and _hue one after the other, levels as they come; then cut."""
    planes *= color.factor
    planes += color.shift
    means = planes.mean(axis=(1, 2), dtype=np.float64).astype(np.float32)[:, None, None]
    planes -= means
    planes *= color.contrast
    planes += means
    _saturate_hsv(planes, color.saturation, work)
    adjust_hue(planes, color.turns, work)
    np.clip(planes, 0, 255, out=planes)


def _saturate_hsv(planes: np.ndarray, factor: float, work: np.ndarray) -> None:
    """HSV's saturation times `factor`, at most 1: the largest of R, G, B stays, the others' distance from it is scaled.

    A pixel without a level above 0 has saturation 0 in HSV, and becomes gray.
    """
    largest, smallest, ratio = work[0], work[1], work[2]
    np.maximum(np.maximum(planes[0], planes[1], out=largest), planes[2], out=largest)
    np.minimum(np.minimum(planes[0], planes[1], out=smallest), planes[2], out=smallest)
    np.subtract(largest, smallest, out=ratio)
    np.maximum(ratio, 1e-6, out=ratio)  # gray: whatever its distances of 0 are scaled by
    np.divide(largest, ratio, out=ratio)  # the factor with which the saturation would be 1
    np.clip(ratio, 0, factor, out=ratio)
    for plane in planes:
        plane -= largest
        plane *= ratio
        plane += largest


def _saturate(planes: np.ndarray, factor: float, work: np.ndarray) -> None:
    """Between each pixel's gray and its color; beyond the color where factor > 1."""
    gray, product = work[0], work[1]
    np.multiply(planes[0], (1 - factor) * GRAY[0], out=gray)
    for plane, share in zip(planes[1:], GRAY[1:]):
        gray += np.multiply(plane, (1 - factor) * share, out=product)
    planes *= factor
    planes += gray
    np.clip(planes, 0, 255, out=planes)


def _scale(planes: np.ndarray, factor: float, shift: float) -> None:
    planes *= factor
    if shift:
        planes += shift
    np.clip(planes, 0, 255, out=planes)


def _planes(height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """(3, height, width) and (7, height, width) float32 of this thread."""
    planes = scratch_array("planes", 10, height, width, dtype=np.float32)
    return planes[:3], planes[3:]


def _load(pixels: np.ndarray, planes: np.ndarray) -> None:
    for channel in range(3):
        np.copyto(planes[channel], pixels[:, :, channel])


def _store(planes: np.ndarray, pixels: np.ndarray) -> None:
    """Planes in 0..255 to uint8, halves up."""
    planes += 0.5
    for channel in range(3):
        np.copyto(pixels[:, :, channel], planes[channel], casting="unsafe")
