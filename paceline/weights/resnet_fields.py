"""Which ResNet it is, told from the shapes of its weights: the fields of a recipe's trunk."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from paceline.models.resnet import DEPTHS


def resnet_fields(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """depth, width, stem, stem_channels, groups and group_width, as far as they are told; none where it is no ResNet.

    state  under our names: a ResNet's, or a network's that stands on one
    """
    body = next(
        (prefix for prefix in ("", "trunk.", "backbone.body.") if f"{prefix}layer1.0.conv1.weight" in state),
        None,
    )
    if body is None:
        return {}
    tensors: dict[str, Tensor] = {
        name.removeprefix(body): tensor for name, tensor in state.items() if name.startswith(body)
    }
    units = [0, 0, 0, 0]
    for name in tensors:
        if unit := re.fullmatch(r"layer([1-4])\.(\d+)\.conv1\.weight", name):
            units[int(unit[1]) - 1] = max(units[int(unit[1]) - 1], int(unit[2]) + 1)
    bottleneck = "layer1.0.conv3.weight" in tensors
    found: dict[str, Any] = {}
    stages = 4 if units[3] else 3
    depths = [
        depth
        for depth, (counts, has) in DEPTHS.items()
        if has == bottleneck and list(counts[:stages]) == units[:stages]
    ]
    # Three stages alone may be of several depths: the usual one.
    if depths:
        found["depth"] = 34 if 34 in depths else 50 if 50 in depths else depths[0]
    stem = tensors.get("conv1.weight")
    if stem is not None and stem.dim() == 4:
        found["width"] = stem.shape[0]
        found["stem"] = "small" if stem.shape[-1] == 3 else "imagenet"
        found["stem_channels"] = stem.shape[1]
    middle = tensors.get("layer1.0.conv2.weight")
    if (
        bottleneck
        and middle is not None
        and middle.dim() == 4
        and middle.shape[1]
        and stem is not None
        and stem.shape[0]
    ):
        found["groups"] = middle.shape[0] // middle.shape[1]
        found["group_width"] = middle.shape[1] * 64 // stem.shape[0]
    return found
