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

    channels: Annotated[Whole, Help("channels of its 3x3 convolution; 0: as the pyramid (GluonCV: 1024)")] = 0
    anchor_sizes: Annotated[tuple[AboveZero, ...], Help("anchor side by level (pixels)")] = (
        32.0,
        64.0,
        128.0,
        256.0,
        512.0,
    )
    aspect_ratios: Annotated[tuple[AboveZero, ...], MinLen(1), Help("height / width of a cell's anchors")] = (0.5, 1.0, 2.0)
    fg_iou: Annotated[Share, Help("an anchor is positive from this IoU with an object on")] = 0.7
    bg_iou: Annotated[Share, Help("an anchor is negative below this IoU with every object")] = 0.3
    allow_low_quality_matches: Annotated[bool, Help("an object's best anchor is positive at any IoU")] = True
    keep_border_anchors: Annotated[bool, Help("train on anchors that cross the image border")] = True
    samples_per_image: Annotated[Count, Help("anchors of an image that enter the losses")] = 256
    positive_fraction: Annotated[Share, Help("of them positive at most")] = 0.5
    smooth_l1_beta: Annotated[AboveZero, Help("where smooth L1 turns from quadratic to linear")] = 1 / 9
    pre_nms_topk_train: Annotated[
        Count, Help("best anchors that enter suppression in training, of a level or an image")
    ] = 2000
    pre_nms_topk_test: Annotated[Count, Help("the same at test time")] = 1000
    post_nms_topk_train: Annotated[Count, Help("proposals kept in training")] = 2000
    post_nms_topk_test: Annotated[Count, Help("proposals kept at test time")] = 1000
    nms_iou: Annotated[Share, Help("of two proposals that overlap by more, the better one stays")] = 0.7
    min_box_side: Annotated[float, Help("narrower or lower proposals are dropped, pixels")] = 1e-3
    max_log_scale: Annotated[float, Help("largest growth of a side, logarithm (GluonCV: 4.42)")] = math.log(1000 / 16)


@dataclass(frozen=True)
class RoI:
    """Regions: which proposals train, how they are pooled, and the box head."""

    fg_iou: Annotated[Share, Help("a proposal is positive from this IoU with an object on")] = 0.5
    samples_per_image: Annotated[int, Help("regions of an image that enter the class loss")] = 512
    positive_fraction: Annotated[Share, Help("of them positive at most")] = 0.25
    pool_size: Annotated[Count, Help("cells along a pooled region's side")] = 7
    pool_type: Annotated[PoolingMode, Help("RoIAlign, or RoIPool: the largest pixel of each cell")] = "align"
    sampling_ratio: Annotated[Count, Help("sample points along a cell's side; mode align")] = 2
    aligned: Annotated[bool, Help("shift by half a pixel (detectron2); mode align")] = False
    num_convs: Annotated[Whole, Help("3x3 convolutions before one fully connected layer; 0: two of those")] = 0
    conv_channels: Annotated[Channels, Help("their width; 0: as the pyramid")] = 0
    fc_channels: Annotated[Count, Help("width of the fully connected layers")] = 1024
    smooth_l1_beta: Annotated[AboveZero, Help("where smooth L1 turns from quadratic to linear (MLPerf, GluonCV: 1)")] = (
        1 / 9
    )
    box_reg_weights: Annotated[BoxScales, Help("scales of dx, dy, dw, dh")] = (10.0, 10.0, 5.0, 5.0)
    max_log_scale: Annotated[float, Help("largest growth of a side, logarithm (GluonCV: 4.42)")] = math.log(1000 / 16)


@dataclass(frozen=True)
class MaskHead:
    """The mask head and its targets."""

    num_convs: Annotated[Count, Help("3x3 convolutions")] = 4
    conv_channels: Annotated[Channels, Help("their width; 0: as the pyramid")] = 0
    pool_size: Annotated[int, Ge(2), Help("cells along a pooled region's side; masks have twice as many")] = 14
    target: Annotated[MaskTarget, Help("share of the object in a cell, or at least a half (MLPerf)")] = "soft"
    target_buffer_size: Annotated[
        int, Ge(8), Help("masks of larger objects are stored at this many points along a side")
    ] = 112
    sampling_ratio: Annotated[Whole, Help("sample points of targets along a cell's side; 0: its pixels")] = 0


@dataclass(frozen=True)
class InstanceFilter:
    """From class scores to detections."""

    score_threshold: Annotated[BelowOne, Help("a detection's class probability must be above this")] = 0.05
    nms_iou: Annotated[Share, Help("of two boxes of one class that overlap by more, the better one stays")] = 0.5
    max_detections: Annotated[Count, Help("detections of an image at most (GluonCV: 1000)")] = 100
    topk_candidates: Annotated[int, Help("best pairs of region and class that enter suppression on an accelerator")] = 1000
    min_box_side: Annotated[float, Help("narrower or lower boxes are dropped, pixels")] = 1e-2
    mask_threshold: Annotated[BelowOne, Help("a pixel belongs to the object where its probability is above this")] = 0.5


@dataclass(frozen=True)
class MaskRCNNParity:
    """Switches that only reproduce an original program. The defaults are torchvision's rules."""

    anchor_rounding: Annotated[Rounding, Help("rounding of anchors: Faster R-CNN's, by edges, or none")] = "half-even"
    post_nms_per: Annotated[PostOf, Help("what post_nms_topk_train counts per: image, or batch (MLPerf)")] = "image"
    post_nms_batch: Annotated[Whole, Help("proposals of a batch if counted per batch; 0: the sum over images")] = 0
    nms_per: Annotated[NMSOver, Help("suppress proposals by level, or all of an image together (GluonCV)")] = "level"
    roi_fill: Annotated[Fill, Help("leave places that lack negatives empty, or fill them with any (GluonCV)")] = "negatives"
    roi_pooling: Annotated[Pooling, Help("pool cells directly, or average four finer ones (GluonCV)")] = "direct"
    clip_boxes: Annotated[Clip, Help("clip boxes to the image before suppression, or after masks")] = "before"
    mask_paste: Annotated[Paste, Help("whole pixels of a mask's box: torchvision cuts, GluonCV rounds")] = "torchvision"


@dataclass(frozen=True)
class MaskRCNNModel(BackboneModel):
    """Mask R-CNN on a trunk with a feature pyramid. Defaults are torchvision's with weights."""

    norm: Annotated[Norm, Help("normalization of the trunk: frozen BatchNorm, BatchNorm, or GroupNorm")] = "frozen"
    freeze_stages: Annotated[Whole, Help("stages that do not train; 1: the stem; 2: the first stage too")] = 2
    bn_eps: Annotated[ZeroOrMore, Help("normalization epsilon; torchvision's COCO_V1 weights want 0")] = 1e-5
    min_fpn_level: Annotated[Literal[2, 3], Help("finest level of the pyramid: stride 4 or 8")] = 2
    fpn_channels: Annotated[int, Ge(8), MultipleOf(8), Help("channels of the pyramid")] = 256
    fpn_norm: Annotated[LayerNorm, Help("normalization in the pyramid")] = "none"
    head_norm: Annotated[HeadNorm, Help("normalization in the mask head, and in the box head's convolutions")] = "none"
    fpn_top: Annotated[TopLevel, Help("level 6: every second cell of level 5, or a convolution (GluonCV)")] = "pool"
    init: Annotated[HeadInit, Help("law of the first weights of pyramid and heads")] = "torchvision"
    log_rcnn_accuracies: Annotated[bool, Help("log GluonCV's six training accuracies too, rpn_acc to mask_fg_acc")] = False
    masks: Annotated[bool, Help("find masks as well as boxes; without them it is Faster R-CNN")] = True
    loss_normalizer_images: Annotated[
        Whole, Help("images over which losses are normalized together; 0: the global batch")
    ] = 0
    rpn: Annotated[RPN, Help("region proposal network")] = field(default_factory=RPN)
    roi: Annotated[RoI, Help("regions and box head")] = field(default_factory=RoI)
    mask: Annotated[MaskHead, Help("mask head")] = field(default_factory=MaskHead)
    detect: Annotated[InstanceFilter, Help("scores to detections")] = field(default_factory=InstanceFilter)
    parity: Annotated[MaskRCNNParity, Help("rules of the original programs")] = field(default_factory=MaskRCNNParity)


@dataclass(frozen=True)
class InstanceParity:
    """Switches that only reproduce an original program."""

    side_rounding: Annotated[WholeSides, Help("resized sides are cut to whole pixels, or rounded (GluonCV)")] = "cut"
    brightness_mode: Annotated[Brightness, Help("multiply by the brightness factor, or add it (Gaudi)")] = "multiply"


@dataclass(frozen=True)
class InstanceInput(ObjectInput):
    """How a photo and its objects become network input. Recorded in the run, never changed by what happens to be installed."""

    min_size: Annotated[Lengths, Help("length of the shorter side (pixels); several: draw one a step")] = (800,)
    max_size: Annotated[int, Help("most that the longer side may have, pixels; the photo is made smaller for it")] = 1333
    padding_mode: Annotated[Padding, Help("pad to one of a few shapes, or to the largest photo, rounded up")] = "buckets"
    size_divisor: Annotated[int, Ge(32), MultipleOf(32), Help("heights and widths of inputs are multiples of this")] = 32
    min_crop_scale: Annotated[Share, Help("a random crop keeps at least this share of each side; 1: none")] = 1.0
    scale_jitter: Annotated[Ratios, Help("range of a further factor on the size")] = (1.0, 1.0)
    copy_paste_prob: Annotated[Fraction, Help("probability that another photo's objects are pasted in")] = 0.0
    color_jitter: Annotated[Jitter, Help("colour jitter in HSV with random order, by one matrix, or none")] = "none"
    resize: Annotated[Resize, Help("how a photo becomes that size")] = "bilinear-antialias"
    parity: Annotated[InstanceParity, Help("rules of the original programs")] = field(default_factory=InstanceParity)


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
         f"must divide the global batch of {recipe.global_batch_size}, or be 0 for all of it"),
        ("--model.rpn.anchor-sizes", rpn.anchor_sizes, len(rpn.anchor_sizes) == levels, f"one size for each of the {levels} levels"),
        ("--model.rpn.bg-iou", rpn.bg_iou, rpn.bg_iou <= rpn.fg_iou,
         "must not be above --model.rpn.fg-iou"),
        ("--model.parity.post-nms-batch", parity.post_nms_batch, not parity.post_nms_batch or parity.post_nms_per == "batch",
         "counts with --model.parity.post-nms-per batch alone"),
        ("--model.roi.samples-per-image", roi.samples_per_image, roi.samples_per_image * roi.positive_fraction >= 1,
         "must leave room for a positive region: 1 / --model.roi.positive-fraction or more"),
        ("--model.detect.topk-candidates", detect.topk_candidates, detect.topk_candidates >= detect.max_detections,
         "must not be below --model.detect.max-detections"),
        ("--input.scale-jitter", photo.scale_jitter, small <= large, "factors on the photo's size, the smaller first"),
        ("--input.copy-paste-prob", photo.copy_paste_prob, model.masks or not photo.copy_paste_prob,
         "cuts objects out along their masks, and this recipe learns from boxes alone; leave it at 0"),
        ("--input.scale-jitter", photo.scale_jitter, whole or small == large == 1, "crops too; leave --input.min-crop-scale at 1"),
        ("--input.max-size", photo.max_size, photo.max_size >= max(photo.min_size), "must not be below --input.min-size"),
    )  # fmt: skip
