"""The dataclasses that an SSD recipe adds to the shared fields: network with loss and decoding, and data treatment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from paceline.config.bounds import (
    AboveZero,
    BelowOne,
    Count,
    Finite,
    Fraction,
    Ge,
    Gt,
    Le,
    Lt,
    MultipleOf,
    Share,
    Whole,
    ZeroOrMore,
    check_bounds,
)
from paceline.config.classification import (
    ClassWeights,
    Decoder,
    Depth,
    Exif,
    LossKind,
    Ratios,
    TrunkModel,
    TrunkNorm,
    decoder_rule,
    trunk_rules,
)
from paceline.config.recipe import Recipe, refuse_huge, refuse_outside

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
class Detect:
    """From network output to detections. Defaults are the MLPerf reference's; System A (MXNet) differs in five of them."""

    score_above: BelowOne = 0.05  # a candidate's class probability must be above this
    iou: Share = 0.5  # of two boxes of one class that overlap by this IoU or more, the better one stays
    overlap: Literal["at_least", "above"] = "at_least"  # suppressed from that IoU on, or above it alone (MXNet)
    candidates: Count = 200  # boxes that enter suppression: of each class, or of all classes together
    candidates_of: Literal["class", "image"] = "class"  # whether `candidates` counts per class or per image
    keep: Count = 200  # detections of an image at most
    clip: bool = False  # cut boxes at the image's border
    plus_one: bool = False  # widths and heights are one pixel larger, as System A reported them


@dataclass(frozen=True)
class SSDModel(TrunkModel):
    """SSD on a trunk to stride 8 (a ResNet's to conv4), its matching and its loss. Defaults are the MLPerf reference's."""

    depth: Depth = 34  # layers of the ResNet, of which three stages are used; bottlenecks from 50 on
    extras: Annotated[int, Ge(4), MultipleOf(4)] = 512  # filters of the first two extra maps; the others have half
    extras_norm: bool = False  # BatchNorm in the extra layers; helps training from scratch
    norm: TrunkNorm = "batch"  # of the trunk; frozen: BatchNorms keep the statistics and the affine that --weights have
    pyramid: Whole = 0  # channels of a pyramid over the maps of stride 8, 16 and 32; 0: the map of stride 8 alone
    scales: tuple[AboveZero, ...] = (0.07, 0.15, 0.33, 0.51, 0.69, 0.87, 1.05)  # default boxes' sizes, of the input's
    heads: Literal["separate", "fused"] = "separate"  # class and box convolutions apart, or one a level
    head_multiple: Count = 8  # heads fused: output channels are padded to a multiple of this
    frozen: Frozen = "none"  # trunk layers that do not train (Gaudi 1.7 and later: stem_and_first); resnet only
    zero_init_last_gamma: bool = False  # start each residual branch at zero
    match_iou: Annotated[float, Gt(0), Lt(1)] = 0.5  # a default box is positive by its IoU with an object
    positive: Positive = "above"  # IoU must be above match_iou, or at least match_iou (TensorFlow's rule)
    new_bias: NewBias = "uniform"  # first biases of extra layers and heads: U(+-1 / sqrt(fan_in)), or zero (TensorFlow)
    tie: Tie = "last"  # which of two objects that want the same default box gets it
    box_order: BoxOrder = "cell"  # an object takes the first (or last) of equal default boxes, by cell or by shape
    box_corners: Literal["float32", "float64"] = "float32"  # in which default boxes' corners are found, then float32
    negatives: ZeroOrMore = 3.0  # hard negatives for each positive
    loss: LossKind = "cross_entropy"  # or focal: all default boxes, by (1 - p)^gamma; worse on few photos
    focal_gamma: ZeroOrMore = 2.0  # focal: gamma
    class_weights: ClassWeights = "none"  # balanced: n / (K n_c), background 1; no gain on few photos
    loss_over: LossOver = "image"  # losses are divided by each image's positives, or by the global batch's
    detect: Detect = field(default_factory=Detect)  # decoding and suppression


@dataclass(frozen=True)
class BoxInput:
    """How a photo and its boxes become network input. Recorded in the run, never changed by what happens to be installed."""

    size: Annotated[int, Ge(64)] = 300  # side of the network's input, pixels; the aspect ratio is not kept
    crop: Literal["ssd", "none"] = "ssd"  # SSD random crop: seven options of equal probability
    crop_attempts: Count = 1  # proposals for one drawn option before the option is drawn again
    crop_side: tuple[Share, Share] = (0.3, 1.0)  # range of the crop's width and of its height, of the photo's
    crop_aspect: Ratios = (0.5, 2.0)  # range of the crop's width / height, both as shares of the photo's
    crop_free: FreeCrop = "any"  # the unconstrained option: any crop (DALI too), or one that touches every object
    zoom_out: Times = 1.0  # every second photo lies on a canvas of up to so many times its sides (4)
    mosaic: Fraction = 0.0  # probability that a picture shows parts of four photos, in place of crop and zoom-out
    flip: Fraction = 0.5  # probability of a horizontal flip
    vflip: Fraction = 0.0  # probability of a vertical flip
    rot90: Fraction = 0.0  # probability of a turn by 90, 180 or 270 degrees; 0.75: no direction is up
    jitter: Jitter = "hsv"  # in HSV and random order (reference), by one matrix, as DALI's or TensorFlow's, or none
    brightness: Fraction = 0.125  # factor from 1-b to 1+b
    brightness_form: Brightness = "multiply"  # or add from -b to +b, of the full scale (Gaudi)
    contrast: Fraction = 0.5  # factor from 1-c to 1+c
    saturation: Fraction = 0.5  # factor from 1-s to 1+s
    hue: Turns = 0.05  # turn from -h to +h, in turns: 0.05 is 18 degrees; System A had 0.5 degrees
    resize: BoxResize = "bilinear-antialias"  # to `size` pixels; tensorflow: crops by corners, photos by the upper left
    mean: tuple[Finite, Finite, Finite] = (0.485, 0.456, 0.406)  # subtracted from RGB in 0..1
    std: tuple[AboveZero, AboveZero, AboveZero] = (0.229, 0.224, 0.225)  # divides afterwards
    decoder: Decoder = "simplejpeg"  # JPEG decoder; auto: on the GPU where cores are short; paceline list decoders
    exif: Exif = "ignore"  # photos that the camera noted a rotation in: as they are stored, or as they are shown
    drop_empty: bool = True  # training images without objects are left out (1,021 of COCO 2017's 118,287)
    least_area: ZeroOrMore = 0.0  # training objects of a smaller annotated area are left out, square pixels
    least_box: ZeroOrMore = 0.0  # and those whose box has a smaller area inside the photo, square pixels
    most_objects: Whole = 0  # of a photo with more training objects only so many, the largest, are learned; 0 = all
    crowd: bool = True  # crowd regions take part in training as ordinary objects


BoxRecipe = Recipe[SSDModel, BoxInput]


def sampler_rule(recipe: Recipe[Any, Any]) -> tuple[str, Any, bool, str]:
    """Of every workload whose photos have several classes, for `refuse_outside`."""
    what = "a photo with objects has several classes, which are not drawn equally often; use repeat"
    return "--sampler", recipe.sampler, recipe.sampler != "balanced", what


def check_detection(recipe: BoxRecipe) -> None:
    """Refuse a network or a data treatment that cannot be.

    Raises RecipeError naming the flag.
    """
    check_bounds(recipe)
    refuse_huge(recipe)
    model, photo = recipe.model, recipe.input
    levels = len(grids(photo.size))
    (small, large), (narrow, wide) = photo.crop_side, photo.crop_aspect
    refuse_outside(
        sampler_rule(recipe),
        ("--model.scales", model.scales, len(model.scales) > levels,
         f"--input.size {photo.size} gives {levels} levels, which need {levels + 1} scales or more"),
        ("--model.scales", model.scales, all(a < b for a, b in zip(model.scales, model.scales[1:])), "must be ascending"),
        *trunk_rules(model),
        decoder_rule(photo),
        ("--model.pyramid", model.pyramid, not model.pyramid or levels > 2, "needs three levels; choose a larger --input.size"),
        ("--input.crop-side", photo.crop_side, small <= large, "shares of the photo, the smaller first"),
        ("--input.crop-aspect", photo.crop_aspect, narrow <= 1 <= wide, "a range around 1, smaller first"),
    )  # fmt: skip


def grids(size: int) -> tuple[int, ...]:
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
