"""Which pixels and strides a detectron2 file is for: MSRA's (BGR, undivided, 1x1 strides), torchvision's, or others'."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from paceline.models.forms.ours import Facts, FormError, Tensors
from paceline.models.forms.pixels import NOTE, OURS

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
    """By the author, else by pixel_std and pixel_mean, which older files keep, else by the norms of the trunk."""
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
        # Red has ImageNet's largest mean and deviation. Where neither tells, detectron2's usual order is BGR.
        told = [row[0] - row[2] for row in (mean, std) if len(row) == 3 and row[0] != row[2]]
        if told and min(told) > 0:
            return MadeFor(False, tuple(std), False)
        return MadeFor(True, tuple(std), False, (f"its pixels were BGR (by its pixel_std {_rounded(std)}): {TURNED}",))
    body = [tensor for name, tensor in state.items() if name.endswith(("running_mean", "running_var"))]
    # Caffe2's norms are a scale and a shift: mean 0, and one variance for all channels.
    if any(bool((tensor != tensor.flatten()[0]).any()) for tensor in body if tensor.numel()):
        note = "it names no pixel_std, and its norms have statistics, which MSRA's trunks have not: taken as torchvision's, RGB"
        return MadeFor(False, OURS, False, (note,))
    note = "it names no pixel_std, and its norms are Caffe2's: taken as MSRA's"
    return MadeFor(True, (1.0, 1.0, 1.0), True, (note, NOTE))


def _rounded(row: list[float]) -> str:
    return " ".join(f"{part:.6g}" for part in row)
