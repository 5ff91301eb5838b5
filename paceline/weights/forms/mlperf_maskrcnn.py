"""The MLPerf reference Mask R-CNN's weights (maskrcnn_benchmark), read.

Its networks start from MSRA's, so they take BGR pixels and stride in a bottleneck's first 1x1 convolution. Its mean is that of the
old Caffe models, 122.7717, 115.9465 and 102.9801, not ImageNet's.
Source of the names: mlcommons/training, retired_benchmarks/maskrcnn (modeling/backbone/resnet.py, rpn, roi_heads).
"""

from __future__ import annotations

import re

from paceline.weights.forms.class_names import published
from paceline.weights.forms.ours import Facts, Ours, Tensors
from paceline.weights.forms.pixels import NOTE, from_caffe
from paceline.weights.forms.renaming import renamed

WB = r"\.(weight|bias)"
RULES = (
    (r"backbone\.body\.stem\.(conv1|bn1)\.(.*)", r"backbone.body.\1.\2"),
    (r"backbone\.body\.(layer[1-4]\..*)", r"backbone.body.\1"),
    (r"rpn\.head\.conv\.(.*)", r"rpn.head.conv.0.0.\1"),
    (r"(rpn\.head\.(?:cls_logits|bbox_pred)\..*)", r"\1"),
    (r"roi_heads\.box\.feature_extractor\.(fc[67]\..*)", r"roi_heads.box_head.\1"),
    (r"roi_heads\.box\.predictor\.((?:cls_score|bbox_pred)\..*)", r"roi_heads.box_predictor.\1"),
    (r"roi_heads\.mask\.predictor\.((?:conv5_mask|mask_fcn_logits)\..*)", r"roi_heads.mask_predictor.\1"),
)
COUNTED = (
    (rf"backbone\.fpn\.fpn_(?P<what>inner|layer)(?P<count>[1-4]){WB}", "backbone.fpn.{what}_blocks.{count}.0.{part}"),
    (rf"roi_heads\.mask\.feature_extractor\.mask_fcn(?P<count>\d){WB}", "roi_heads.mask_head.{count}.0.{part}"),
)
NO_WEIGHTS = re.compile(r"rpn\.anchor_generator\.cell_anchors\..*")
STEM = "backbone.body.conv1.weight"


def is_maskrcnn_benchmark(names: Tensors, _: Facts) -> bool:
    """Whether the names are maskrcnn_benchmark's."""
    return "backbone.body.stem.conv1.weight" in names


def from_maskrcnn_benchmark(saved: Tensors, _: Facts) -> Ours:
    """Under our names."""
    state, left_out = {}, []
    for name, tensor in saved.items():
        if NO_WEIGHTS.fullmatch(name):
            left_out.append(name)
            continue
        ours = renamed(name, RULES)
        for pattern, template in COUNTED:
            if found := re.fullmatch(pattern, name):
                named = found.groupdict()
                ours = template.format(what=named.get("what"), count=int(named["count"]) - 1, part=found.groups()[-1])
        state[ours or name] = tensor
    state[STEM] = from_caffe(state[STEM].float())
    needs = {"stride_in": "1x1"} if "backbone.body.layer1.0.conv3.weight" in state else {}
    scores = state.get("roi_heads.box_predictor.cls_score.bias")
    classes = () if scores is None else published(len(scores) - 1)
    mean = "its mean was 122.7717 115.9465 102.9801: --input.mean 0.481458 0.454692 0.403843 gives its own outputs"
    return Ours(state, (STEM,), needs, classes, (NOTE, mean), tuple(left_out))
