"""The fields of a recipe that choose the network's trunk, shared by all workloads; and the dataclasses of classification: network with
loss, and data treatment.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from paceline.config.bounds import AboveZero, BelowOne, Count, Finite, Fraction, Share, Whole, ZeroOrMore, check_bounds
from paceline.config.recipe import Recipe, refuse_huge, refuse_outside

RESNET = "resnet"
FAMILIES = (RESNET, "timm")  # what may stand before the "/" of --model.trunk; models/trunk.py makes them
# Of your own: what stands there -> (what stands behind it, the recipe's fields, the form) -> a trunk.
TRUNKS: dict[str, Callable[[str, Any, Any], Any]] = {}
# Of ResNets; models/resnet.py has their stages.
Depth = Literal[10, 18, 34, 50, 101, 152, 200, 269]
StrideIn = Literal["3x3", "1x1"]
Padding = Literal["both", "end"]


@dataclass(frozen=True)
class TrunkModel:
    """Which trunk a network stands on. Defaults are ResNet-50's."""

    trunk: str = RESNET  # resnet, or timm/NAME as timm has it: depth, width, groups and bn_eps are resnet's alone
    depth: Depth = 50  # layers of the ResNet; up to 34 of basic blocks, above of bottlenecks
    width: Count = 64  # filters of the stem; the stages have 1, 2, 4 and 8 times as many (4 times that from depth 50)
    groups: Count = 1  # ResNeXt: parts of a bottleneck's 3x3 convolution (32)
    group_width: int = 64  # ResNeXt: filters of a part in the first stage at width 64 (4, 8); 128 and groups 1: wide
    stride_in: StrideIn = "3x3"  # which convolution of a bottleneck strides; 1x1: MSRA's and detectron2's ResNets
    padding: Padding = "both"  # where it strides, even sides are padded on both, or at their end alone (TensorFlow)
    bn_eps: AboveZero = 1e-5  # BatchNorm epsilon
    bn_momentum: Share = 0.1  # weight of a step's statistics in the running ones (PyTorch's sense)
    freeze: Whole = 0  # stages of the trunk that do not train: 1 the stem, 2 the first stage too; timm: by its maps


def trunk_rules(model: TrunkModel) -> tuple[tuple[str, Any, bool, str], ...]:
    """What must hold between the fields of any network's trunk, for `refuse_outside`."""
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
class ResNetModel(TrunkModel):
    """ResNet v1.5, or another trunk, with its linear layer and its loss. Defaults are the published network."""

    stem: Stem = "imagenet"  # 7x7 stride 2 and max-pool, or 3x3 stride 2 alone for small pictures
    stem_channels: Literal[3, 4] = 3  # input channels; 4 adds a zero channel, as MXNet's NHWC kernels wanted
    init: Literal["mlperf", "torchvision"] = "torchvision"  # initial weights
    zero_init_last_gamma: bool = False  # start each residual branch at zero
    norm: TrunkNorm = "batch"  # frozen: BatchNorms keep the statistics and the affine that --weights have
    first_head: FirstHead = "drawn"  # or fitted to the training photos first, where the trunk comes from --weights
    label_smoothing: BelowOne = 0.1  # probability taken from the true class
    smoothing: Literal["torch", "mxnet"] = "torch"  # over all K classes (torch), or over the other K-1 (mxnet)
    loss: LossKind = "cross_entropy"  # or focal: a class that has probability p already counts (1 - p)^gamma times
    focal_gamma: ZeroOrMore = 2.0  # focal: gamma; 0 is cross-entropy
    class_weights: ClassWeights = "none"  # in the loss; balanced: n / (K n_c), for a class of n_c of n training photos


@dataclass(frozen=True)
class PhotoInput:
    """How a photo becomes network input. Recorded in the run, never changed by what happens to be installed."""

    size: Count = 224  # side of the training input, pixels
    area: tuple[Share, Share] = (0.08, 1.0)  # RandomResizedCrop: range of the crop's share of the photo
    aspect: Ratios = (3 / 4, 4 / 3)  # RandomResizedCrop: range of width / height, drawn log-uniformly
    flip: Fraction = 0.5  # probability of a horizontal flip
    vflip: Fraction = 0.0  # probability of a vertical flip
    rot90: Fraction = 0.0  # probability of a turn by 90, 180 or 270 degrees; 0.75: no direction is up
    augment: Augment = "none"  # trivial: TrivialAugmentWide, no gain on few photos; rand: RandAugment of magnitude 9
    erase: Fraction = 0.0  # then the probability that a rectangle, 2 to 33 percent of the picture, becomes the mean
    mixup: ZeroOrMore = 0.0  # alpha: photos mixed in pairs by Beta(alpha, alpha); 0 = off; no gain on few photos
    cutmix: ZeroOrMore = 0.0  # alpha: a rectangle is the neighbour's; with mixup: either; no gain on few photos
    eval_resize: int = 256  # evaluation: the shorter side is resized to this, pixels
    eval_size: Count = 224  # evaluation: side of the centre crop, pixels
    mean: tuple[Finite, Finite, Finite] = (0.485, 0.456, 0.406)  # subtracted from RGB in 0..1
    std: tuple[AboveZero, AboveZero, AboveZero] = (0.229, 0.224, 0.225)  # divides afterwards
    decoder: Decoder = "simplejpeg"  # JPEG decoder; auto: on the GPU where cores are short; paceline list decoders
    exif: Exif = "ignore"  # photos that the camera noted a rotation in: as they are stored, or as they are shown
    resize: Literal["bilinear-antialias"] = "bilinear-antialias"  # how a region becomes `size` pixels


PhotoRecipe = Recipe[ResNetModel, PhotoInput]


# What changes pixels once they are resized, and has a form for a CPU alone: fields of an input, and their values for "not".
_ON_A_CPU = {"augment": "none", "erase": 0.0, "jitter": "none", "mosaic": 0.0, "copy_paste": 0.0}


def decoder_rule(photo: Any) -> tuple[str, Any, bool, str]:
    """Of every workload's input, for `refuse_outside`: pixels that were decoded on a device stay there."""
    changed = [name for name, off in _ON_A_CPU.items() if getattr(photo, name, off) != off]
    if photo.resize.startswith("tensorflow"):
        changed.append("resize")
    flags = ", ".join(f"--input.{name.replace('_', '-')} {getattr(photo, name)}" for name in changed)
    what = f"what follows decoding must be done on the device too, and {flags} runs only on the CPU; use simplejpeg"
    return "--input.decoder", photo.decoder, photo.decoder != "nvjpeg" or not changed, what


def mixes(photo: PhotoInput) -> bool:
    """Whether photos are mixed with their neighbours."""
    return photo.mixup > 0 or photo.cutmix > 0


def check_classification(recipe: PhotoRecipe) -> None:
    """Refuse a network or a data treatment that cannot be.

    Raises RecipeError naming the flag.
    """
    check_bounds(recipe)
    refuse_huge(recipe)
    model, photo = recipe.model, recipe.input
    (low, high), (narrow, wide) = photo.area, photo.aspect
    refuse_outside(
        *trunk_rules(model),
        ("--model.stem", model.stem, model.stem == "imagenet" or model.trunk == RESNET, f"--model.trunk {model.trunk} has its own"),
        ("--model.stem-channels", model.stem_channels, model.stem_channels == 3 or model.trunk == RESNET,
         f"--model.trunk {model.trunk} takes 3"),
        ("--input.eval-resize", photo.eval_resize, photo.eval_resize >= photo.eval_size,
         f"must be at least --input.eval-size, which is {photo.eval_size}"),
        ("--input.area", photo.area, low <= high, "shares of the photo, the smaller first"),
        ("--input.aspect", photo.aspect, narrow <= wide, "width / height, the smaller first"),
        decoder_rule(photo),
        ("--global-batch", recipe.global_batch, recipe.global_batch % 2 == 0 or not mixes(photo),
         "--input.mixup and --input.cutmix mix pairs of photos; use an even batch, or leave both at 0"),
    )  # fmt: skip
    # The stem halves the picture once or twice, three stages halve it again.
    side = math.ceil(photo.size / (32 if model.stem == "imagenet" else 16))
    values = min(recipe.bn_span, recipe.global_batch) * side * side
    refuse_outside(
        ("--bn-span", recipe.bn_span, values > 1,
         f"with --global-batch {recipe.global_batch} and --input.size {photo.size} the last BatchNorm has a single value "
         "to take statistics of; use more images or a larger size"),
    )  # fmt: skip
