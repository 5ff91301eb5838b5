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
FAMILIES = (RESNET, "timm")  # what may stand before the "/" of --model.trunk; models/backbones/base.py makes them
# Of your own: what stands there -> (what stands behind it, the recipe's fields, the form) -> a trunk.
TRUNKS: dict[str, Callable[[str, Any, Any], Any]] = {}
# Of ResNets; models/backbones/resnet.py has their stages.
Depth = Literal[10, 18, 34, 50, 101, 152, 200, 269]
StrideIn = Literal["3x3", "1x1"]
Padding = Literal["both", "end"]


@dataclass(frozen=True)
class BackboneModel:
    """Which trunk a network stands on. Defaults are ResNet-50's."""

    trunk: Annotated[str, Help("resnet, or timm/NAME, which ignores depth, width, groups and bn_eps")] = RESNET
    depth: Annotated[Depth, Help("layers of the ResNet; up to 34 of basic blocks, above of bottlenecks")] = 50
    width: Annotated[Count, Help("filters of the stem; stages have 1, 2, 4 and 8 times these, or 4 times more")] = 64
    groups: Annotated[Count, Help("ResNeXt: parts of a bottleneck's 3x3 convolution (32)")] = 1
    group_width: Annotated[int, Help("ResNeXt: filters of a part in the first stage; 128 and groups 1: wide")] = 64
    stride_in: Annotated[StrideIn, Help("convolution of a bottleneck that strides; 1x1: MSRA, detectron2")] = "3x3"
    padding: Annotated[Padding, Help("padding where it strides; end: of even sides, as TensorFlow has it")] = "both"
    bn_eps: Annotated[AboveZero, Help("BatchNorm epsilon")] = 1e-5
    bn_momentum: Annotated[Share, Help("weight of a step's statistics in the running ones (PyTorch's sense)")] = 0.1
    freeze: Annotated[Whole, Help("stages that do not train; 1: the stem; 2: the first stage too; timm: maps")] = 0


def backbone_rules(model: BackboneModel) -> tuple[tuple[str, Any, bool, str], ...]:
    """What must hold between the fields of any network's trunk, for `check_rules`."""
    plain, families = model.groups == 1 and model.group_width == 64, (*FAMILIES, *TRUNKS)
    usual, timm = model.stride_in == "3x3" and model.padding == "both", model.trunk.startswith("timm/")
    return (
        ("--model.trunk", model.trunk, model.trunk.partition("/")[0] in families,
         f"there is no such trunk; there are {', '.join(families)}"),
        ("--model.group-width", model.group_width, model.width * model.group_width >= 64,
         f"with --model.width {model.width} a group of the first stage has less than one filter"),
        ("--model.groups", f"{model.groups} --model.group-width {model.group_width}", plain or not model.trunk.startswith("timm/"),
         f"--model.trunk {model.trunk} has no such choice; leave them at 1 and 64"),
        ("--model.groups", f"{model.groups} --model.group-width {model.group_width}", plain or model.depth >= 50,
         f"only bottlenecks are split, and --model.depth {model.depth} has basic blocks; choose depth 50 or more"),
        ("--model.stride-in", f"{model.stride_in} --model.padding {model.padding}", usual or not timm,
         f"--model.trunk {model.trunk} has no such choice; leave them at 3x3 and both"),
    )  # fmt: skip


# Names of choices whose field would otherwise not fit on one line with its comment.
Stem = Literal["imagenet", "small"]
Decoder = Literal["auto", "simplejpeg", "nvimgcodec", "nvjpeg", "pillow"]
Exif = Literal["ignore", "apply"]
Augment = Literal["none", "trivial", "rand"]
LossKind = Literal["cross_entropy", "focal"]
ClassWeights = Literal["none", "balanced"]
FirstHead = Literal["drawn", "fitted"]
TrunkNorm = Literal["batch", "frozen"]
Ratios = tuple[AboveZero, AboveZero]


@dataclass(frozen=True)
class ResNetModel(BackboneModel):
    """ResNet v1.5, or another trunk, with its linear layer and its loss. Defaults are the published network."""

    stem: Annotated[Stem, Help("7x7 stride 2 and max-pool, or only 3x3 stride 2 for small pictures")] = "imagenet"
    stem_channels: Annotated[Literal[3, 4], Help("input channels; 4: a zero channel more, as MXNet's kernels had")] = 3
    init: Annotated[Literal["mlperf", "torchvision"], Help("initial weights")] = "torchvision"
    zero_init_last_gamma: Annotated[bool, Help("start each residual branch at zero")] = False
    norm: Annotated[TrunkNorm, Help("frozen: keep the BatchNorm statistics and affine of --weights")] = "batch"
    first_head: Annotated[FirstHead, Help("fitted: to the training photos, over a trunk of --weights")] = "drawn"
    label_smoothing: Annotated[BelowOne, Help("probability taken from the true class")] = 0.1
    smoothing: Annotated[Literal["torch", "mxnet"], Help("torch: over all classes; mxnet: over the others")] = "torch"
    loss: Annotated[LossKind, Help("focal: weight a class of probability p by (1 - p)^gamma")] = "cross_entropy"
    focal_gamma: Annotated[ZeroOrMore, Help("focal: gamma; 0 is cross-entropy")] = 2.0
    class_weights: Annotated[ClassWeights, Help("balanced: weight n / (K n_c) for n_c of n photos")] = "none"


@dataclass(frozen=True)
class InputValues:
    """What the input of all networks has."""

    flip: Annotated[Fraction, Help("probability of a horizontal flip")] = 0.5
    vflip: Annotated[Fraction, Help("probability of a vertical flip")] = 0.0
    rot90: Annotated[Fraction, Help("probability of a turn by 90, 180 or 270 degrees; 0.75: no direction is up")] = 0.0
    mean: Annotated[tuple[Finite, Finite, Finite], Help("subtracted from RGB in 0..1")] = (0.485, 0.456, 0.406)
    std: Annotated[tuple[AboveZero, AboveZero, AboveZero], Help("divides afterwards")] = (0.229, 0.224, 0.225)
    decoder: Annotated[Decoder, Help("JPEG decoder (paceline list decoders); auto: GPU if cores lack")] = "simplejpeg"
    exif: Annotated[Exif, Help("rotation noted by the camera; ignore: as stored; apply: as it is shown")] = "ignore"


@dataclass(frozen=True)
class ImageInput(InputValues):
    """How a photo becomes network input. Recorded in the run, never changed by what happens to be installed."""

    size: Annotated[Count, Help("side of the training input, pixels")] = 224
    area: Annotated[tuple[Share, Share], Help("RandomResizedCrop: range of the crop's share of a photo")] = (0.08, 1.0)
    aspect: Annotated[Ratios, Help("RandomResizedCrop: range of width / height, drawn log-uniformly")] = (3 / 4, 4 / 3)
    augment: Annotated[Augment, Help("trivial: TrivialAugmentWide; rand: RandAugment of magnitude 9")] = "none"
    erase: Annotated[Fraction, Help("probability that a rectangle of 2 to 33 percent becomes the mean")] = 0.0
    mixup: Annotated[ZeroOrMore, Help("alpha of Beta(alpha, alpha), which mixes photos in pairs; 0: off")] = 0.0
    cutmix: Annotated[ZeroOrMore, Help("alpha of the rectangle taken from a neighbor; with mixup: either")] = 0.0
    eval_resize: Annotated[int, Help("evaluation: the shorter side is resized to this, pixels")] = 256
    eval_size: Annotated[Count, Help("evaluation: side of the center crop, pixels")] = 224
    resize: Annotated[Literal["bilinear-antialias"], Help("how a region becomes `size` pixels")] = "bilinear-antialias"


PhotoRecipe = Recipe[ResNetModel, ImageInput]


# What changes pixels once they are resized, and has a form for a CPU alone: fields of an input, and their values for "not".
_ON_A_CPU = {"augment": "none", "erase": 0.0, "jitter": "none", "mosaic": 0.0, "copy_paste": 0.0}


def decoder_rule(photo: Any) -> tuple[str, Any, bool, str]:
    """Of every workload's input, for `check_rules`: pixels that were decoded on a device stay there."""
    changed = [name for name, off in _ON_A_CPU.items() if getattr(photo, name, off) != off]
    if photo.resize.startswith("tensorflow"):
        changed.append("resize")
    flags = ", ".join(f"--input.{name.replace('_', '-')} {getattr(photo, name)}" for name in changed)
    what = f"what follows decoding must be done on the device too, and {flags} runs only on the CPU; use simplejpeg"
    return "--input.decoder", photo.decoder, photo.decoder != "nvjpeg" or not changed, what


def has_mixing(photo: ImageInput) -> bool:
    """Whether photos are mixed with their neighbors."""
    return photo.mixup > 0 or photo.cutmix > 0


def check_classification(recipe: PhotoRecipe) -> None:
    """Refuse a network or a data treatment that cannot be.

    Raises RecipeError naming the flag.
    """
    check_bounds(recipe)
    check_sizes(recipe)
    model, photo = recipe.model, recipe.input
    (low, high), (narrow, wide) = photo.area, photo.aspect
    check_rules(
        *backbone_rules(model),
        ("--model.stem", model.stem, model.stem == "imagenet" or model.trunk == RESNET, f"--model.trunk {model.trunk} has its own"),
        ("--model.stem-channels", model.stem_channels, model.stem_channels == 3 or model.trunk == RESNET,
         f"--model.trunk {model.trunk} takes 3"),
        ("--input.eval-resize", photo.eval_resize, photo.eval_resize >= photo.eval_size,
         f"must be at least --input.eval-size, which is {photo.eval_size}"),
        ("--input.area", photo.area, low <= high, "shares of the photo, the smaller first"),
        ("--input.aspect", photo.aspect, narrow <= wide, "width / height, the smaller first"),
        decoder_rule(photo),
        ("--global-batch", recipe.global_batch, recipe.global_batch % 2 == 0 or not has_mixing(photo),
         "--input.mixup and --input.cutmix mix pairs of photos; use an even batch, or leave both at 0"),
    )  # fmt: skip
    # The stem halves the picture once or twice, three stages halve it again.
    side = math.ceil(photo.size / (32 if model.stem == "imagenet" else 16))
    values = min(recipe.bn_span, recipe.global_batch) * side * side
    check_rules(
        ("--bn-span", recipe.bn_span, values > 1,
         f"with --global-batch {recipe.global_batch} and --input.size {photo.size} the last BatchNorm has a single value "
         "to take statistics of; use more images or a larger size"),
    )  # fmt: skip
