"""torchvision's weights, whose names are ours: older files' names are changed, and what it has no network for is not written.

timm's ResNets have the same names and the same networks. torchvision's detectors that none of our networks is are recognized by the
names of their tensors (`describe_missing`), and a ResNet's depth and width by their shapes (`resnet_fields`).
Source: torchvision (models: resnet.py; models/detection/: mask_rcnn.py, faster_rcnn.py, keypoint_rcnn.py, retinanet.py, fcos.py,
ssd.py; from 0.2 on).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from paceline.models.backbones.resnet import DEPTHS
from paceline.models.weights.classes import published_class_names
from paceline.models.weights.formats.paceline_format import (
    Facts,
    PacelineWeights,
    Tensors,
    WeightFormatError,
    from_metadata,
    rename_tensor,
    require_no_needs,
)

MASKS = "roi_heads.mask_predictor.mask_fcn_logits.weight"
SCORES = "roi_heads.box_predictor.cls_score.weight"
# The second convolution of the proposal head, which the _v2 networks have, with BatchNorm in pyramid and heads.
SECOND = "rpn.head.conv.1.0.weight"
WITHOUT_MASKS = (
    "torchvision's fasterrcnn_resnet50_fpn, which has boxes without masks. Its backbone, FPN, proposals, and box head "
    "can initialize Mask R-CNN, with a new mask head and class rows. All of it can initialize fasterrcnn-finetune"
)
TRUNK = "only the backbone matches: `paceline weights convert FILE --format timm` writes it"


def describe_missing(names: Tensors) -> str:
    """What such a file is and what of it fits, in words; "" for all others."""
    if "roi_heads.keypoint_predictor.kps_score_lowres.weight" in names:
        return f"torchvision's keypointrcnn_resnet50_fpn, which has key points and no masks; {TRUNK}"
    if SECOND in names and SCORES in names:
        name = "maskrcnn" if MASKS in names else "fasterrcnn"
        return (
            f"torchvision's {name}_resnet50_fpn_v2, which has two convolutions in the proposal head and BatchNorm in "
            f"the FPN and heads, unlike this network; {TRUNK}"
        )
    if any(name.startswith("head.classification_head.") for name in names):
        return "a one-stage detector of torchvision (RetinaNet, FCOS, SSD300 on VGG, SSDlite), which is not supported"
    return ""


def is_faster_rcnn(names: Tensors) -> bool:
    """Whether it is a Mask R-CNN but for its masks."""
    return SCORES in names and "roi_heads.box_head.fc6.weight" in names and not any("mask_" in name for name in names)


def resnet_fields(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """depth, width, stem, input_channels, groups and width_per_group, as far as they are told; none where it is no ResNet.

    state  under our names: a ResNet's, or a network's that stands on one
    """
    body = next((prefix for prefix in ("", "trunk.", "backbone.body.") if f"{prefix}layer1.0.conv1.weight" in state), None)
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
    result: dict[str, Any] = {}
    stages = 4 if units[3] else 3
    depths = [
        depth for depth, (counts, has) in DEPTHS.items() if has == bottleneck and list(counts[:stages]) == units[:stages]
    ]
    # Three stages alone may be of several depths: the usual one.
    if depths:
        result["depth"] = 34 if 34 in depths else 50 if 50 in depths else depths[0]
    stem = tensors.get("conv1.weight")
    if stem is not None and stem.dim() == 4:
        result["width"] = stem.shape[0]
        result["stem"] = "small" if stem.shape[-1] == 3 else "imagenet"
        result["input_channels"] = stem.shape[1]
    middle = tensors.get("layer1.0.conv2.weight")
    if bottleneck and middle is not None and middle.dim() == 4 and middle.shape[1] and stem is not None and stem.shape[0]:
        result["groups"] = middle.shape[0] // middle.shape[1]
        result["width_per_group"] = middle.shape[1] * 64 // stem.shape[0]
    return result


# Names of files from before torchvision 0.13 -> ours.
RENAMED = (
    (r"backbone\.fpn\.(inner_blocks|layer_blocks)\.(\d+)\.(weight|bias)", r"backbone.fpn.\1.\2.0.\3"),
    (r"rpn\.head\.conv\.(weight|bias)", r"rpn.head.conv.0.0.\1"),
)
OLD_MASK = re.compile(r"roi_heads\.mask_head\.mask_fcn(\d+)\.(weight|bias)")
RESNET = re.compile(r"(conv1|bn1|fc|layer[1-4]\.\d+\.(conv[1-3]|bn[1-3]|downsample\.[01]))\.\w+")
MASK_RCNN = re.compile(
    r"backbone\.fpn\.(inner|layer)_blocks\.[0-3]\.0\.(weight|bias)|rpn\.head\.(conv\.0\.0|cls_logits|bbox_pred)\.\w+"
    r"|roi_heads\.(box_head\.fc[67]|box_predictor\.(cls_score|bbox_pred)|mask_head\.\d\.0|mask_predictor\.(conv5_mask|mask_fcn_logits))\.\w+"
)
BODY = "backbone.body."
STEM = "conv1.weight"


def is_paceline(_: Tensors, __: Facts) -> bool:
    """Names that no other form has are taken as they are."""
    return True


def from_torchvision(saved: Tensors, facts: Facts) -> PacelineWeights:
    """Under today's names; with the classes that our own file carries, or that are known of a published one."""
    state = {}
    for name, tensor in saved.items():
        name = rename_tensor(name, RENAMED) or name
        if mask := OLD_MASK.fullmatch(name):
            name = f"roi_heads.mask_head.{int(mask[1]) - 1}.0.{mask[2]}"
        state[name] = tensor
    ours = replace(from_metadata(state, facts), lacks=describe_missing(state))
    return ours if ours.classes else replace(ours, classes=_published(state))


def write_paceline(ours: PacelineWeights) -> tuple[dict[str, Tensor], dict[str, object], tuple[str, ...]]:
    """-> tensors as they are, nothing beside them, no notes."""
    return ours.tensors, {}, ()


def write_torchvision(ours: PacelineWeights) -> tuple[dict[str, Tensor], dict[str, object], tuple[str, ...]]:
    """-> tensors, nothing beside them, notes. Raises WeightFormatError for a network that torchvision does not have."""
    require_no_needs(ours, "torchvision")
    state = ours.tensors
    known = all(
        MASK_RCNN.fullmatch(name) or (name.startswith(BODY) and RESNET.fullmatch(name.removeprefix(BODY))) for name in state
    )
    if not (known or all(RESNET.fullmatch(name) for name in state)):
        odd = next(name for name in state if not (RESNET.fullmatch(name.removeprefix(BODY)) or MASK_RCNN.fullmatch(name)))
        raise WeightFormatError(
            f"torchvision does not support a network with {odd}. Only ResNets, and Faster R-CNN and Mask R-CNN with a "
            "plain FPN, can be written"
        )
    require_depth(state, "torchvision", (18, 34, 50, 101, 152))
    return to_plain_tensors(state), {}, ()


def write_timm(ours: PacelineWeights) -> tuple[dict[str, Tensor], dict[str, object], tuple[str, ...]]:
    """-> tensors of the ResNet, nothing beside them, notes. Raises WeightFormatError where there is none that timm has."""
    require_no_needs(ours, "timm")
    backbone = {name.removeprefix(BODY): tensor for name, tensor in ours.tensors.items() if name.startswith(BODY)}
    state = backbone or ours.tensors
    if odd := [name for name in state if not RESNET.fullmatch(name)]:
        raise WeightFormatError(f"timm has no {odd[0]}. Only classifiers and backbones of Mask R-CNN can be written")
    require_depth(state, "timm", (18, 34, 50, 101, 152, 200))
    left = len(ours.tensors) - len(state)
    return (to_plain_tensors(state), {}, (f"only the backbone; {left} tensors of other parts are omitted",) if left else ())


def require_depth(state: Tensors, whose: str, depths: tuple[int, ...]) -> None:
    """Raises WeightFormatError for a ResNet that somebody has not, among those of `depths`."""
    result = resnet_fields(state)
    if not any(name.removeprefix(BODY).startswith("layer4.") for name in state):
        raise WeightFormatError(f"{whose} does not support a ResNet without a fourth stage")
    if result.get("depth") not in depths:
        raise WeightFormatError(
            f"{whose} has no ResNet of depth {result.get('depth', '(unknown)')}. It has {', '.join(map(str, depths))}"
        )
    if result.get("width") != 64 or result["stem"] != "imagenet":
        raise WeightFormatError(
            f"{whose} supports only ResNets with --model.width 64 and a 7x7 stem, but this one has width "
            f"{result.get('width')}{' and a small stem' if result.get('stem') == 'small' else ''}"
        )


def to_plain_tensors(state: Tensors) -> dict[str, Tensor]:
    """Float32, contiguous, on the CPU, a ResNet's stem with 3 channels: what torchvision's classes load strictly."""
    made = {}
    for name, tensor in state.items():
        tensor = tensor.detach().cpu()
        if name == STEM and tensor.shape[1] == 4:  # the fourth only ever meets zeros
            tensor = tensor[:, :3]
        tensor = tensor.float() if tensor.is_floating_point() else tensor
        made[name] = tensor.clone(memory_format=torch.contiguous_format)
    return made


def _published(state: Tensors) -> tuple[str, ...]:
    if "fc.bias" in state:
        return published_class_names(len(state["fc.bias"])) if len(state["fc.bias"]) == 1000 else ()
    scores = state.get("roi_heads.box_predictor.cls_score.bias")
    return published_class_names(len(scores) - 1) if scores is not None and len(scores) == 91 else ()
