"""The weights of MLPerf's references: SSD, both ways, and Mask R-CNN (maskrcnn_benchmark), read.

Letters: n boxes of a cell   C classes with background
SSD: the reference's head channels run over values first (4 or C), boxes of the cell second, and its outputs over boxes first,
cells second; ours run box by box, cell by cell. So a head's output channels are permuted, and nothing else changes.
Mask R-CNN: its networks start from MSRA's, so they take BGR pixels and stride in a bottleneck's first 1x1 convolution. Its mean is
that of the old Caffe models, 122.7717, 115.9465 and 102.9801, not ImageNet's.
Source of the names: MLPerf reference SSD (ssd300.py, base_model.py); mlcommons/training, retired_benchmarks/maskrcnn
(modeling/backbone/resnet.py, rpn, roi_heads).
"""

from __future__ import annotations

import re

from torch import Tensor

from paceline.models.weights.classes import count_class_rows, published_class_names
from paceline.models.weights.formats.paceline_format import (
    CAFFE_NOTE,
    Facts,
    PacelineWeights,
    Tensors,
    WeightFormatError,
    from_caffe,
    invert_rules,
    rename_tensor,
    require_no_needs,
)

# Reference name -> ours, for the parts whose tensors stay as they are.
SSD_RULES = (
    (r"model\.layer1\.0\.(.*)", r"trunk.conv1.\1"),
    (r"model\.layer1\.1\.(.*)", r"trunk.bn1.\1"),
    (r"model\.layer1\.4\.(.*)", r"trunk.layer1.\1"),
    (r"model\.layer1\.5\.(.*)", r"trunk.layer2.\1"),
    (r"model\.layer2\.0\.(.*)", r"trunk.layer3.\1"),
    (r"additional_blocks\.(\d+)\.0\.(.*)", r"extras.\1.reduce.\2"),
    (r"additional_blocks\.(\d+)\.2\.(.*)", r"extras.\1.conv.\2"),
)
HEAD = re.compile(r"(loc|conf)\.(\d+)\.(weight|bias)")
OWN_HEAD = re.compile(r"heads\.(\d+)\.(loc|conf|fused)\.(weight|bias)")


def is_reference(names: Tensors, _: Facts | None = None) -> bool:
    return "model.layer1.0.weight" in names and "conf.0.weight" in names


def from_reference(saved: Tensors) -> dict[str, Tensor]:
    """The MLPerf reference's state dict under our names, for separate heads."""
    state = {}
    heads = (head for name in saved if (head := HEAD.fullmatch(name)))
    levels = sorted(int(head[2]) for head in heads if (head[1], head[3]) == ("loc", "bias"))
    boxes = {level: _boxes(saved, f"loc.{level}.bias") for level in levels}
    for name, tensor in saved.items():
        if head := HEAD.fullmatch(name):
            kind, level, part = head[1], int(head[2]), head[3]
            if level not in boxes or tensor.shape[0] % boxes[level]:
                raise WeightFormatError(f"the number of channels of its {name} is not a multiple of its boxes")
            state[f"heads.{level}.{kind}.{part}"] = swap_channels(tensor, tensor.shape[0] // boxes[level])
            continue
        state[rename_tensor(name, SSD_RULES) or name] = tensor
    return state


def read_reference(saved: Tensors, _: Facts) -> PacelineWeights:
    """As `from_reference`, with what is known beside it."""
    state = from_reference(saved)
    classes = ()
    if "heads.0.conf.bias" in state and "heads.0.loc.bias" in state:
        classes = published_class_names(len(state["heads.0.conf.bias"]) // _boxes(state, "heads.0.loc.bias") - 1)
    return PacelineWeights(state, tuple(name for name in state if OWN_HEAD.fullmatch(name)), classes=classes)


def to_reference(state: Tensors) -> dict[str, Tensor]:
    """The inverse of `from_reference`."""
    theirs, rules = {}, invert_rules(SSD_RULES)
    for name, tensor in state.items():
        if head := OWN_HEAD.fullmatch(name):
            level, kind, part = int(head[1]), head[2], head[3]
            boxes = state[f"heads.{level}.loc.bias"].shape[0] // 4
            theirs[f"{kind}.{level}.{part}"] = swap_channels(tensor, boxes)
            continue
        theirs[rename_tensor(name, rules) or name] = tensor
    return theirs


def write_reference(ours: PacelineWeights) -> tuple[dict[str, Tensor], dict[str, object], tuple[str, ...]]:
    """-> tensors, no metadata, no notes. Raises WeightFormatError unless it is an SSD with separate heads and the same padding."""
    if "heads.0.loc.bias" not in ours.tensors:
        raise WeightFormatError("the reference format needs separate class and box convolutions (--model.heads separate)")
    require_no_needs(ours, "the MLPerf reference")
    return to_reference(ours.tensors), {}, ()


def swap_channels(tensor: Tensor, outer: int) -> Tensor:
    """Output channels (outer x inner) in the order (inner x outer).

    tensor  (outer * inner, ...)
    """
    return tensor.unflatten(0, (outer, -1)).transpose(0, 1).flatten(0, 1).contiguous()


def _boxes(state: Tensors, bias: str) -> int:
    count = state[bias].shape[0] // 4 if state[bias].dim() == 1 else 0
    if not count:
        raise WeightFormatError(f"its {bias} has no box of four values")
    return count


WB = r"\.(weight|bias)"
MASK_RCNN_RULES = (
    (r"backbone\.body\.stem\.(conv1|bn1)\.(.*)", r"backbone.body.\1.\2"),
    (r"backbone\.body\.(layer[1-4]\..*)", r"backbone.body.\1"),
    (r"rpn\.head\.conv\.(.*)", r"rpn.head.conv.0.0.\1"),
    (r"(rpn\.head\.(?:cls_logits|bbox_pred)\..*)", r"\1"),
    (r"roi_heads\.box\.feature_extractor\.(fc[67]\..*)", r"roi_heads.box_head.\1"),
    (r"roi_heads\.box\.predictor\.((?:cls_score|bbox_pred)\..*)", r"roi_heads.box_predictor.\1"),
    (r"roi_heads\.mask\.predictor\.((?:conv5_mask|mask_fcn_logits)\..*)", r"roi_heads.mask_predictor.\1"),
)
# Counted from 1 there and from 0 here.
COUNTED = (
    (rf"backbone\.fpn\.fpn_(inner|layer)([1-4]){WB}", r"backbone.fpn.\1_blocks.\2.0.\3"),
    (rf"roi_heads\.mask\.feature_extractor\.mask_fcn(\d){WB}", r"roi_heads.mask_head.\1.0.\2"),
)
NO_WEIGHTS = re.compile(r"rpn\.anchor_generator\.cell_anchors\..*")
STEM = "backbone.body.conv1.weight"


def is_maskrcnn_benchmark(names: Tensors, _: Facts) -> bool:
    return "backbone.body.stem.conv1.weight" in names


def from_maskrcnn_benchmark(saved: Tensors, _: Facts) -> PacelineWeights:
    """Under our names."""
    state, left_out = {}, []
    for name, tensor in saved.items():
        if NO_WEIGHTS.fullmatch(name):
            left_out.append(name)
            continue
        ours = rename_tensor(name, MASK_RCNN_RULES) or name
        if counted := rename_tensor(name, COUNTED):
            ours = re.sub(r"\d", lambda digit: str(int(digit[0]) - 1), counted, count=1)
        state[ours] = tensor
    state[STEM] = from_caffe(state[STEM].float())
    needs = {"stride_in": "1x1"} if "backbone.body.layer1.0.conv3.weight" in state else {}
    classes = published_class_names(count_class_rows(state))
    mean = "its mean was 122.7717 115.9465 102.9801. To reproduce its outputs, set --input.mean 0.481458 0.454692 0.403843"
    return PacelineWeights(state, (STEM,), needs, classes, (CAFFE_NOTE, mean), tuple(left_out))
