"""The dataclasses that a Mask R-CNN or Faster R-CNN recipe adds to the shared fields: network with its sampling and losses, and data
treatment.

Defaults are torchvision's `maskrcnn_resnet50_fpn`; the MLPerf reference's and GluonCV's rules are presets in
config/recipes/maskrcnn.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

from paceline.config.constraints import (
    AboveZero,
    BelowOne,
    Count,
    Fraction,
    Ge,
    Help,
    MinLen,
    MultipleOf,
    Share,
    Whole,
    ZeroOrMore,
    check_bounds,
)
from paceline.config.recipe import Recipe, check_rules, check_sizes
from paceline.config.resnet import BackboneModel, Ratios, backbone_rules, decoder_rule
from paceline.config.ssd import Brightness, Jitter, ObjectInput, Resize, sampler_rule

# Names of choices whose field would otherwise not fit on one line with its comment.
Norm = Literal["frozen", "batch", "group"]
LayerNorm = Literal["none", "batch", "group"]
HeadNorm = Literal["none", "group"]
TopLevel = Literal["pool", "conv"]
Rounding = Literal["half-even", "legacy", "legacy-edges", "none"]
NMSOver = Literal["level", "image"]
PostOf = Literal["image", "batch"]
Fill = Literal["negatives", "any"]
Pooling = Literal["direct", "average"]
PoolingMode = Literal["align", "pool"]
MaskTarget = Literal["soft", "binary"]
Padding = Literal["buckets", "multiple"]
HeadInit = Literal["torchvision", "gluoncv"]
Clip = Literal["before", "after"]
WholeSides = Literal["cut", "rounded"]
Paste = Literal["torchvision", "gluoncv"]
BoxScales = tuple[AboveZero, AboveZero, AboveZero, AboveZero]
Channels = Annotated[int, Ge(0), MultipleOf(8)]
Lengths = Annotated[tuple[Annotated[int, Ge(32)], ...], MinLen(1)]


@dataclass(frozen=True)
class RPN:
    """The region proposal network: anchors, their targets, and how proposals are made of them."""

    channels: Annotated[Whole, Help("channels of the 3x3 convolution; 0: as in the FPN (GluonCV: 1024)")] = 0
    anchor_sizes: Annotated[tuple[AboveZero, ...], Help("anchor sizes, one per FPN level (pixels)")] = (
        32.0,
        64.0,
        128.0,
        256.0,
        512.0,
    )
    aspect_ratios: Annotated[tuple[AboveZero, ...], MinLen(1), Help("height / width of anchors")] = (0.5, 1.0, 2.0)
    fg_iou: Annotated[Share, Help("minimum IoU with an object for a positive anchor")] = 0.7
    bg_iou: Annotated[Share, Help("IoU with every object below which an anchor is negative")] = 0.3
    allow_low_quality_matches: Annotated[bool, Help("use the best anchor of each object as positive at any IoU")] = True
    keep_border_anchors: Annotated[bool, Help("train on anchors that cross the image border")] = True
    samples_per_image: Annotated[Count, Help("number of sampled anchors per image in the losses")] = 256
    positive_fraction: Annotated[Share, Help("maximum fraction of the sampled anchors that are positive")] = 0.5
    smooth_l1_beta: Annotated[AboveZero, Help("error at which smooth L1 becomes linear")] = 1 / 9
    pre_nms_topk_train: Annotated[Count, Help("anchors before NMS in training, per level or image (parity.nms_per)")] = 2000
    pre_nms_topk_test: Annotated[Count, Help("anchors before NMS in evaluation, per level or image")] = 1000
    post_nms_topk_train: Annotated[Count, Help("proposals after NMS in training")] = 2000
    post_nms_topk_test: Annotated[Count, Help("proposals after NMS in evaluation")] = 1000
    nms_iou: Annotated[Share, Help("IoU above which NMS removes the lower-scoring of two proposals")] = 0.7
    min_box_side: Annotated[float, Help("minimum width and height of a proposal (pixels)")] = 1e-3
    max_log_scale: Annotated[float, Help("maximum log scale of a box side (GluonCV: 4.42)")] = math.log(1000 / 16)


@dataclass(frozen=True)
class RoI:
    """Regions: which proposals train, how they are pooled, and the box head."""

    fg_iou: Annotated[Share, Help("minimum IoU with an object for a positive proposal")] = 0.5
    samples_per_image: Annotated[int, Help("number of sampled regions per image in the class loss")] = 512
    positive_fraction: Annotated[Share, Help("maximum fraction of the sampled regions that are positive")] = 0.25
    pool_size: Annotated[Count, Help("side of a pooled region (cells)")] = 7
    pool_type: Annotated[PoolingMode, Help("align: RoIAlign; pool: RoIPool, the maximum of each cell")] = "align"
    sampling_ratio: Annotated[Count, Help("sample points along the side of a cell; pool_type align only")] = 2
    aligned: Annotated[bool, Help("shift by half a pixel (detectron2); pool_type align only")] = False
    num_convs: Annotated[Whole, Help("3x3 convolutions before one FC layer; 0: two FC layers and no convolution")] = 0
    conv_channels: Annotated[Channels, Help("channels of the 3x3 convolutions; 0: as in the FPN")] = 0
    fc_channels: Annotated[Count, Help("width of the fully connected layers")] = 1024
    smooth_l1_beta: Annotated[AboveZero, Help("error at which smooth L1 becomes linear (MLPerf, GluonCV: 1)")] = 1 / 9
    box_reg_weights: Annotated[BoxScales, Help("scales of dx, dy, dw, and dh")] = (10.0, 10.0, 5.0, 5.0)
    max_log_scale: Annotated[float, Help("maximum log scale of a box side (GluonCV: 4.42)")] = math.log(1000 / 16)


@dataclass(frozen=True)
class MaskHead:
    """The mask head and its targets."""

    num_convs: Annotated[Count, Help("number of 3x3 convolutions")] = 4
    conv_channels: Annotated[Channels, Help("channels of the 3x3 convolutions; 0: as in the FPN")] = 0
    pool_size: Annotated[int, Ge(2), Help("side of a pooled region (cells); masks are twice as large")] = 14
    target: Annotated[MaskTarget, Help("soft: covered fraction of a cell; binary: at least half (MLPerf)")] = "soft"
    target_buffer_size: Annotated[int, Ge(8), Help("side of a stored mask (points); larger objects are coarser")] = 112
    sampling_ratio: Annotated[Whole, Help("sample points along the side of a target cell; 0: one per pixel")] = 0


@dataclass(frozen=True)
class InstanceFilter:
    """From class scores to detections."""

    score_threshold: Annotated[BelowOne, Help("class probability that a detection must exceed")] = 0.05
    nms_iou: Annotated[Share, Help("IoU above which NMS removes the lower-scoring of two boxes of a class")] = 0.5
    max_detections: Annotated[Count, Help("maximum number of detections per image (GluonCV: 1000)")] = 100
    topk_candidates: Annotated[int, Help("maximum region-class pairs before NMS, by score; accelerators only")] = 1000
    min_box_side: Annotated[float, Help("minimum width and height of a box (pixels)")] = 1e-2
    mask_threshold: Annotated[BelowOne, Help("probability above which a pixel belongs to the object")] = 0.5


@dataclass(frozen=True)
class MaskRCNNParity:
    """Switches that only reproduce an original program. The defaults are torchvision's rules."""

    anchor_rounding: Annotated[Rounding, Help("rounding of anchor boxes; legacy: as in Faster R-CNN")] = "half-even"
    post_nms_per: Annotated[PostOf, Help("scope of post_nms_topk_train; batch: as in MLPerf")] = "image"
    post_nms_batch: Annotated[Whole, Help("proposals per batch with post_nms_per batch; 0: sum over the images")] = 0
    nms_per: Annotated[NMSOver, Help("level: NMS per FPN level; image: over all levels (GluonCV)")] = "level"
    roi_fill: Annotated[Fill, Help("fill free samples with negatives only, or with any regions (GluonCV)")] = "negatives"
    roi_pooling: Annotated[Pooling, Help("direct: pool each cell; average: average four finer cells (GluonCV)")] = "direct"
    clip_boxes: Annotated[Clip, Help("clip boxes to the image; before: before NMS; after: after the masks")] = "before"
    mask_paste: Annotated[Paste, Help("integer mask boxes; torchvision: truncated; gluoncv: rounded")] = "torchvision"


@dataclass(frozen=True)
class MaskRCNNModel(BackboneModel):
    """Mask R-CNN on a trunk with a feature pyramid. Defaults are torchvision's with weights."""

    norm: Annotated[Norm, Help("backbone normalization; frozen: frozen BatchNorm; group: GroupNorm")] = "frozen"
    freeze_stages: Annotated[Whole, Help("number of frozen stages; 1: the stem; 2: also the first stage")] = 2
    bn_eps: Annotated[ZeroOrMore, Help("normalization epsilon; torchvision's COCO_V1 weights require 0")] = 1e-5
    min_fpn_level: Annotated[Literal[2, 3], Help("finest FPN level; 2: stride 4; 3: stride 8")] = 2
    fpn_channels: Annotated[int, Ge(8), MultipleOf(8), Help("channels of the FPN")] = 256
    fpn_norm: Annotated[LayerNorm, Help("normalization in the FPN")] = "none"
    head_norm: Annotated[HeadNorm, Help("normalization in the mask head and the convolutions of the box head")] = "none"
    fpn_top: Annotated[TopLevel, Help("FPN level 6; pool: every second cell of level 5; conv: as in GluonCV")] = "pool"
    init: Annotated[HeadInit, Help("initialization of the FPN and the heads")] = "torchvision"
    log_rcnn_accuracies: Annotated[bool, Help("also log GluonCV's six training accuracies, rpn_acc to mask_fg_acc")] = False
    masks: Annotated[bool, Help("predict masks in addition to boxes; off: Faster R-CNN")] = True
    loss_normalizer_images: Annotated[Whole, Help("images whose losses are normalized together; 0: the global batch")] = 0
    rpn: Annotated[RPN, Help("region proposal network")] = field(default_factory=RPN)
    roi: Annotated[RoI, Help("region sampling, pooling, and box head")] = field(default_factory=RoI)
    mask: Annotated[MaskHead, Help("mask head")] = field(default_factory=MaskHead)
    detect: Annotated[InstanceFilter, Help("thresholds and NMS of detections")] = field(default_factory=InstanceFilter)
    parity: Annotated[MaskRCNNParity, Help("rules of reference implementations")] = field(default_factory=MaskRCNNParity)


@dataclass(frozen=True)
class InstanceParity:
    """Switches that only reproduce an original program."""

    side_rounding: Annotated[WholeSides, Help("rounding of resized sides; cut: down; rounded: nearest (GluonCV)")] = "cut"
    brightness_mode: Annotated[Brightness, Help("multiply by the brightness factor or add it (Gaudi)")] = "multiply"


@dataclass(frozen=True)
class InstanceInput(ObjectInput):
    """How a photo and its objects become network input. Recorded in the run, never changed by what happens to be installed."""

    min_size: Annotated[Lengths, Help("length of the shorter side (pixels); multiple values: sample one per step")] = (800,)
    max_size: Annotated[int, Help("maximum length of the longer side (pixels); larger images are scaled down")] = 1333
    padding_mode: Annotated[Padding, Help("pad to one of a few shapes, or to the largest image, rounded up")] = "buckets"
    size_divisor: Annotated[int, Ge(32), MultipleOf(32), Help("divisor of the input height and width (pixels)")] = 32
    min_crop_scale: Annotated[Share, Help("minimum fraction of each side that a random crop keeps; 1: no crop")] = 1.0
    scale_jitter: Annotated[Ratios, Help("range of an additional random scale factor")] = (1.0, 1.0)
    copy_paste_prob: Annotated[Fraction, Help("probability of pasting in the objects of another image")] = 0.0
    color_jitter: Annotated[Jitter, Help("color jitter; hsv: HSV in random order; matrix: one matrix; none")] = "none"
    resize: Annotated[Resize, Help("interpolation of the resized image")] = "bilinear-antialias"
    parity: Annotated[InstanceParity, Help("rules of reference implementations")] = field(default_factory=InstanceParity)


InstanceRecipe = Recipe[MaskRCNNModel, InstanceInput]


def check_instances(recipe: InstanceRecipe) -> None:
    """Refuse a network or a data treatment that cannot be.

    Raises RecipeError naming the flag.
    """
    check_bounds(recipe)
    check_sizes(recipe)
    model, photo = recipe.model, recipe.input
    rpn, roi, detect, parity = model.rpn, model.roi, model.detect, model.parity
    levels = 7 - model.min_fpn_level
    group = model.loss_normalizer_images
    (small, large), whole = photo.scale_jitter, photo.min_crop_scale == 1
    check_rules(
        sampler_rule(recipe),
        *backbone_rules(model),
        decoder_rule(photo),
        ("--model.loss-normalizer-images", group, not group or recipe.global_batch_size % group == 0,
         f"must divide the global batch size {recipe.global_batch_size}, or be 0 for the whole batch"),
        ("--model.rpn.anchor-sizes", rpn.anchor_sizes, len(rpn.anchor_sizes) == levels,
         f"must have {levels} values, one per FPN level"),
        ("--model.rpn.bg-iou", rpn.bg_iou, rpn.bg_iou <= rpn.fg_iou,
         "must not be above --model.rpn.fg-iou"),
        ("--model.parity.post-nms-batch", parity.post_nms_batch, not parity.post_nms_batch or parity.post_nms_per == "batch",
         "requires --model.parity.post-nms-per batch"),
        ("--model.roi.samples-per-image", roi.samples_per_image, roi.samples_per_image * roi.positive_fraction >= 1,
         "must be at least 1 / --model.roi.positive-fraction to allow one positive region"),
        ("--model.detect.topk-candidates", detect.topk_candidates, detect.topk_candidates >= detect.max_detections,
         "must not be below --model.detect.max-detections"),
        ("--input.scale-jitter", photo.scale_jitter, small <= large, "must be ascending"),
        ("--input.copy-paste-prob", photo.copy_paste_prob, model.masks or not photo.copy_paste_prob,
         "requires masks, and this recipe has only boxes. Set --input.copy-paste-prob 0"),
        ("--input.scale-jitter", photo.scale_jitter, whole or small == large == 1,
         "not supported with random crops. Set --input.min-crop-scale 1"),
        ("--input.max-size", photo.max_size, photo.max_size >= max(photo.min_size), "must not be below --input.min-size"),
    )  # fmt: skip
