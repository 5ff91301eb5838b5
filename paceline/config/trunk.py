"""The fields of a recipe that choose the network's trunk, shared by all workloads, and which of them cannot be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from paceline.config.bounds import AboveZero, Count, Share

RESNET = "resnet"
FAMILIES = (RESNET, "timm")  # what may stand before the "/" of --model.trunk; models/trunk.py makes them
# Of your own: what stands there -> (what stands behind it, the recipe's fields, the form) -> a trunk.
TRUNKS: dict[str, Callable[[str, Any, Any], Any]] = {}
# Of ResNets; models/resnet.py has their stages.
Depth = Literal[10, 18, 34, 50, 101, 152, 200, 269]
StrideIn = Literal["3x3", "1x1"]
Padding = Literal["both", "end"]


@dataclass(frozen=True)
class TrunkModel:
    """Which trunk a network stands on. Defaults are ResNet-50's."""

    trunk: str = RESNET  # resnet, or timm/NAME as timm has it: depth, width, groups and bn_eps are resnet's alone
    depth: Depth = 50  # layers of the ResNet; up to 34 of basic blocks, above of bottlenecks
    width: Count = 64  # filters of the stem; the stages have 1, 2, 4 and 8 times as many (4 times that from depth 50)
    groups: Count = 1  # ResNeXt: parts of a bottleneck's 3x3 convolution (32)
    group_width: int = 64  # ResNeXt: filters of a part in the first stage at width 64 (4, 8); 128 and groups 1: wide
    stride_in: StrideIn = "3x3"  # which convolution of a bottleneck strides; 1x1: MSRA's and detectron2's ResNets
    padding: Padding = "both"  # where it strides, even sides are padded on both, or at their end alone (TensorFlow)
    bn_eps: AboveZero = 1e-5  # BatchNorm epsilon
    bn_momentum: Share = 0.1  # weight of a step's statistics in the running ones (PyTorch's sense)


def trunk_rules(model: TrunkModel) -> tuple[tuple[str, Any, bool, str], ...]:
    """What must hold between the fields of any network's trunk, for `refuse_outside`."""
    plain, families = model.groups == 1 and model.group_width == 64, (*FAMILIES, *TRUNKS)
    usual, timm = model.stride_in == "3x3" and model.padding == "both", model.trunk.startswith("timm/")
    return (
        ("--model.trunk", model.trunk, model.trunk.partition("/")[0] in families,
         f"there is no such trunk; there are {', '.join(families)}"),
        ("--model.group-width", model.group_width, model.width * model.group_width >= 64,
         f"with --model.width {model.width} a group of the first stage has less than one filter"),
        ("--model.groups", f"{model.groups} --model.group-width {model.group_width}", plain or not model.trunk.startswith("timm/"),
         f"--model.trunk {model.trunk} has no such choice; leave them at 1 and 64"),
        ("--model.groups", f"{model.groups} --model.group-width {model.group_width}", plain or model.depth >= 50,
         f"only bottlenecks are split, and --model.depth {model.depth} has basic blocks; choose depth 50 or more"),
        ("--model.stride-in", f"{model.stride_in} --model.padding {model.padding}", usual or not timm,
         f"--model.trunk {model.trunk} has no such choice; leave them at 3x3 and both"),
    )  # fmt: skip
