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

    score_threshold: Annotated[BelowOne, Help("a candidate's class probability must be above this")] = 0.05
    nms_iou: Annotated[Share, Help("IoU from which the better of two boxes of one class stays")] = 0.5
    nms_rule: Annotated[Rule, Help("suppress boxes with an IoU of at least nms_iou (ge), or above it (gt)")] = "ge"
    topk_candidates: Annotated[Count, Help("boxes that enter suppression: of each class, or of all classes together")] = 200
    topk_per: Annotated[Literal["class", "image"], Help("what `candidates` counts per: class or image")] = "class"
    max_detections: Annotated[Count, Help("detections of an image at most")] = 200


@dataclass(frozen=True)
class SSDParity:
    """Switches that only reproduce an original program. The defaults are the MLPerf reference's rules."""

    new_bias: Annotated[NewBias, Help("first biases of new layers: U(+-1 / sqrt(fan_in)), or zero")] = "uniform"
    tie: Annotated[Tie, Help("which of two objects gets a default box that both match best")] = "last"
    box_order: Annotated[BoxOrder, Help("order of equal default boxes, of which an object takes the first")] = "cell"
    box_corners: Annotated[Literal["float32", "float64"], Help("precision of the default boxes' corners")] = "float32"
    clip_boxes: Annotated[bool, Help("clip predicted boxes to the image")] = False
    plus_one: Annotated[bool, Help("make boxes one pixel wider and higher, as NVIDIA's MXNet SSD did")] = False
    freeze_first_conv: Annotated[bool, Help("freeze the first convolution behind the stem too (Gaudi)")] = False


@dataclass(frozen=True)
class SSDModel(BackboneModel):
    """SSD on a trunk to stride 8 (a ResNet's to conv4), its matching and its loss. Defaults are the MLPerf reference's."""

    depth: Annotated[Depth, Help("layers of the ResNet, of which three stages are used; bottlenecks from 50 on")] = 34
    extra_channels: Annotated[int, Ge(4), MultipleOf(4), Help("filters of the first two extra maps; others have half")] = (
        512
    )
    extra_norm: Annotated[bool, Help("BatchNorm in the extra layers; helps training from scratch")] = False
    norm: Annotated[TrunkNorm, Help("frozen: keep the BatchNorm statistics and affine of --weights")] = "batch"
    fpn_channels: Annotated[Whole, Help("channels of a pyramid over strides 8, 16 and 32; 0: stride 8 by itself")] = 0
    scales: Annotated[tuple[AboveZero, ...], Help("box sizes / input's")] = (0.07, 0.15, 0.33, 0.51, 0.69, 0.87, 1.05)
    heads: Annotated[Literal["separate", "fused"], Help("class and box convolutions apart, or in one")] = "separate"
    head_channel_multiple: Annotated[Count, Help("heads fused: output channels are padded to a multiple of this")] = 8
    zero_init_residual: Annotated[bool, Help("start each residual branch at zero")] = False
    match_iou: Annotated[float, Gt(0), Lt(1), Help("a default box is positive by its IoU with an object")] = 0.5
    match_rule: Annotated[Rule, Help("a positive has an IoU above match_iou (gt), or at least it (ge)")] = "gt"
    negative_ratio: Annotated[ZeroOrMore, Help("hard negatives for each positive")] = 3.0
    loss: Annotated[SSDLoss, Help("focal: weight all default boxes by (1 - p)^gamma")] = "cross-entropy"
    focal_gamma: Annotated[ZeroOrMore, Help("focal: gamma")] = 2.0
    class_weights: Annotated[ClassWeights, Help("balanced: n / (K n_c), background 1")] = "none"
    loss_normalizer: Annotated[LossNormalizer, Help("divisor of the losses: positives of the image, or of the batch")] = (
        "image"
    )
    detect: Annotated[DetectionFilter, Help("decoding and suppression")] = field(default_factory=DetectionFilter)
    parity: Annotated[SSDParity, Help("rules of the original programs")] = field(default_factory=SSDParity)


@dataclass(frozen=True)
class ObjectInput(InputValues):
    """What the input of all networks has that find objects."""

    brightness: Annotated[Fraction, Help("factor from 1-b to 1+b")] = 0.125
    contrast: Annotated[Fraction, Help("factor from 1-c to 1+c")] = 0.5
    saturation: Annotated[Fraction, Help("factor from 1-s to 1+s")] = 0.5
    hue: Annotated[Turns, Help("turn from -h to +h, in turns: 0.05 is 18 degrees; System A had 0.5 degrees")] = 0.05
    skip_empty: Annotated[bool, Help("leave out training images without objects (COCO 2017: 1,021)")] = True
    min_object_area: Annotated[ZeroOrMore, Help("leave out training objects of a smaller area (square pixels)")] = 0.0
    min_box_area: Annotated[ZeroOrMore, Help("leave out those whose box is smaller (square pixels)")] = 0.0
    max_objects: Annotated[Whole, Help("largest objects of a photo that are learned, at most; 0: all")] = 0


@dataclass(frozen=True)
class BoxParity:
    """Switches that only reproduce an original program."""

    brightness_mode: Annotated[Brightness, Help("multiply by the brightness factor, or add it (Gaudi)")] = "multiply"
    free_crop: Annotated[FreeCrop, Help("unconstrained crop: any, or one that touches every object")] = "any"


@dataclass(frozen=True)
class BoxInput(ObjectInput):
    """How a photo and its boxes become network input. Recorded in the run, never changed by what happens to be installed."""

    image_size: Annotated[int, Ge(64), Help("side of the network's input, pixels; the aspect ratio is not kept")] = 300
    iou_crop: Annotated[Literal["ssd", "none"], Help("SSD random crop: seven options of equal probability")] = "ssd"
    crop_trials: Annotated[Count, Help("proposals for one drawn option before the option is drawn again")] = 1
    crop_scale: Annotated[tuple[Share, Share], Help("range of the crop's width and height, of the photo's")] = (0.3, 1.0)
    crop_ratio: Annotated[Ratios, Help("range of the crop's width / height, as shares of the photo's")] = (0.5, 2.0)
    zoom_out_max: Annotated[Times, Help("every second photo lies on a canvas of up to this many times its sides (4)")] = 1.0
    mosaic_prob: Annotated[Fraction, Help("probability of parts of four photos, in place of crop and zoom-out")] = 0.0
    color_jitter: Annotated[Jitter, Help("colour jitter: in HSV (reference), DALI's, TensorFlow's, or none")] = "hsv"
    resize: Annotated[BoxResize, Help("resizing to `size`; tensorflow: crops by corners")] = "bilinear-antialias"
    train_on_crowd: Annotated[bool, Help("train on crowd regions as on ordinary objects")] = True
    parity: Annotated[BoxParity, Help("rules of the original programs")] = field(default_factory=BoxParity)


BoxRecipe = Recipe[SSDModel, BoxInput]


def sampler_rule(recipe: Recipe[Any, Any]) -> tuple[str, Any, bool, str]:
    """Of every workload whose photos have several classes, for `check_rules`."""
    what = "a photo with objects has several classes, which are not drawn equally often; use repeat"
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
         f"--input.image-size {photo.image_size} gives {levels} levels, which need {levels + 1} scales or more"),
        ("--model.scales", model.scales, all(a < b for a, b in zip(model.scales, model.scales[1:])), "must be ascending"),
        *backbone_rules(model),
        decoder_rule(photo),
        ("--model.fpn-channels", model.fpn_channels, not model.fpn_channels or levels > 2,
        "needs three levels; choose a larger --input.image-size"),
        ("--model.parity.freeze-first-conv", model.parity.freeze_first_conv,
         not model.parity.freeze_first_conv or model.backbone == RESNET,
         f"only a ResNet has this convolution, and --model.backbone is {model.backbone}; use --model.freeze-stages"),
        ("--input.crop-scale", photo.crop_scale, small <= large, "shares of the photo, the smaller first"),
        ("--input.crop-ratio", photo.crop_ratio, narrow <= 1 <= wide, "a range around 1, smaller first"),
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
