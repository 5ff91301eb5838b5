"""The dataclasses that an SSD recipe adds to the shared fields: network with loss and decoding, and data treatment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from paceline.config.constraints import (
    AboveZero,
    BelowOne,
    Count,
    Fraction,
    Ge,
    Gt,
    Help,
    Le,
    Lt,
    MultipleOf,
    Share,
    Whole,
    ZeroOrMore,
    check_bounds,
)
from paceline.config.recipe import Recipe, check_rules, check_sizes
from paceline.config.resnet import (
    RESNET,
    BackboneModel,
    ClassWeights,
    Depth,
    InputValues,
    Ratios,
    TrunkNorm,
    backbone_rules,
    decoder_rule,
)

# Names of choices whose field would otherwise not fit on one line with its comment.
Rule = Literal["gt", "ge"]
Tie = Literal["last", "first"]
SSDLoss = Literal["cross-entropy", "focal"]
BoxOrder = Literal["cell", "cell-last", "anchor", "anchor-last"]
NewBias = Literal["uniform", "zero"]
LossNormalizer = Literal["image", "batch"]
Resize = Literal["bilinear-antialias", "bilinear"]
BoxResize = Literal["bilinear-antialias", "bilinear", "tensorflow"]
Jitter = Literal["hsv", "matrix", "dali", "tensorflow", "none"]
Brightness = Literal["multiply", "add"]
FreeCrop = Literal["any", "touching"]
Turns = Annotated[float, Ge(0), Le(0.5)]
Times = Annotated[float, Ge(1)]


@dataclass(frozen=True)
class DetectionFilter:
    """From network output to detections. Defaults are the MLPerf reference's; System A (MXNet) differs in five of them."""

    score_threshold: Annotated[BelowOne, Help("class probability that a detection must exceed")] = 0.05
    nms_iou: Annotated[Share, Help("IoU at which NMS removes the lower-scoring of two boxes of a class")] = 0.5
    nms_rule: Annotated[Rule, Help("ge: NMS removes boxes with IoU >= nms_iou; gt: with IoU > nms_iou")] = "ge"
    topk_candidates: Annotated[Count, Help("boxes before NMS, per class or image (topk_per)")] = 200
    topk_per: Annotated[Literal["class", "image"], Help("scope of topk_candidates; image: all classes together")] = "class"
    max_detections: Annotated[Count, Help("maximum number of detections per image")] = 200


@dataclass(frozen=True)
class SSDParity:
    """Switches that only reproduce an original program. The defaults are the MLPerf reference's rules."""

    new_bias: Annotated[NewBias, Help("initial biases of new layers; uniform: U(+-1 / sqrt(fan_in)); zero: 0")] = "uniform"
    tie: Annotated[Tie, Help("object that gets a default box that is the best match of two objects")] = "last"
    box_order: Annotated[BoxOrder, Help("order of equally good default boxes; an object matches the first")] = "cell"
    box_corners: Annotated[Literal["float32", "float64"], Help("precision of the corners of default boxes")] = "float32"
    clip_boxes: Annotated[bool, Help("clip predicted boxes to the image")] = False
    plus_one: Annotated[bool, Help("make boxes one pixel wider and higher, as in NVIDIA's MXNet SSD")] = False
    freeze_first_conv: Annotated[bool, Help("also freeze the first convolution after the stem (Gaudi)")] = False


@dataclass(frozen=True)
class SSDModel(BackboneModel):
    """SSD on a trunk to stride 8 (a ResNet's to conv4), its matching and its loss. Defaults are the MLPerf reference's."""

    depth: Annotated[Depth, Help("depth of the ResNet, of which three stages are used; 50 or more: bottlenecks")] = 34
    extra_channels: Annotated[
        int, Ge(4), MultipleOf(4), Help("channels of the first two extra feature maps; the others have half")
    ] = 512
    extra_norm: Annotated[bool, Help("use BatchNorm in the extra layers, for training from scratch")] = False
    norm: Annotated[TrunkNorm, Help("BatchNorm; frozen: fixed statistics and affine parameters of --weights")] = "batch"
    fpn_channels: Annotated[Whole, Help("channels of an FPN over strides 8, 16, and 32; 0: no FPN, stride 8 only")] = 0
    scales: Annotated[tuple[AboveZero, ...], Help("box sizes / input size")] = (0.07, 0.15, 0.33, 0.51, 0.69, 0.87, 1.05)
    heads: Annotated[Literal["separate", "fused"], Help("class and box convolutions: separate, or in one")] = "separate"
    head_channel_multiple: Annotated[Count, Help("multiple to which output channels are padded; heads fused only")] = 8
    zero_init_residual: Annotated[bool, Help("initialize each residual branch to zero")] = False
    match_iou: Annotated[float, Gt(0), Lt(1), Help("IoU threshold between a default box and an object for a match")] = 0.5
    match_rule: Annotated[Rule, Help("gt: match if IoU > match_iou; ge: match if IoU >= match_iou")] = "gt"
    negative_ratio: Annotated[ZeroOrMore, Help("number of hard negatives per positive")] = 3.0
    loss: Annotated[SSDLoss, Help("class loss; focal: weights all default boxes by (1 - p)^gamma")] = "cross-entropy"
    focal_gamma: Annotated[ZeroOrMore, Help("gamma of the focal loss")] = 2.0
    class_weights: Annotated[ClassWeights, Help("class weights; balanced: n / (K n_c), background 1")] = "none"
    loss_normalizer: Annotated[LossNormalizer, Help("divisor of the losses: positives per image or per batch")] = "image"
    detect: Annotated[DetectionFilter, Help("thresholds and NMS of detections")] = field(default_factory=DetectionFilter)
    parity: Annotated[SSDParity, Help("rules of reference implementations")] = field(default_factory=SSDParity)


@dataclass(frozen=True)
class ObjectInput(InputValues):
    """What the input of all networks has that find objects."""

    brightness: Annotated[Fraction, Help("brightness factor, from 1 - b to 1 + b")] = 0.125
    contrast: Annotated[Fraction, Help("contrast factor, from 1 - c to 1 + c")] = 0.5
    saturation: Annotated[Fraction, Help("saturation factor, from 1 - s to 1 + s")] = 0.5
    hue: Annotated[Turns, Help("hue rotation, from -h to +h (turns; 0.05: 18 degrees)")] = 0.05
    skip_empty: Annotated[bool, Help("skip training images without objects (COCO 2017: 1,021)")] = True
    min_object_area: Annotated[ZeroOrMore, Help("skip training objects with a smaller area (square pixels)")] = 0.0
    min_box_area: Annotated[ZeroOrMore, Help("skip training objects with a smaller box area (square pixels)")] = 0.0
    max_objects: Annotated[Whole, Help("maximum number of training objects per image, largest first; 0: all")] = 0


@dataclass(frozen=True)
class BoxParity:
    """Switches that only reproduce an original program."""

    brightness_mode: Annotated[Brightness, Help("multiply by the brightness factor or add it (Gaudi)")] = "multiply"
    free_crop: Annotated[FreeCrop, Help("crop without an IoU limit; touching: it overlaps every object")] = "any"


@dataclass(frozen=True)
class BoxInput(ObjectInput):
    """How a photo and its boxes become network input. Recorded in the run, never changed by what happens to be installed."""

    image_size: Annotated[int, Ge(64), Help("side of the network input (pixels); the aspect ratio is not kept")] = 300
    iou_crop: Annotated[Literal["ssd", "none"], Help("SSD random crop, with seven equally likely options")] = "ssd"
    crop_trials: Annotated[Count, Help("attempts per crop option before another option is sampled")] = 1
    crop_scale: Annotated[tuple[Share, Share], Help("range of crop sides, as fractions of the image")] = (0.3, 1.0)
    crop_ratio: Annotated[Ratios, Help("range of crop width / height, relative to the image")] = (0.5, 2.0)
    zoom_out_max: Annotated[Times, Help("maximum canvas size in zoom-out, for half of the images (SSD: 4); 1: off")] = 1.0
    mosaic_prob: Annotated[Fraction, Help("probability of a mosaic of four images, instead of crop and zoom-out")] = 0.0
    color_jitter: Annotated[Jitter, Help("color jitter; hsv: HSV, as in the reference; matrix: one matrix; none")] = "hsv"
    resize: Annotated[BoxResize, Help("interpolation for resizing; tensorflow: crops by corners")] = "bilinear-antialias"
    train_on_crowd: Annotated[bool, Help("train on crowd regions as on other objects")] = True
    parity: Annotated[BoxParity, Help("rules of reference implementations")] = field(default_factory=BoxParity)


BoxRecipe = Recipe[SSDModel, BoxInput]


def sampler_rule(recipe: Recipe[Any, Any]) -> tuple[str, Any, bool, str]:
    """Of every workload whose photos have several classes, for `check_rules`."""
    what = "not supported, because an image has objects of multiple classes. Use --sampler repeat-factor"
    return "--sampler", recipe.sampler, recipe.sampler != "class-balanced", what


def check_detection(recipe: BoxRecipe) -> None:
    """Refuse a network or a data treatment that cannot be.

    Raises RecipeError naming the flag.
    """
    check_bounds(recipe)
    check_sizes(recipe)
    model, photo = recipe.model, recipe.input
    levels = len(grid_sizes(photo.image_size))
    (small, large), (narrow, wide) = photo.crop_scale, photo.crop_ratio
    check_rules(
        sampler_rule(recipe),
        ("--model.scales", model.scales, len(model.scales) > levels,
         f"--input.image-size {photo.image_size} gives {levels} levels and requires at least {levels + 1} scales"),
        ("--model.scales", model.scales, all(a < b for a, b in zip(model.scales, model.scales[1:])), "must be ascending"),
        *backbone_rules(model),
        decoder_rule(photo),
        ("--model.fpn-channels", model.fpn_channels, not model.fpn_channels or levels > 2,
        "requires three levels. Use a larger --input.image-size"),
        ("--model.parity.freeze-first-conv", model.parity.freeze_first_conv,
         not model.parity.freeze_first_conv or model.backbone == RESNET,
         f"requires --model.backbone resnet, not {model.backbone}. Use --model.freeze-stages instead"),
        ("--input.crop-scale", photo.crop_scale, small <= large, "must be ascending"),
        ("--input.crop-ratio", photo.crop_ratio, narrow <= 1 <= wide, "must be an ascending range that contains 1"),
    )  # fmt: skip


def grid_sizes(size: int) -> tuple[int, ...]:
    """Cells along one side of each level's map for a square input of `size` pixels: 300 -> (38, 19, 10, 5, 3, 1).

    The stem, its pooling and the second stage halve with padding; three extra layers halve again, and up to two
    more take a border off, while there is one. Source: MLPerf reference SSD, base_model.py and ssd300.py.
    """
    side = size
    for _ in range(3):
        side = (side + 1) // 2
    sides = [side]
    for _ in range(3):
        sides.append((sides[-1] + 1) // 2)
    while len(sides) < 6 and sides[-1] >= 3:
        sides.append(sides[-1] - 2)
    return tuple(sides)
