"""detectron2's weights: its model zoo's .pkl, Caffe2's ImageNet backbones (MSRA's R-50.pkl), and those made of torchvision's.

Letters: K classes
Class scores have the background last there and first here; boxes and masks have no row for it there. MSRA's networks, which
the model zoo starts from, take BGR pixels and stride in a bottleneck's first 1x1 convolution; torchvision's do not. Which of them
a file is of, its author, its pixel_std or its norms tell: `detect_preprocessing`.
Source of the names: detectron2 (modeling/backbone/resnet.py, fpn.py, meta_arch/rcnn.py; c2_model_loading.py in checkpoint/).
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from paceline.models.weights.classes import count_class_rows, published_class_names
from paceline.models.weights.formats.paceline_format import (
    CAFFE_NOTE,
    NEEDS,
    OUR_STD,
    TORCHVISION,
    Facts,
    PacelineWeights,
    Tensors,
    WeightFormatError,
    detect_preprocessing,
    from_caffe,
    from_pixels,
    invert_rules,
    rename_tensor,
)
from paceline.models.weights.formats.torchvision import resnet_fields

PART = r"\.(weight|bias|running_mean|running_var|num_batches_tracked)"
WB = r"\.(weight|bias)"
# Stages are res2 to res5 there, layer1 to layer4 here: written as layer2 to layer5 in between.
TRUNK = (
    (rf"stem\.conv1\.norm{PART}", r"bn1.\1"),
    (r"stem\.conv1\.weight", "conv1.weight"),
    (rf"stem\.fc{WB}", r"fc.\1"),
    (rf"res([2-5])\.(\d+)\.conv([1-3])\.norm{PART}", r"layer\1.\2.bn\3.\4"),
    (r"res([2-5])\.(\d+)\.conv([1-3])\.weight", r"layer\1.\2.conv\3.weight"),
    (rf"res([2-5])\.(\d+)\.shortcut\.norm{PART}", r"layer\1.\2.downsample.1.\3"),
    (r"res([2-5])\.(\d+)\.shortcut\.weight", r"layer\1.\2.downsample.0.weight"),
)
HEADS = (
    (rf"proposal_generator\.rpn_head\.conv{WB}", r"rpn.head.conv.0.0.\1"),
    (rf"proposal_generator\.rpn_head\.objectness_logits{WB}", r"rpn.head.cls_logits.\1"),
    (rf"proposal_generator\.rpn_head\.anchor_deltas{WB}", r"rpn.head.bbox_pred.\1"),
    (rf"roi_heads\.box_head\.conv(\d){WB}", r"roi_heads.box_head.\1.0.\2"),
    (rf"roi_heads\.box_head\.fc1{WB}", r"roi_heads.box_head.fc6.\1"),
    (rf"roi_heads\.box_head\.fc2{WB}", r"roi_heads.box_head.fc7.\1"),
    (rf"roi_heads\.box_predictor\.(cls_score|bbox_pred){WB}", r"roi_heads.box_predictor.\1.\2"),
    (rf"roi_heads\.mask_head\.mask_fcn(\d){WB}", r"roi_heads.mask_head.\1.0.\2"),
    (rf"roi_heads\.mask_head\.deconv{WB}", r"roi_heads.mask_predictor.conv5_mask.\1"),
    (rf"roi_heads\.mask_head\.predictor{WB}", r"roi_heads.mask_predictor.mask_fcn_logits.\1"),
)  # fmt: skip
# Levels of the pyramid are 2 to 5 there and count from 0 here.
FPN = (
    (rf"backbone\.fpn_lateral([2-5]){WB}", r"backbone.fpn.inner_blocks.\1.0.\2"),
    (rf"backbone\.fpn_output([2-5]){WB}", r"backbone.fpn.layer_blocks.\1.0.\2"),
)
CAFFE2 = (
    (r"conv1_w", "conv1.weight"),
    (r"(?:res_)?conv1_bn_s", "bn1.weight"),
    (r"(?:res_)?conv1_bn_b", "bn1.bias"),
    (r"fc1000_w", "fc.weight"),
    (r"fc1000_b", "fc.bias"),
    (r"res([2-5])_(\d+)_branch1_w", r"layer\1.\2.downsample.0.weight"),
    (r"res([2-5])_(\d+)_branch1_bn_s", r"layer\1.\2.downsample.1.weight"),
    (r"res([2-5])_(\d+)_branch1_bn_b", r"layer\1.\2.downsample.1.bias"),
    (r"res([2-5])_(\d+)_branch2([a-c])_w", r"layer\1.\2.conv\3.weight"),
    (r"res([2-5])_(\d+)_branch2([a-c])_bn_s", r"layer\1.\2.bn\3.weight"),
    (r"res([2-5])_(\d+)_branch2([a-c])_bn_b", r"layer\1.\2.bn\3.bias"),
)
BOX_HEAD = "roi_heads.box_head"
BOTTOM_UP = "backbone.bottom_up."
NO_WEIGHTS = re.compile(r"pixel_(mean|std)|.*anchor_generator\.cell_anchors\..*|.*_momentum|.*num_batches_tracked")
SCORES, BOXES, MASKS = (
    "roi_heads.box_predictor.cls_score",
    "roi_heads.box_predictor.bbox_pred",
    "roi_heads.mask_predictor.mask_fcn_logits",
)
# Rows of the background; class scores have theirs already.
BACKGROUND = {SCORES: 0, BOXES: 4, MASKS: 1}
# Caffe2's BatchNorm is a scale and a shift; ours divides by sqrt(variance + epsilon), which then is 1.
EPS = 1e-5
BODY = "backbone.body."
STRIDE = "stride_in"  # what our own files for detectron2 say beside that


def is_detectron2(names: Tensors, _: Facts) -> bool:
    return bool({f"{BOTTOM_UP}stem.conv1.weight", "stem.conv1.norm.weight"} & names.keys()) or is_caffe2(names)


def is_caffe2(names: Tensors) -> bool:
    return "conv1_w" in names and any(name.startswith("res2_0_") for name in names)


def from_detectron2(saved: Tensors, facts: Facts) -> PacelineWeights:
    """Under our names. Raises WeightFormatError for a network that ours cannot be."""
    if is_caffe2(saved):
        return _from_caffe2(saved)
    if any(name.startswith("roi_heads.res5.") for name in saved):
        raise WeightFormatError("a C4 network, whose fifth stage is the box head. Only networks with an FPN are supported")
    state, left_out, converted = {}, [], []
    for name, tensor in saved.items():
        if NO_WEIGHTS.fullmatch(name):
            left_out.append(name)
            continue
        body = BODY if name.startswith(BOTTOM_UP) else ""
        ours = rename_tensor(name.removeprefix(BOTTOM_UP), TRUNK)
        if ours is None:
            ours = rename_tensor(name, (*FPN, *HEADS)) or name
        state[body + _counted(ours, -1)] = tensor
    if convs := _box_convs(state):
        if f"{BOX_HEAD}.fc7.weight" in state:
            raise WeightFormatError("its box head has two linear layers after its convolutions; only one is supported")
        _rename(state, f"{BOX_HEAD}.fc6", f"{BOX_HEAD}.{convs + 1}")
    if f"{SCORES}.weight" in state:
        converted += _move_background(state, first=True)
    stem, notes, needs = next((name for name in (f"{BODY}conv1.weight", "conv1.weight") if name in state), ""), [], {}
    if stem:
        pixels = detect_preprocessing(saved, state, facts)
        notes += pixels.notes
        if pixels.bgr or any(abs(theirs / ours - 1) > 1e-3 for theirs, ours in zip(pixels.std, OUR_STD, strict=True)):
            if state[stem].dim() != 4 or state[stem].shape[1] != 3:
                raise WeightFormatError(f"its stem has shape {tuple(state[stem].shape)}, but must have three channels")
            state[stem] = from_pixels(state[stem].float(), pixels.std, bgr=pixels.bgr)
            converted.append(stem)
        bottleneck = any(name.endswith("layer1.0.conv3.weight") for name in state)
        if facts.get(STRIDE) == "1x1" or (pixels.msra and bottleneck):
            needs["stride_in"] = "1x1"
    if f"{SCORES}.weight" in state:
        notes.append("for the outputs of detectron2, set --model.roi.aligned and --model.parity.anchor-rounding exact")
    return PacelineWeights(
        state, tuple(converted), needs, published_class_names(count_class_rows(state)), tuple(notes), tuple(left_out)
    )


def to_detectron2(ours: PacelineWeights) -> tuple[dict[str, Tensor], dict[str, object], tuple[str, ...]]:
    """-> tensors, what stands beside them in the file, and what its user must know. Raises WeightFormatError for an SSD."""
    if ours.needs.get("padding"):
        raise WeightFormatError(f"detectron2 does not support this network: {NEEDS['padding']['end']}")
    state, theirs = dict(ours.tensors), {}
    whole = any(name.startswith(BODY) for name in state)
    if f"{SCORES}.weight" in state:
        _move_background(state, first=False)
    if convs := _box_convs(state):
        _rename(state, f"{BOX_HEAD}.{convs + 1}", f"{BOX_HEAD}.fc6")
    backbone, rest = invert_rules(TRUNK), invert_rules((*FPN, *HEADS))
    for name, tensor in state.items():
        if name.endswith("num_batches_tracked"):
            continue
        body = name.startswith(BODY)
        result = rename_tensor(_counted(name.removeprefix(BODY), 1), backbone) if body or not whole else None
        if result is None:
            result = rename_tensor(_counted(name, 1), rest)
        elif body:
            result = BOTTOM_UP + result
        if result is None:
            raise WeightFormatError(f"detectron2 does not support a network with {name}")
        theirs[result] = tensor
    notes = (f"set in detectron2: {', '.join(_settings(ours))}",)
    if f"{SCORES}.weight" in state:
        notes += ("if the weights were trained with --model.roi.aligned, set each POOLER_TYPE to ROIAlignV2",)
    return theirs, {"__author__": TORCHVISION, "matching_heuristics": True, **ours.needs}, notes


def _settings(ours: PacelineWeights) -> list[str]:
    """The settings of detectron2 that these weights want, as far as their shapes tell."""
    state, fields = ours.tensors, resnet_fields(ours.tensors)
    rows = [
        "INPUT.FORMAT RGB",
        "MODEL.PIXEL_MEAN [123.675, 116.28, 103.53]",
        "MODEL.PIXEL_STD [58.395, 57.12, 57.375]",
        f"MODEL.RESNETS.STRIDE_IN_1X1 {ours.needs.get('stride_in') == '1x1'}",
    ]
    if "depth" in fields:
        rows.append(f"MODEL.RESNETS.DEPTH {fields['depth']}")
    if fields.get("depth", 50) < 50:  # basic blocks; detectron2 asks for 64
        rows.append(f"MODEL.RESNETS.RES2_OUT_CHANNELS {fields.get('width', 64)}")
    if (fields.get("groups", 1), fields.get("width_per_group", 64)) != (1, 64):
        rows += [
            f"MODEL.RESNETS.NUM_GROUPS {fields['groups']}",
            f"MODEL.RESNETS.WIDTH_PER_GROUP {fields['width_per_group']}",
        ]
    if f"{SCORES}.bias" in state:
        rows += [
            f"MODEL.ROI_HEADS.NUM_CLASSES {len(state[f'{SCORES}.bias']) - 1}",
            "MODEL.ROI_BOX_HEAD.POOLER_TYPE ROIAlign",
            "MODEL.ROI_MASK_HEAD.POOLER_TYPE ROIAlign" if f"{MASKS}.bias" in state else "MODEL.MASK_ON False",
        ]
    if convs := _box_convs(state):
        width = len(state[f"{BOX_HEAD}.0.0.weight"])
        rows += [f"MODEL.ROI_BOX_HEAD.NUM_CONV {convs}", f"MODEL.ROI_BOX_HEAD.CONV_DIM {width}"]
        rows.append("MODEL.ROI_BOX_HEAD.NUM_FC 1")
    return rows


def _from_caffe2(saved: Tensors) -> PacelineWeights:
    state, left_out = {}, []
    for name, tensor in saved.items():
        ours = rename_tensor(name, CAFFE2)
        if ours is None:
            left_out.append(name)
            continue
        ours = _counted(
            re.sub(r"\.(conv|bn)([a-c])\.", lambda result: f".{result[1]}{'abc'.index(result[2]) + 1}.", ours), -1
        )
        state[ours] = tensor
        if ours.endswith(".bias") and ours != "fc.bias":
            norm = ours.removesuffix("bias")
            state[norm + "running_mean"] = torch.zeros_like(tensor)
            state[norm + "running_var"] = torch.full_like(tensor, 1 - EPS)
    unknown = [name for name in left_out if not NO_WEIGHTS.fullmatch(name) and not name.startswith(("pred_", "lr", "cur_"))]
    if unknown:
        raise WeightFormatError(f"a Caffe2 file with more than an ImageNet backbone ({unknown[0]}); only that is supported")
    state["conv1.weight"] = from_caffe(state["conv1.weight"].float())
    needs = {"stride_in": "1x1"} if "layer1.0.conv3.weight" in state else {}
    return PacelineWeights(
        state, ("conv1.weight",), needs, published_class_names(count_class_rows(state)), (CAFFE_NOTE,), tuple(left_out)
    )


def _box_convs(state: Tensors) -> int:
    """Convolutions of the box head; behind them and a layer without weights comes its fully connected one."""
    return sum(bool(re.fullmatch(rf"{re.escape(BOX_HEAD)}\.\d+\.0\.weight", name)) for name in state)


def _rename(state: dict[str, Tensor], layer: str, to: str) -> None:
    for part in ("weight", "bias"):
        if f"{layer}.{part}" in state:
            state[f"{to}.{part}"] = state.pop(f"{layer}.{part}")


def _counted(name: str, by: int) -> str:
    """Stages and levels from detectron2's count to ours (by -1: from 2 to 1, levels from 2 to 0), or back (by 1)."""

    def moved(result: re.Match[str]) -> str:
        level = "_blocks." in result[1]
        return f"{result[1]}{int(result[2]) + (2 * by if level else by)}{result[3]}"

    return re.sub(
        r"^((?:backbone\.body\.)?layer|backbone\.fpn\.(?:inner|layer)_blocks\.|roi_heads\.(?:box|mask)_head\.)(\d+)(\..*)$",
        moved,
        name,
    )


def _move_background(state: dict[str, Tensor], *, first: bool) -> list[str]:
    """Of class scores to the front, where boxes and masks get a row for it, or back; -> names changed."""
    layers = [(f"{layer}.{part}", rows) for layer, rows in BACKGROUND.items() for part in ("weight", "bias")]
    changed = [(name, rows, state[name]) for name, rows in layers if name in state]
    for name, rows, tensor in changed:
        if rows == 0:
            state[name] = tensor.roll(1 if first else -1, 0)
        elif first and rows == 4 == len(tensor):
            raise WeightFormatError("its boxes are independent of the class, but paceline requires boxes per class")
        else:
            state[name] = torch.cat((tensor.new_zeros(rows, *tensor.shape[1:]), tensor)) if first else tensor[rows:]
    return [name for name, *_ in changed]
