"""A stem for our pixels, made of one for others: Caffe's were BGR, 0 to 255 less a mean, and not divided by a deviation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.models.layers import IMAGENET_STD
from paceline.weights.forms.ours import COLOURS, KNOWN_COLOURS, Facts, FormError, Tensors, UnknownColours

NOTE = "its pixels were BGR from 0 to 255 less a mean: the stem was turned to RGB and scaled for ImageNet's deviation"
# ImageNet's deviation of R, G and B in 0..255.
OURS = tuple(255 * std for std in IMAGENET_STD)


def from_pixels(stem: Tensor, std: Sequence[float], *, bgr: bool) -> Tensor:
    """(O, 3, h, w) for channels in 0..255 less a mean, divided by `std` in their own order -> the same response to our R, G and B.

    Exact, borders included, where the mean that was taken off is ImageNet's: a padded zero is then the mean in both.
    """
    scale = (
        stem.new_tensor(OURS) / stem.new_tensor(std).flip(0) if bgr else stem.new_tensor(OURS) / stem.new_tensor(std)
    )
    return (stem.flip(1) if bgr else stem) * scale.view(1, 3, 1, 1)


def from_caffe(stem: Tensor) -> Tensor:
    """`from_pixels` of Caffe's: B, G and R, not divided."""
    return from_pixels(stem, (1.0, 1.0, 1.0), bgr=True)


# Which pixels and strides a detectron2 file is for: MSRA's (BGR, undivided, 1x1 strides), torchvision's, or others'.


TORCHVISION = "torchvision"  # the author of files whose trunk is torchvision's
TURNED = "the stem was turned to RGB"


@dataclass(frozen=True)
class MadeFor:
    """What a detectron2 trunk was made for."""

    bgr: bool
    std: tuple[float, ...]  # of each channel in 0..255, in its own order
    msra: bool  # whether a bottleneck's first convolution strides
    notes: tuple[str, ...] = ()


def made_for(saved: Tensors, state: Tensors, facts: Facts) -> MadeFor:
    """By the author, else by pixel_std and pixel_mean, which older files keep, else by the norms of the trunk.

    Raises UnknownColours where none of them tells, and `facts` does not say what the user knows of it.
    """
    if facts.get("__author__") == TORCHVISION:
        return MadeFor(False, OURS, False)
    mean, std = (
        [float(part) for part in saved.get(name, torch.zeros(0)).flatten()] for name in ("pixel_mean", "pixel_std")
    )
    if len(std) == 3:
        if not all(0 < part < math.inf for part in std):
            raise FormError(f"its pixel_std {std} is no deviation")
        if std[0] <= 2:
            return MadeFor(True, tuple(std), True, (NOTE,))
        if _is_bgr((mean, std), facts):
            return MadeFor(True, tuple(std), False, (f"its pixels were BGR, divided by {_rounded(std)}: {TURNED}",))
        return MadeFor(False, tuple(std), False)
    body = [tensor for name, tensor in state.items() if name.endswith(("running_mean", "running_var"))]
    # Caffe2's norms are a scale and a shift: mean 0, and one variance for all channels.
    if any(bool((tensor != tensor.flatten()[0]).any()) for tensor in body if tensor.numel()):
        note = "it names no pixel_std, and its norms have statistics, which MSRA's trunks have not: taken as divided by ImageNet's"
        if _is_bgr((mean,), facts):
            return MadeFor(True, OURS[::-1], False, (f"{note}, BGR", TURNED))
        return MadeFor(False, OURS, False, (f"{note}, RGB",))
    note = "it names no pixel_std, and its norms are Caffe2's: taken as MSRA's"
    return MadeFor(True, (1.0, 1.0, 1.0), True, (note, NOTE))


def _is_bgr(rows: Sequence[Sequence[float]], facts: Facts) -> bool:
    """By means and deviations, of which red has ImageNet's largest; else by what was asked. Raises UnknownColours."""
    told = [row[0] - row[2] for row in rows if len(row) == 3 and row[0] != row[2]]
    if told:
        return min(told) <= 0
    if facts.get(COLOURS) not in KNOWN_COLOURS:
        raise UnknownColours(
            "nothing in it says whether its pixels were RGB or BGR, and the other order gives other outputs"
        )
    return facts[COLOURS] == "bgr"


def _rounded(row: list[float]) -> str:
    return " ".join(f"{part:.6g}" for part in row)
