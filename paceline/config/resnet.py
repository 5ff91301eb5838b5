"""The fields of a recipe that choose the network's trunk, shared by all workloads; and the dataclasses of classification: network with
loss, and data treatment.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from paceline.config.constraints import (
    AboveZero,
    BelowOne,
    Count,
    Finite,
    Fraction,
    Help,
    Share,
    Whole,
    ZeroOrMore,
    check_bounds,
)
from paceline.config.recipe import Recipe, check_rules, check_sizes

RESNET = "resnet"
FAMILIES = (RESNET, "timm")  # what may stand before the "/" of --model.backbone; models/backbones/base.py makes them
# Of your own: what stands there -> (what stands behind it, the recipe's fields, the form) -> a trunk.
TRUNKS: dict[str, Callable[[str, Any, Any], Any]] = {}
# Of ResNets; models/backbones/resnet.py has their stages.
Depth = Literal[10, 18, 34, 50, 101, 152, 200, 269]
StrideIn = Literal["3x3", "1x1"]
Padding = Literal["symmetric", "same"]


@dataclass(frozen=True)
class BackboneModel:
    """Which trunk a network stands on. Defaults are ResNet-50's."""

    backbone: Annotated[str, Help("resnet, or timm/NAME, which ignores depth, width, groups, and bn_eps")] = RESNET
    depth: Annotated[Depth, Help("depth of the ResNet; up to 34: basic blocks; 50 or more: bottleneck blocks")] = 50
    width: Annotated[Count, Help("channels of the stem; stages have 1, 2, 4, and 8 times as many (bottlenecks: 4x)")] = 64
    groups: Annotated[Count, Help("ResNeXt: groups of the 3x3 convolution of a bottleneck (ResNeXt: 32)")] = 1
    width_per_group: Annotated[int, Help("channels per group in the first stage; 128 with groups 1: Wide ResNet")] = 64
    stride_in: Annotated[StrideIn, Help("convolution of a bottleneck that has the stride; 1x1: MSRA, detectron2")] = "3x3"
    padding: Annotated[Padding, Help("padding of strided layers; same: as in TensorFlow")] = "symmetric"
    bn_eps: Annotated[AboveZero, Help("BatchNorm epsilon")] = 1e-5
    bn_momentum: Annotated[Share, Help("weight of new statistics in the running statistics, as in PyTorch")] = 0.1
    freeze_stages: Annotated[Whole, Help("number of frozen stages; 1: the stem; 2: also the first stage")] = 0


def backbone_rules(model: BackboneModel) -> tuple[tuple[str, Any, bool, str], ...]:
    """What must hold between the fields of any network's trunk, for `check_rules`."""
    plain, families = model.groups == 1 and model.width_per_group == 64, (*FAMILIES, *TRUNKS)
    usual, timm = model.stride_in == "3x3" and model.padding == "symmetric", model.backbone.startswith("timm/")
    return (
        ("--model.backbone", model.backbone, model.backbone.partition("/")[0] in families,
         f"must be one of {', '.join(families)}"),
        ("--model.width-per-group", model.width_per_group, model.width * model.width_per_group >= 64,
         f"too small with --model.width {model.width}: a group of the first stage would have no channel"),
        ("--model.groups", f"{model.groups} --model.width-per-group {model.width_per_group}",
        plain or not model.backbone.startswith("timm/"),
         f"not supported with --model.backbone {model.backbone}. Use --model.groups 1 --model.width-per-group 64"),
        ("--model.groups", f"{model.groups} --model.width-per-group {model.width_per_group}", plain or model.depth >= 50,
         f"requires bottleneck blocks, and --model.depth {model.depth} has basic blocks. Use a depth of 50 or more"),
        ("--model.stride-in", f"{model.stride_in} --model.padding {model.padding}", usual or not timm,
         f"not supported with --model.backbone {model.backbone}. Use --model.stride-in 3x3 --model.padding symmetric"),
    )  # fmt: skip


# Names of choices whose field would otherwise not fit on one line with its comment.
Stem = Literal["imagenet", "small"]
Decoder = Literal["auto", "simplejpeg", "nvimgcodec", "nvjpeg", "pillow"]
Exif = Literal["ignore", "apply"]
AutoAugment = Literal["none", "trivialaugment", "randaugment"]
LossName = Literal["cross-entropy", "focal"]
ClassWeights = Literal["none", "balanced"]
HeadInit = Literal["random", "linear-probe"]
TrunkNorm = Literal["batch", "frozen"]
Ratios = tuple[AboveZero, AboveZero]


@dataclass(frozen=True)
class ResNetModel(BackboneModel):
    """ResNet v1.5, or another trunk, with its linear layer and its loss. Defaults are the published network."""

    stem: Annotated[Stem, Help("imagenet: 7x7 stride 2 and max-pool; small: 3x3 stride 2, for small images")] = "imagenet"
    input_channels: Annotated[Literal[3, 4], Help("number of input channels; 4: with a zero channel, as in MXNet")] = 3
    init: Annotated[Literal["mlperf", "torchvision"], Help("initialization of the weights")] = "torchvision"
    zero_init_residual: Annotated[bool, Help("initialize each residual branch to zero")] = False
    norm: Annotated[TrunkNorm, Help("BatchNorm; frozen: fixed statistics and affine parameters of --weights")] = "batch"
    head_init: Annotated[HeadInit, Help("initialization of the classifier; linear-probe: fitted to the dataset")] = "random"
    label_smoothing: Annotated[BelowOne, Help("label smoothing: probability moved away from the true class")] = 0.1
    label_smoothing_style: Annotated[Literal["torch", "mxnet"], Help("smooth over all or the other classes")] = "torch"
    loss: Annotated[LossName, Help("loss; focal: weights a class of probability p by (1 - p)^gamma")] = "cross-entropy"
    focal_gamma: Annotated[ZeroOrMore, Help("gamma of the focal loss; 0: cross-entropy")] = 2.0
    class_weights: Annotated[ClassWeights, Help("class weights; balanced: n / (K n_c) for n_c of n images")] = "none"


@dataclass(frozen=True)
class InputValues:
    """What the input of all networks has."""

    hflip: Annotated[Fraction, Help("probability of a horizontal flip")] = 0.5
    vflip: Annotated[Fraction, Help("probability of a vertical flip")] = 0.0
    rot90: Annotated[Fraction, Help("probability of rotation by 90, 180, or 270 degrees; 0.75: all equally likely")] = 0.0
    mean: Annotated[tuple[Finite, Finite, Finite], Help("mean to subtract (RGB, 0 to 1)")] = (0.485, 0.456, 0.406)
    std: Annotated[tuple[AboveZero, AboveZero, AboveZero], Help("standard deviation to divide by")] = (0.229, 0.224, 0.225)
    decoder: Annotated[Decoder, Help("JPEG decoder (paceline list decoders); auto: GPU if CPUs are slow")] = "simplejpeg"
    exif: Annotated[Exif, Help("EXIF rotation; ignore: image as stored; apply: image as displayed")] = "ignore"


@dataclass(frozen=True)
class ImageInput(InputValues):
    """How a photo becomes network input. Recorded in the run, never changed by what happens to be installed."""

    image_size: Annotated[Count, Help("side of the training input (pixels)")] = 224
    crop_scale: Annotated[
        tuple[Share, Share], Help("RandomResizedCrop: range of the crop area, as a fraction of the image")
    ] = (0.08, 1.0)
    crop_ratio: Annotated[Ratios, Help("RandomResizedCrop: range of width / height (log-uniform)")] = (3 / 4, 4 / 3)
    auto_augment: Annotated[AutoAugment, Help("TrivialAugmentWide, or RandAugment with magnitude 9")] = "none"
    random_erase: Annotated[Fraction, Help("probability of filling a rectangle (2% to 33%) with the mean color")] = 0.0
    mixup_alpha: Annotated[ZeroOrMore, Help("alpha of Beta(alpha, alpha) for MixUp of two images; 0: off")] = 0.0
    cutmix_alpha: Annotated[ZeroOrMore, Help("alpha of Beta(alpha, alpha) for CutMix; with MixUp: either; 0: off")] = 0.0
    eval_resize_size: Annotated[int, Help("evaluation: length of the shorter side after resizing (pixels)")] = 256
    eval_crop_size: Annotated[Count, Help("evaluation: side of the center crop (pixels)")] = 224
    resize: Annotated[Literal["bilinear-antialias"], Help("interpolation of the resized image")] = "bilinear-antialias"


PhotoRecipe = Recipe[ResNetModel, ImageInput]


# What changes pixels once they are resized, and has a form for a CPU alone: fields of an input, and their values for "not".
_ON_A_CPU = {
    "auto_augment": "none",
    "random_erase": 0.0,
    "color_jitter": "none",
    "mosaic_prob": 0.0,
    "copy_paste_prob": 0.0,
}


def decoder_rule(photo: Any) -> tuple[str, Any, bool, str]:
    """Of every workload's input, for `check_rules`: pixels that were decoded on a device stay there."""
    changed = [name for name, off in _ON_A_CPU.items() if getattr(photo, name, off) != off]
    if photo.resize.startswith("tensorflow"):
        changed.append("resize")
    flags = ", ".join(f"--input.{name.replace('_', '-')} {getattr(photo, name)}" for name in changed)
    what = f"not supported with {flags}, which requires images on the CPU. Use --input.decoder simplejpeg"
    return "--input.decoder", photo.decoder, photo.decoder != "nvjpeg" or not changed, what


def has_mixing(photo: ImageInput) -> bool:
    """Whether photos are mixed with their neighbors."""
    return photo.mixup_alpha > 0 or photo.cutmix_alpha > 0


def check_classification(recipe: PhotoRecipe) -> None:
    """Refuse a network or a data treatment that cannot be.

    Raises RecipeError naming the flag.
    """
    check_bounds(recipe)
    check_sizes(recipe)
    model, photo = recipe.model, recipe.input
    (low, high), (narrow, wide) = photo.crop_scale, photo.crop_ratio
    check_rules(
        *backbone_rules(model),
        ("--model.stem", model.stem, model.stem == "imagenet" or model.backbone == RESNET,
        f"not supported with --model.backbone {model.backbone}, which has its own stem"),
        ("--model.input-channels", model.input_channels, model.input_channels == 3 or model.backbone == RESNET,
         f"must be 3 with --model.backbone {model.backbone}"),
        ("--input.eval-resize-size", photo.eval_resize_size, photo.eval_resize_size >= photo.eval_crop_size,
         f"must be at least --input.eval-crop-size, {photo.eval_crop_size}"),
        ("--input.crop-scale", photo.crop_scale, low <= high, "must be ascending"),
        ("--input.crop-ratio", photo.crop_ratio, narrow <= wide, "must be ascending"),
        decoder_rule(photo),
        ("--global-batch-size", recipe.global_batch_size, recipe.global_batch_size % 2 == 0 or not has_mixing(photo),
         "must be even, because --input.mixup-alpha and --input.cutmix-alpha mix pairs of images"),
    )  # fmt: skip
    # The stem halves the picture once or twice, three stages halve it again.
    side = math.ceil(photo.image_size / (32 if model.stem == "imagenet" else 16))
    values = min(recipe.bn_batch_size, recipe.global_batch_size) * side * side
    check_rules(
        ("--bn-batch-size", recipe.bn_batch_size, values > 1,
         f"the last BatchNorm would have a single value with --global-batch-size {recipe.global_batch_size} and "
         f"--input.image-size {photo.image_size}. Use more images or a larger size"),
    )  # fmt: skip
