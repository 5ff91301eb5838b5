"""The two dataclasses that a classification recipe adds to the shared fields: network with loss, and data treatment."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from paceline.config.bounds import AboveZero, BelowOne, Count, Finite, Fraction, Share, check_bounds
from paceline.config.recipe import Recipe, refuse_huge, refuse_outside
from paceline.config.trunk import RESNET, TrunkModel, trunk_rules

# Names of choices whose field would otherwise not fit on one line with its comment.
Stem = Literal["imagenet", "small"]
Decoder = Literal["simplejpeg", "nvimgcodec", "pillow"]
Exif = Literal["ignore", "apply"]
Ratios = tuple[AboveZero, AboveZero]


@dataclass(frozen=True)
class ResNetModel(TrunkModel):
    """ResNet v1.5, or another trunk, with its linear layer and its loss. Defaults are the published network."""

    stem: Stem = "imagenet"  # 7x7 stride 2 and max-pool, or 3x3 stride 2 alone for small pictures
    stem_channels: Literal[3, 4] = 3  # input channels; 4 adds a zero channel, as MXNet's NHWC kernels wanted
    init: Literal["mlperf", "torchvision"] = "torchvision"  # initial weights
    zero_init_last_gamma: bool = False  # start each residual branch at zero
    label_smoothing: BelowOne = 0.1  # probability taken from the true class
    smoothing: Literal["torch", "mxnet"] = "torch"  # over all K classes (torch), or over the other K-1 (mxnet)


@dataclass(frozen=True)
class PhotoInput:
    """How a photo becomes network input. Recorded in the run, never changed by what happens to be installed."""

    size: Count = 224  # side of the training input, pixels
    area: tuple[Share, Share] = (0.08, 1.0)  # RandomResizedCrop: range of the crop's share of the photo
    aspect: Ratios = (3 / 4, 4 / 3)  # RandomResizedCrop: range of width / height, drawn log-uniformly
    flip: Fraction = 0.5  # probability of a horizontal flip
    eval_resize: int = 256  # evaluation: the shorter side is resized to this, pixels
    eval_size: Count = 224  # evaluation: side of the centre crop, pixels
    mean: tuple[Finite, Finite, Finite] = (0.485, 0.456, 0.406)  # subtracted from RGB in 0..1
    std: tuple[AboveZero, AboveZero, AboveZero] = (0.229, 0.224, 0.225)  # divides afterwards
    decoder: Decoder = "simplejpeg"  # JPEG decoder; nvimgcodec needs the extra fast: paceline list decoders
    exif: Exif = "ignore"  # photos that the camera noted a rotation in: as they are stored, or as they are shown
    resize: Literal["bilinear-antialias"] = "bilinear-antialias"  # how a region becomes `size` pixels


PhotoRecipe = Recipe[ResNetModel, PhotoInput]


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
    )  # fmt: skip
    # The stem halves the picture once or twice, three stages halve it again.
    side = math.ceil(photo.size / (32 if model.stem == "imagenet" else 16))
    values = min(recipe.bn_span, recipe.global_batch) * side * side
    refuse_outside(
        ("--bn-span", recipe.bn_span, values > 1,
         f"with --global-batch {recipe.global_batch} and --input.size {photo.size} the last BatchNorm has a single value "
         "to take statistics of; use more images or a larger size"),
    )  # fmt: skip
