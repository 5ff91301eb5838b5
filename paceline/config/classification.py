"""The two dataclasses that a classification recipe adds to the shared fields: network with loss, and data treatment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Names of choices whose field would otherwise not fit on one line with its comment.
Stem = Literal["imagenet", "small"]
Decoder = Literal["simplejpeg", "nvimgcodec", "pillow"]


@dataclass(frozen=True)
class ResNetModel:
    """ResNet v1.5 and its loss. Defaults are the published network; presets below carry a system's name."""

    depth: Literal[10, 18, 34, 50, 101, 152, 200, 269] = 50  # layers; up to 34 of basic blocks, above of bottlenecks
    width: int = 64  # filters of the stem and of the first stage's 3x3 convolutions
    stem: Stem = "imagenet"  # 7x7 stride 2 and max-pool, or 3x3 stride 2 alone for small pictures
    stem_channels: Literal[3, 4] = 3  # input channels; 4 adds a zero channel, as MXNet's NHWC kernels wanted
    bn_eps: float = 1e-5  # BatchNorm epsilon
    bn_momentum: float = 0.1  # weight of a step's statistics in the running ones (PyTorch's sense)
    init: Literal["mlperf", "torchvision"] = "torchvision"  # initial weights
    zero_init_last_gamma: bool = False  # start each residual branch at zero
    label_smoothing: float = 0.1  # probability taken from the true class
    smoothing: Literal["torch", "mxnet"] = "torch"  # over all K classes (torch), or over the other K-1 (mxnet)


@dataclass(frozen=True)
class PhotoInput:
    """How a photo becomes network input. Recorded in the run, never changed by what happens to be installed."""

    size: int = 224  # side of the training input, pixels
    area: tuple[float, float] = (0.08, 1.0)  # RandomResizedCrop: range of the crop's share of the photo
    aspect: tuple[float, float] = (3 / 4, 4 / 3)  # RandomResizedCrop: range of width / height, drawn log-uniformly
    flip: float = 0.5  # probability of a horizontal flip
    eval_resize: int = 256  # evaluation: the shorter side is resized to this, pixels
    eval_size: int = 224  # evaluation: side of the centre crop, pixels
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)  # subtracted from RGB in 0..1
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)  # divides afterwards
    decoder: Decoder = "simplejpeg"  # JPEG decoder; nvimgcodec needs paceline[fast]
    resize: Literal["bilinear-antialias"] = "bilinear-antialias"  # how a region becomes `size` pixels
