"""The dataclasses that an SSD recipe adds to the shared fields: network with loss and decoding, and data treatment."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from paceline.config.classification import Decoder, Exif, photo_rules
from paceline.config.recipe import Recipe, refuse_huge, refuse_outside
from paceline.config.trunk import Depth, TrunkModel, trunk_rules

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


@dataclass(frozen=True)
class Detect:
    """From network output to detections. Defaults are the MLPerf reference's; System A (MXNet) differs in five of them."""

    score_above: float = 0.05  # a candidate's class probability must be above this
    iou: float = 0.5  # of two boxes of one class that overlap by this IoU or more, the better one stays
    overlap: Literal["at_least", "above"] = "at_least"  # suppressed from that IoU on, or above it alone (MXNet)
    candidates: int = 200  # boxes that enter suppression: of each class, or of all classes together
    candidates_of: Literal["class", "image"] = "class"  # whether `candidates` counts per class or per image
    keep: int = 200  # detections of an image at most
    clip: bool = False  # cut boxes at the image's border
    plus_one: bool = False  # widths and heights are one pixel larger, as System A reported them


@dataclass(frozen=True)
class SSDModel(TrunkModel):
    """SSD on a trunk to stride 8 (a ResNet's to conv4), its matching and its loss. Defaults are the MLPerf reference's."""

    depth: Depth = 34  # layers of the ResNet, of which three stages are used; bottlenecks from 50 on
    extras: int = 512  # filters of the first two extra maps; the others have half
    extras_norm: bool = False  # BatchNorm in the extra layers; helps training from scratch
    scales: tuple[float, ...] = (0.07, 0.15, 0.33, 0.51, 0.69, 0.87, 1.05)  # default boxes' sizes, of the input's
    heads: Literal["separate", "fused"] = "separate"  # class and box convolutions apart, or one a level
    head_multiple: int = 8  # heads fused: output channels are padded to a multiple of this
    frozen: Frozen = "none"  # trunk layers that do not train (Gaudi 1.7 and later: stem_and_first); resnet only
    zero_init_last_gamma: bool = False  # start each residual branch at zero
    match_iou: float = 0.5  # a default box is positive by its IoU with an object
    positive: Positive = "above"  # IoU must be above match_iou, or at least match_iou (TensorFlow's rule)
    new_bias: NewBias = "uniform"  # first biases of extra layers and heads: U(+-1 / sqrt(fan_in)), or zero (TensorFlow)
    tie: Tie = "last"  # which of two objects that want the same default box gets it
    box_order: BoxOrder = "cell"  # an object takes the first (or last) of equal default boxes, by cell or by shape
    box_corners: Literal["float32", "float64"] = "float32"  # in which default boxes' corners are found, then float32
    negatives: float = 3.0  # hard negatives for each positive
    loss_over: LossOver = "image"  # losses are divided by each image's positives, or by the global batch's
    detect: Detect = field(default_factory=Detect)  # decoding and suppression


@dataclass(frozen=True)
class BoxInput:
    """How a photo and its boxes become network input. Recorded in the run, never changed by what happens to be installed."""

    size: int = 300  # side of the network's input, pixels; the aspect ratio is not kept
    crop: Literal["ssd", "none"] = "ssd"  # SSD random crop: seven options of equal probability
    crop_attempts: int = 1  # proposals for one drawn option before the option is drawn again
    crop_side: tuple[float, float] = (0.3, 1.0)  # range of the crop's width and of its height, of the photo's
    crop_aspect: tuple[float, float] = (0.5, 2.0)  # range of the crop's width / height, both as shares of the photo's
    crop_free: FreeCrop = "any"  # the unconstrained option: any crop (DALI too), or one that touches every object
    flip: float = 0.5  # probability of a horizontal flip
    jitter: Jitter = "hsv"  # in HSV and random order (reference), by one matrix, as DALI's or TensorFlow's, or none
    brightness: float = 0.125  # factor from 1-b to 1+b
    brightness_form: Brightness = "multiply"  # or add from -b to +b, of the full scale (Gaudi)
    contrast: float = 0.5  # factor from 1-c to 1+c
    saturation: float = 0.5  # factor from 1-s to 1+s
    hue: float = 0.05  # turn from -h to +h, in turns: 0.05 is 18 degrees; System A had 0.5 degrees
    resize: BoxResize = "bilinear-antialias"  # to `size` pixels; tensorflow: crops by corners, photos by the upper left
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)  # subtracted from RGB in 0..1
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)  # divides afterwards
    decoder: Decoder = "simplejpeg"  # JPEG decoder; nvimgcodec needs the extra fast: paceline list decoders
    exif: Exif = "ignore"  # photos that the camera noted a rotation in: as they are stored, or as they are shown
    drop_empty: bool = True  # training images without objects are left out (1,021 of COCO 2017's 118,287)
    least_area: float = 0.0  # training objects of a smaller annotated area are left out, square pixels
    least_box: float = 0.0  # and those whose box has a smaller area inside the photo, square pixels
    most_objects: int = 0  # of a photo with more training objects only so many, the largest, are learned; 0 = all
    crowd: bool = True  # crowd regions take part in training as ordinary objects


BoxRecipe = Recipe[SSDModel, BoxInput]


def check_detection(recipe: BoxRecipe) -> None:
    """Refuse a network or a data treatment that cannot be.

    Raises RecipeError naming the flag.
    """
    refuse_huge(recipe)
    model, photo, detect = recipe.model, recipe.input, recipe.model.detect
    levels = len(grids(photo.size))
    (small, large), (narrow, wide) = photo.crop_side, photo.crop_aspect
    refuse_outside(
        ("--input.size", photo.size, photo.size >= 64, "three default box grids need 64 pixels or more"),
        ("--model.scales", model.scales, len(model.scales) > levels,
         f"--input.size {photo.size} gives {levels} levels, which need {levels + 1} scales or more"),
        ("--model.scales", model.scales, all(0 < a < b for a, b in zip(model.scales, model.scales[1:])),
         "must be above 0 and ascending"),
        *trunk_rules(model),
        ("--model.extras", model.extras, model.extras >= 4 and model.extras % 4 == 0, "must be a multiple of 4"),
        ("--model.head-multiple", model.head_multiple, model.head_multiple >= 1, "must be 1 or more"),
        ("--model.bn-eps", model.bn_eps, 0 < model.bn_eps < math.inf, "must be above 0"),
        ("--model.match-iou", model.match_iou, 0 < model.match_iou < 1, "an IoU lies in (0, 1)"),
        ("--model.negatives", model.negatives, 0 <= model.negatives < math.inf, "must not be negative"),
        ("--model.detect.score-above", detect.score_above, 0 <= detect.score_above < 1, "a probability lies in [0, 1)"),
        ("--model.detect.iou", detect.iou, 0 < detect.iou <= 1, "an IoU lies in (0, 1]"),
        ("--model.detect.candidates", detect.candidates, detect.candidates >= 1, "must be 1 or more"),
        ("--model.detect.keep", detect.keep, detect.keep >= 1, "must be 1 or more"),
        ("--input.crop-attempts", photo.crop_attempts, photo.crop_attempts >= 1, "must be 1 or more"),
        ("--input.crop-side", photo.crop_side, 0 < small <= large <= 1, "shares of the photo, the smaller first"),
        ("--input.crop-aspect", photo.crop_aspect, 0 < narrow <= 1 <= wide < math.inf, "a range around 1, smaller first"),
        *photo_rules(photo),
        *colour_rules(photo),
        *object_rules(photo),
    )  # fmt: skip


class LearnedObjects(Protocol):
    """The fields of an input that say which of the training objects are learned."""

    @property
    def least_area(self) -> float: ...
    @property
    def least_box(self) -> float: ...
    @property
    def most_objects(self) -> int: ...


def object_rules(photo: LearnedObjects) -> tuple[tuple[str, Any, bool, str], ...]:
    """What holds of these fields, for `refuse_outside`."""
    return (
        ("--input.least-area", photo.least_area, 0 <= photo.least_area < math.inf, "must not be negative"),
        ("--input.least-box", photo.least_box, 0 <= photo.least_box < math.inf, "must not be negative"),
        ("--input.most-objects", photo.most_objects, photo.most_objects >= 0, "must not be negative"),
    )


def colour_rules(photo: Any) -> tuple[tuple[str, Any, bool, str], ...]:
    """What holds of the ranges that colours are drawn from, for `refuse_outside`."""
    return (
        ("--input.brightness", photo.brightness, 0 <= photo.brightness <= 1, "lies in [0, 1]"),
        ("--input.contrast", photo.contrast, 0 <= photo.contrast <= 1, "lies in [0, 1]"),
        ("--input.saturation", photo.saturation, 0 <= photo.saturation <= 1, "lies in [0, 1]"),
        ("--input.hue", photo.hue, 0 <= photo.hue <= 0.5, "turns lie in [0, 0.5]"),
    )


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
