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
    BackboneModel,
    ClassWeights,
    Depth,
    InputValues,
    LossKind,
    Ratios,
    TrunkNorm,
    backbone_rules,
    decoder_rule,
)

# Names of choices whose field would otherwise not fit on one line with its comment.
Positive = Literal["above", "at_least"]
Tie = Literal["last", "first"]
BoxOrder = Literal["cell", "cell-last", "anchor", "anchor-last"]
NewBias = Literal["uniform", "zero"]
LossOver = Literal["image", "batch"]
Frozen = Literal["none", "stem", "stem_and_first"]
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

    score_above: Annotated[BelowOne, Help("a candidate's class probability must be above this")] = 0.05
    iou: Annotated[Share, Help("IoU from which the better of two boxes of one class stays")] = 0.5
    overlap: Annotated[Literal["at_least", "above"], Help("suppress from that IoU on, or above it")] = "at_least"
    candidates: Annotated[Count, Help("boxes that enter suppression: of each class, or of all classes together")] = 200
    candidates_of: Annotated[Literal["class", "image"], Help("what `candidates` counts per: class or image")] = "class"
    keep: Annotated[Count, Help("detections of an image at most")] = 200
    clip: Annotated[bool, Help("cut boxes at the image's border")] = False
    plus_one: Annotated[bool, Help("widths and heights are one pixel larger, as System A reported them")] = False


@dataclass(frozen=True)
class SSDModel(BackboneModel):
    """SSD on a trunk to stride 8 (a ResNet's to conv4), its matching and its loss. Defaults are the MLPerf reference's."""

    depth: Annotated[Depth, Help("layers of the ResNet, of which three stages are used; bottlenecks from 50 on")] = 34
    extras: Annotated[int, Ge(4), MultipleOf(4), Help("filters of the first two extra maps; others have half")] = 512
    extras_norm: Annotated[bool, Help("BatchNorm in the extra layers; helps training from scratch")] = False
    norm: Annotated[TrunkNorm, Help("frozen: keep the BatchNorm statistics and affine of --weights")] = "batch"
    pyramid: Annotated[Whole, Help("channels of a pyramid over strides 8, 16 and 32; 0: stride 8 by itself")] = 0
    scales: Annotated[tuple[AboveZero, ...], Help("box sizes / input's")] = (0.07, 0.15, 0.33, 0.51, 0.69, 0.87, 1.05)
    heads: Annotated[Literal["separate", "fused"], Help("class and box convolutions apart, or in one")] = "separate"
    head_multiple: Annotated[Count, Help("heads fused: output channels are padded to a multiple of this")] = 8
    frozen: Annotated[Frozen, Help("trunk layers that do not train; resnet only (Gaudi: stem_and_first)")] = "none"
    zero_init_last_gamma: Annotated[bool, Help("start each residual branch at zero")] = False
    match_iou: Annotated[float, Gt(0), Lt(1), Help("a default box is positive by its IoU with an object")] = 0.5
    positive: Annotated[Positive, Help("IoU that makes a positive: above match_iou, or at least it")] = "above"
    new_bias: Annotated[NewBias, Help("first biases of new layers: U(+-1 / sqrt(fan_in)), or zero")] = "uniform"
    tie: Annotated[Tie, Help("which of two objects that want the same default box gets it")] = "last"
    box_order: Annotated[BoxOrder, Help("equal default boxes: an object takes the first, by cell or shape")] = "cell"
    box_corners: Annotated[Literal["float32", "float64"], Help("precision of default boxes' corners")] = "float32"
    negatives: Annotated[ZeroOrMore, Help("hard negatives for each positive")] = 3.0
    loss: Annotated[LossKind, Help("focal: weight all default boxes by (1 - p)^gamma")] = "cross_entropy"
    focal_gamma: Annotated[ZeroOrMore, Help("focal: gamma")] = 2.0
    class_weights: Annotated[ClassWeights, Help("balanced: n / (K n_c), background 1")] = "none"
    loss_over: Annotated[LossOver, Help("divisor of the losses: positives of the image, or of the batch")] = "image"
    detect: Annotated[DetectionFilter, Help("decoding and suppression")] = field(default_factory=DetectionFilter)


@dataclass(frozen=True)
class ObjectInput(InputValues):
    """What the input of all networks has that find objects."""

    brightness: Annotated[Fraction, Help("factor from 1-b to 1+b")] = 0.125
    brightness_form: Annotated[Brightness, Help("or add from -b to +b, of the full scale (Gaudi)")] = "multiply"
    contrast: Annotated[Fraction, Help("factor from 1-c to 1+c")] = 0.5
    saturation: Annotated[Fraction, Help("factor from 1-s to 1+s")] = 0.5
    hue: Annotated[Turns, Help("turn from -h to +h, in turns: 0.05 is 18 degrees; System A had 0.5 degrees")] = 0.05
    drop_empty: Annotated[bool, Help("leave out training images without objects (COCO 2017: 1,021)")] = True
    least_area: Annotated[ZeroOrMore, Help("leave out training objects of a smaller area (square pixels)")] = 0.0
    least_box: Annotated[ZeroOrMore, Help("leave out those whose box is smaller (square pixels)")] = 0.0
    most_objects: Annotated[Whole, Help("largest objects of a photo that are learned, at most; 0: all")] = 0


@dataclass(frozen=True)
class BoxInput(ObjectInput):
    """How a photo and its boxes become network input. Recorded in the run, never changed by what happens to be installed."""

    size: Annotated[int, Ge(64), Help("side of the network's input, pixels; the aspect ratio is not kept")] = 300
    crop: Annotated[Literal["ssd", "none"], Help("SSD random crop: seven options of equal probability")] = "ssd"
    crop_attempts: Annotated[Count, Help("proposals for one drawn option before the option is drawn again")] = 1
    crop_side: Annotated[tuple[Share, Share], Help("range of the crop's width and height, of the photo's")] = (0.3, 1.0)
    crop_aspect: Annotated[Ratios, Help("range of the crop's width / height, as shares of the photo's")] = (0.5, 2.0)
    crop_free: Annotated[FreeCrop, Help("unconstrained option: any crop, or one that touches every object")] = "any"
    zoom_out: Annotated[Times, Help("every second photo lies on a canvas of up to this many times its sides (4)")] = 1.0
    mosaic: Annotated[Fraction, Help("probability of parts of four photos, in place of crop and zoom-out")] = 0.0
    jitter: Annotated[Jitter, Help("colour jitter: in HSV (reference), DALI's, TensorFlow's, or none")] = "hsv"
    resize: Annotated[BoxResize, Help("resizing to `size`; tensorflow: crops by corners")] = "bilinear-antialias"
    crowd: Annotated[bool, Help("crowd regions take part in training as ordinary objects")] = True


BoxRecipe = Recipe[SSDModel, BoxInput]


def sampler_rule(recipe: Recipe[Any, Any]) -> tuple[str, Any, bool, str]:
    """Of every workload whose photos have several classes, for `check_rules`."""
    what = "a photo with objects has several classes, which are not drawn equally often; use repeat"
    return "--sampler", recipe.sampler, recipe.sampler != "balanced", what


def check_detection(recipe: BoxRecipe) -> None:
    """Refuse a network or a data treatment that cannot be.

    Raises RecipeError naming the flag.
    """
    check_bounds(recipe)
    check_sizes(recipe)
    model, photo = recipe.model, recipe.input
    levels = len(grid_sizes(photo.size))
    (small, large), (narrow, wide) = photo.crop_side, photo.crop_aspect
    check_rules(
        sampler_rule(recipe),
        ("--model.scales", model.scales, len(model.scales) > levels,
         f"--input.size {photo.size} gives {levels} levels, which need {levels + 1} scales or more"),
        ("--model.scales", model.scales, all(a < b for a, b in zip(model.scales, model.scales[1:])), "must be ascending"),
        *backbone_rules(model),
        decoder_rule(photo),
        ("--model.pyramid", model.pyramid, not model.pyramid or levels > 2, "needs three levels; choose a larger --input.size"),
        ("--input.crop-side", photo.crop_side, small <= large, "shares of the photo, the smaller first"),
        ("--input.crop-aspect", photo.crop_aspect, narrow <= 1 <= wide, "a range around 1, smaller first"),
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
