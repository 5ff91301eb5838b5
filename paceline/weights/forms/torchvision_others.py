"""torchvision's detectors that none of our networks is, told from the names of their tensors: what they are, and what of them fits.

Source: torchvision (models/detection/: faster_rcnn.py, mask_rcnn.py, keypoint_rcnn.py, retinanet.py, fcos.py, ssd.py).
"""

from __future__ import annotations

from paceline.weights.forms.ours import Tensors

MASKS = "roi_heads.mask_predictor.mask_fcn_logits.weight"
SCORES = "roi_heads.box_predictor.cls_score.weight"
# The second convolution of the proposal head, which the _v2 networks have, with BatchNorm in pyramid and heads.
SECOND = "rpn.head.conv.1.0.weight"
TRUNK = "the trunk alone fits: `paceline weights convert FILE --to timm` writes it"


def lacks(names: Tensors) -> str:
    """What such a file is and what of it fits, in words; "" for all others."""
    if "roi_heads.keypoint_predictor.kps_score_lowres.weight" in names:
        return f"torchvision's keypointrcnn_resnet50_fpn, which finds key points and no masks; {TRUNK}"
    if SECOND in names and SCORES in names:
        name = "maskrcnn" if MASKS in names else "fasterrcnn"
        return (
            f"torchvision's {name}_resnet50_fpn_v2: two convolutions in the proposal head and BatchNorm in pyramid and heads, "
            f"which this network lacks; {TRUNK}"
        )
    if is_faster_rcnn(names):
        return (
            "torchvision's fasterrcnn_resnet50_fpn, boxes without masks: trunk, pyramid, proposals and box head fit Mask R-CNN "
            "for training, and its mask head and class rows start anew"
        )
    if any(name.startswith("head.classification_head.") for name in names):
        return "one of torchvision's one-stage detectors (RetinaNet, FCOS, SSD300 on VGG, SSDlite), and no network here is one"
    return ""


def is_faster_rcnn(names: Tensors) -> bool:
    """Whether it is a Mask R-CNN but for its masks."""
    return SCORES in names and "roi_heads.box_head.fc6.weight" in names and not any("mask_" in name for name in names)
