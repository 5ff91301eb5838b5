"""The dataclasses that a Mask R-CNN or Faster R-CNN recipe adds to the shared fields: network with its sampling and losses, and data
treatment.

Defaults are torchvision's `maskrcnn_resnet50_fpn`; the MLPerf reference's and GluonCV's rules are presets in recipes/maskrcnn.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

from paceline.config.bounds import (
    AboveZero,
    BelowOne,
    Count,
    Finite,
    Fraction,
    Ge,
    MinLen,
    MultipleOf,
    Share,
    Whole,
    ZeroOrMore,
    check_bounds,
)
from paceline.config.classification import Decoder, Exif, Ratios, TrunkModel, decoder_rule, trunk_rules
from paceline.config.detection import Brightness, Jitter, Resize, Turns, sampler_rule
from paceline.config.recipe import Recipe, refuse_huge, refuse_outside

# Names of choices whose field would otherwise not fit on one line with its comment.
Norm = Literal["frozen", "batch", "group"]
LayerNorm = Literal["none", "batch", "group"]
HeadNorm = Literal["none", "group"]
FrozenLayers = Literal["none", "stem", "stem_and_first"]
TopLevel = Literal["pool", "conv"]
Rounding = Literal["half_even", "legacy", "legacy_edges", "none"]
BestAnchor = Literal["positive", "negative"]
Edges = Literal["all", "inside"]
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

    channels: Whole = 0  # channels of its 3x3 convolution; 0 = as the pyramid (GluonCV: 1024)
    sizes: tuple[AboveZero, ...] = (32.0, 64.0, 128.0, 256.0, 512.0)  # anchor side of each level, pixels
    ratios: Annotated[tuple[AboveZero, ...], MinLen(1)] = (0.5, 1.0, 2.0)  # height / width of a cell's anchors
    rounding: Rounding = "half_even"  # of anchors: half to even, Faster R-CNN's way (by edges: MLPerf's), or exact
    positive_iou: Share = 0.7  # an anchor is positive from this IoU with an object on
    negative_iou: Share = 0.3  # an anchor is negative below this IoU with every object
    best_anchor: BestAnchor = "positive"  # an object's best anchor below negative_iou: positive, or negative (GluonCV)
    edges: Edges = "all"  # anchors that cross the photo's border: all train, or only those inside (MLPerf, GluonCV)
    samples: Count = 256  # anchors of an image that enter the losses
    positive_share: Share = 0.5  # of them positive at most
    beta: AboveZero = 1 / 9  # where smooth L1 turns from quadratic to linear
    pre_train: Count = 2000  # best anchors that enter suppression in training: of each level, or of the image
    pre_test: Count = 1000  # the same at test time
    post_train: Count = 2000  # proposals kept in training
    post_test: Count = 1000  # proposals kept at test time
    post_of: PostOf = "image"  # whether post_train counts per image, or per image of the loss group on average (MLPerf)
    post_group: Whole = 0  # with post_of batch: a loss group's proposals in all; 0 = post_train for each of its images
    nms_over: NMSOver = "level"  # boxes of one level compete, or all of an image (GluonCV)
    iou: Share = 0.7  # of two proposals that overlap by more, the better one stays
    least_side: float = 1e-3  # narrower or lower proposals are dropped, pixels
    limit: float = math.log(1000 / 16)  # most that a width or height may grow, logarithm (GluonCV: 4.42)


@dataclass(frozen=True)
class RoI:
    """Regions: which proposals train, how they are pooled, and the box head."""

    iou: Share = 0.5  # a proposal is positive from this IoU with an object on
    samples: int = 512  # regions of an image that enter the class loss
    positive_share: Share = 0.25  # of them positive at most
    fill: Fill = "negatives"  # places that lack negatives stay empty, or take positives too (GluonCV)
    side: Count = 7  # cells along a pooled region's side
    pooling: Pooling = "direct"  # pool 7x7 cells, or twice as many, averaged, and levels by sides + 1 (GluonCV)
    mode: PoolingMode = "align"  # RoIAlign, or RoIPool: the largest pixel of each cell, its edges rounded
    sampling_ratio: Count = 2  # sample points along a cell's side; mode align
    aligned: bool = False  # shift by half a pixel (detectron2); mode align
    convs: Whole = 0  # 3x3 convolutions of the box head, before one fully connected layer; 0 = none, and two of those
    conv_channels: Channels = 0  # their width; 0 = as the pyramid
    channels: Count = 1024  # width of the fully connected layers
    beta: AboveZero = 1 / 9  # where smooth L1 turns from quadratic to linear (MLPerf, GluonCV: 1)
    weights: BoxScales = (10.0, 10.0, 5.0, 5.0)  # scales of dx, dy, dw, dh
    limit: float = math.log(1000 / 16)  # most that a width or height may grow, logarithm (GluonCV: 4.42)


@dataclass(frozen=True)
class MaskHead:
    """The mask head and its targets."""

    convs: Count = 4  # 3x3 convolutions
    channels: Channels = 0  # their width; 0 = as the pyramid
    side: Annotated[int, Ge(2)] = 14  # cells along a pooled region's side; masks have twice as many
    target: MaskTarget = "soft"  # share of the object in a cell, or whether it is at least a half (MLPerf)
    canvas: Annotated[int, Ge(8)] = 112  # masks of larger objects are stored at so many points along a side
    sampling_ratio: Whole = 0  # targets: sample points along a cell's side; 0: as many as it has pixels (GluonCV: 2)


@dataclass(frozen=True)
class InstanceDetect:
    """From class scores to detections."""

    score_above: BelowOne = 0.05  # a detection's class probability must be above this
    iou: Share = 0.5  # of two boxes of one class that overlap by more, the better one stays
    keep: Count = 100  # detections of an image at most (GluonCV: 1000)
    candidates: int = 1000  # best pairs of region and class that enter suppression on an accelerator
    least_side: float = 1e-2  # narrower or lower boxes are dropped, pixels
    clip: Clip = "before"  # boxes are cut at the photo's border before suppression, or after masks are found (GluonCV)
    paste: Paste = "torchvision"  # a mask's box in whole pixels: cut, or rounded and smaller masks smoothed (GluonCV)
    mask_above: BelowOne = 0.5  # a pixel belongs to the object where its probability is above this


@dataclass(frozen=True)
class MaskRCNNModel(TrunkModel):
    """Mask R-CNN on a trunk with a feature pyramid. Defaults are torchvision's with weights."""

    norm: Norm = "frozen"  # the trunk's normalisation: BatchNorm with fixed statistics, BatchNorm, or GroupNorm
    frozen: FrozenLayers = "stem_and_first"  # trunk layers that do not train; resnet only
    bn_eps: ZeroOrMore = 1e-5  # normalisation epsilon; torchvision's COCO_V1 weights want 0
    first_level: Literal[2, 3] = 2  # finest level of the pyramid: stride 4 or 8
    channels: Annotated[int, Ge(8), MultipleOf(8)] = 256  # channels of the pyramid
    fpn_norm: LayerNorm = "none"  # normalisation in the pyramid
    head_norm: HeadNorm = "none"  # normalisation in the mask head, and in the box head's convolutions
    top: TopLevel = "pool"  # level 6: every second cell of level 5, or a convolution on level 5's lateral (GluonCV)
    init: HeadInit = "torchvision"  # law of the first weights of pyramid and heads; GluonCV's is its own
    accuracies: bool = False  # log GluonCV's six training accuracies too, rpn_acc to mask_fg_acc
    masks: bool = True  # find masks as well as boxes; without them it is Faster R-CNN, and learns from boxes alone
    loss_group: Whole = 0  # images over which losses are normalised together; 0 = the global batch
    rpn: RPN = field(default_factory=RPN)  # region proposal network
    roi: RoI = field(default_factory=RoI)  # regions and box head
    mask: MaskHead = field(default_factory=MaskHead)  # mask head
    detect: InstanceDetect = field(default_factory=InstanceDetect)  # scores to detections


@dataclass(frozen=True)
class InstanceInput:
    """How a photo and its objects become network input. Recorded in the run, never changed by what happens to be installed."""

    short: Lengths = (800,)  # length of the photo's shorter side, pixels; several: one is drawn for each step
    long: int = 1333  # most that the longer side may have, pixels; the photo is made smaller for it
    sides: WholeSides = "cut"  # resized sides are cut to whole pixels, or rounded (GluonCV)
    padding: Padding = "buckets"  # pad to one of a few shapes, or to the batch's largest photo, rounded up
    multiple: Annotated[int, Ge(32), MultipleOf(32)] = 32  # heights and widths of inputs are multiples of this
    crop: Share = 1.0  # a random crop keeps at least this share of each side; 1 = none
    scale_jitter: Ratios = (1.0, 1.0)  # range of a further factor on the size; beyond 1 a random part is kept (0.1 2)
    copy_paste: Fraction = 0.0  # probability that objects of another photo lie over this one, cut out along their masks
    flip: Fraction = 0.5  # probability of a horizontal flip
    vflip: Fraction = 0.0  # probability of a vertical flip
    rot90: Fraction = 0.0  # probability of a turn by 90, 180 or 270 degrees; 0.75: no direction is up
    jitter: Jitter = "none"  # colour jitter in HSV with random order, by one matrix, or none
    brightness: Fraction = 0.125  # factor from 1-b to 1+b
    brightness_form: Brightness = "multiply"  # or add from -b to +b, of the full scale
    contrast: Fraction = 0.5  # factor from 1-c to 1+c
    saturation: Fraction = 0.5  # factor from 1-s to 1+s
    hue: Turns = 0.05  # turn from -h to +h, in turns
    resize: Resize = "bilinear-antialias"  # how a photo becomes that size
    mean: tuple[Finite, Finite, Finite] = (0.485, 0.456, 0.406)  # subtracted from RGB in 0..1
    std: tuple[AboveZero, AboveZero, AboveZero] = (0.229, 0.224, 0.225)  # divides afterwards
    decoder: Decoder = "simplejpeg"  # JPEG decoder; auto: on the GPU where cores are short; paceline list decoders
    exif: Exif = "ignore"  # photos that the camera noted a rotation in: as they are stored, or as they are shown
    drop_empty: bool = True  # training images without objects are left out
    least_area: ZeroOrMore = 0.0  # training objects of a smaller annotated area are left out, pixels^2 (GluonCV: 1)
    least_box: ZeroOrMore = 0.0  # and those whose box has a smaller area inside the photo, square pixels (GluonCV: 4)
    most_objects: Whole = 0  # of a photo with more training objects only so many, the largest, are learned; 0 = all


InstanceRecipe = Recipe[MaskRCNNModel, InstanceInput]


def check_instances(recipe: InstanceRecipe) -> None:
    """Refuse a network or a data treatment that cannot be.

    Raises RecipeError naming the flag.
    """
    check_bounds(recipe)
    refuse_huge(recipe)
    model, photo = recipe.model, recipe.input
    rpn, roi, detect = model.rpn, model.roi, model.detect
    levels = 7 - model.first_level
    group = model.loss_group
    (small, large), whole = photo.scale_jitter, photo.crop == 1
    refuse_outside(
        sampler_rule(recipe),
        *trunk_rules(model),
        decoder_rule(photo),
        ("--model.loss-group", group, not group or recipe.global_batch % group == 0,
         f"must divide the global batch of {recipe.global_batch}, or be 0 for all of it"),
        ("--model.rpn.sizes", rpn.sizes, len(rpn.sizes) == levels, f"one size for each of the {levels} levels"),
        ("--model.rpn.negative-iou", rpn.negative_iou, rpn.negative_iou <= rpn.positive_iou,
         "must not be above --model.rpn.positive-iou"),
        ("--model.rpn.post-group", rpn.post_group, rpn.post_group == 0 or rpn.post_of == "batch",
         "counts with --model.rpn.post-of batch alone"),
        ("--model.roi.samples", roi.samples, roi.samples * roi.positive_share >= 1,
         "must leave room for a positive region: 1 / --model.roi.positive-share or more"),
        ("--model.detect.candidates", detect.candidates, detect.candidates >= detect.keep,
         "must not be below --model.detect.keep"),
        ("--input.scale-jitter", photo.scale_jitter, small <= large, "factors on the photo's size, the smaller first"),
        ("--input.copy-paste", photo.copy_paste, model.masks or not photo.copy_paste,
         "cuts objects out along their masks, and this recipe learns from boxes alone; leave it at 0"),
        ("--input.scale-jitter", photo.scale_jitter, whole or small == large == 1, "crops too; leave --input.crop at 1"),
        ("--input.long", photo.long, photo.long >= max(photo.short), "must not be below --input.short"),
    )  # fmt: skip
