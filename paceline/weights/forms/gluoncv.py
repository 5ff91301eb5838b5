"""GluonCV's weights: ResNets v1b (which stride in the 3x3, as ours do) and Mask R-CNN with a pyramid on one, read.

Letters: K classes
Its boxes and masks have no row for the background, its class scores have it first, as ours.
Source of the names: GluonCV's model_zoo (resnetv1b.py, rcnn/mask_rcnn) as `save_parameters` writes them, checked with files that
GluonCV 0.10 wrote.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from paceline.weights.forms.class_names import published
from paceline.weights.forms.ours import Facts, FormError, Ours, Tensors

PARTS = {
    "weight": "weight",
    "bias": "bias",
    "gamma": "weight",
    "beta": "bias",
    "running_mean": "running_mean",
    "running_var": "running_var",
}
PART = "|".join(PARTS)
# Of a detector's trunk: convolutions and norms are counted through a stage, shortcuts stand apart.
COUNTED = re.compile(
    rf"features\.resnetv1b_layers(?P<stage>[1-4])_(?P<layer>conv|batchnorm)(?P<count>\d+)_(?P<part>{PART})"
)
SHORTCUT = re.compile(rf"features\.resnetv1b_down(?P<stage>[1-4])_(?P<layer>conv|batchnorm)0_(?P<part>{PART})")
STEM = re.compile(rf"features\.resnetv1b_(?P<layer>conv|batchnorm)0_(?P<part>{PART})")
PYRAMID = re.compile(r"features\.P(?P<level>[2-6])_(?P<layer>conv_lat|conv1)_(?P<part>weight|bias)")
HEADS = {
    "box_features.1": "roi_heads.box_head.fc6",
    "box_features.3": "roi_heads.box_head.fc7",
    "class_predictor": "roi_heads.box_predictor.cls_score",
    "box_predictor": "roi_heads.box_predictor.bbox_pred",
    "rpn.rpn_head.conv1.0": "rpn.head.conv.0.0",
    "rpn.rpn_head.score": "rpn.head.cls_logits",
    "rpn.rpn_head.loc": "rpn.head.bbox_pred",
    "mask.mask": "roi_heads.mask_predictor.mask_fcn_logits",
}
# Convolutions of the mask head with a ReLU behind each; the last of them is transposed.
MASK = re.compile(r"mask\.deconv\.(?P<place>\d+)\.(?P<part>weight|bias)")
WITHOUT_BACKGROUND = {"roi_heads.box_predictor.bbox_pred": 4, "roi_heads.mask_predictor.mask_fcn_logits": 1}
NO_WEIGHTS = re.compile(r".*anchor_generator\..*")
BODY = "backbone.body."


def is_gluoncv(names: Tensors, _: Facts) -> bool:
    """Whether the names are GluonCV's: of a classifier, or of a detector."""
    norms = (
        name.removesuffix("gamma") for name in names if name.endswith(".gamma")
    )  # other networks have scales of that name
    return any(f"{norm}running_var" in names for norm in norms) or any(
        name.startswith("features.resnetv1b_") for name in names
    )


def from_gluoncv(saved: Tensors, _: Facts) -> Ours:
    """Under our names. Raises FormError for its other networks."""
    if any(name.startswith("features.resnetv1b_") for name in saved):
        return _detector(saved)
    if "conv1.0.weight" in saved:
        raise FormError(
            "GluonCV's ResNet with three convolutions in its stem (v1c, v1d, v1e, v1s, ResNeSt), and ours have one: use resnet*_v1b"
        )
    if "conv1.weight" not in saved or "bn1.gamma" not in saved:
        raise FormError("GluonCV's, of a network that ours cannot be: ResNet v1b and Mask R-CNN on one are read")
    state = {}
    for name, tensor in saved.items():
        parts = name.split(".")
        state[".".join((*parts[:-1], PARTS.get(parts[-1], parts[-1])))] = tensor
    return Ours(state, classes=published(len(state["fc.bias"])) if "fc.bias" in state else ())


def _detector(saved: Tensors) -> Ours:
    per_unit = 3 if saved["features.resnetv1b_layers1_conv0_weight"].shape[2:] == (1, 1) else 2
    last = max((int(found["place"]) for name in saved if (found := MASK.fullmatch(name))), default=0)
    state: dict[str, Tensor] = {}
    left_out, converted = [], []
    for name, tensor in saved.items():
        if NO_WEIGHTS.fullmatch(name):
            left_out.append(name)
            continue
        ours = _trunk_name(name, per_unit) or _head_name(name, last) or name
        owner = ours.rpartition(".")[0]
        if owner in WITHOUT_BACKGROUND:
            tensor = torch.cat((tensor.new_zeros(WITHOUT_BACKGROUND[owner], *tensor.shape[1:]), tensor))
            converted.append(ours)
        state[ours] = tensor
    scores = state.get("roi_heads.box_predictor.cls_score.bias")
    classes = () if scores is None else published(len(scores) - 1)
    return Ours(state, tuple(converted), classes=classes, left_out=tuple(left_out))


def _trunk_name(name: str, per_unit: int) -> str | None:
    if found := STEM.fullmatch(name):
        return f"{BODY}{'conv1' if found['layer'] == 'conv' else 'bn1'}.{PARTS[found['part']]}"
    if found := SHORTCUT.fullmatch(name):
        place = 0 if found["layer"] == "conv" else 1
        return f"{BODY}layer{found['stage']}.0.downsample.{place}.{PARTS[found['part']]}"
    if found := COUNTED.fullmatch(name):
        unit, layer = divmod(int(found["count"]), per_unit)
        kind = "conv" if found["layer"] == "conv" else "bn"
        return f"{BODY}layer{found['stage']}.{unit}.{kind}{layer + 1}.{PARTS[found['part']]}"
    return None


def _head_name(name: str, last: int) -> str | None:
    if found := PYRAMID.fullmatch(name):
        level, part = int(found["level"]), found["part"]
        if level == 6:
            return f"backbone.fpn.top.{part}"
        blocks = "inner_blocks" if found["layer"] == "conv_lat" else "layer_blocks"
        return f"backbone.fpn.{blocks}.{level - 2}.0.{part}"
    if found := MASK.fullmatch(name):
        place = int(found["place"])
        if place == last:
            return f"roi_heads.mask_predictor.conv5_mask.{found['part']}"
        return f"roi_heads.mask_head.{place // 2}.0.{found['part']}"
    owner, _, part = name.rpartition(".")
    return f"{HEADS[owner]}.{part}" if owner in HEADS else None
