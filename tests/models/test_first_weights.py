"""First weights by their distributions: every parameter of every network has the shape of law and the spread it should have.

A law is written here as published; fans are counted here from a tensor's shape. Numbers of a parameter are held against their
law by Kolmogorov and Smirnov's distance, which sees a wrong spread, another law and a cut-off alike, and by mean and spread.
Sources: MLPerf's MXNet ResNet; torchvision's ResNet and Mask R-CNN; MLPerf's SSD and maskrcnn-benchmark.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from paceline.config.maskrcnn import MaskHead, MaskRCNNModel, RoI
from paceline.config.ssd import SSDModel, grid_sizes
from paceline.models.backbones import build_backbone
from paceline.models.backbones.base import BackboneSpec, Init, init_weights
from paceline.models.backbones.resnet import ResNet
from paceline.models.maskrcnn.model import MaskRCNN, init_mask_rcnn
from paceline.models.ssd.model import SSD, init_ssd

# Of a parameter's numbers so many are looked at: more would take longer and say the same.
MAX = 20_000
# Times sqrt(n): a right law is beyond it once in 10,000 parameters (Kolmogorov's limit: 2 exp(-2 d^2)). Draws are seeded.
DISTANCE = 2.3


@dataclass(frozen=True)
class Law:
    """normal: N(0, spread^2); uniform: U(+-spread); constant: each number is spread."""

    shape: str
    spread: float


def normal(std: float) -> Law:
    return Law("normal", std)


def uniform(bound: float) -> Law:
    return Law("uniform", bound)


def constant(value: float) -> Law:
    return Law("constant", value)


def fan_in(shape: torch.Size) -> int:
    """Products that one output sums."""
    return math.prod(shape[1:])


def fan_out(shape: torch.Size) -> int:
    """Products that one input number is in, a stride of 1 thought of."""
    return shape[0] * math.prod(shape[2:])


def assert_law(name: str, weight: Tensor, law: Law) -> None:
    """The numbers of a parameter are draws of the law."""
    values = weight.detach().double().flatten()
    if law.shape == "constant":
        assert bool((values == law.spread).all()), name
    else:
        assert_drawn(name, values / law.spread, law.shape)


def assert_drawn(name: str, values: Tensor, shape: str) -> None:
    """The numbers, all divided by their spread, are draws of N(0, 1) or U(+-1)."""
    values = values[:: 1 + len(values) // MAX].sort().values
    count = len(values)
    std, kurtosis = (1.0, 3.0) if shape == "normal" else (1 / math.sqrt(3), 1.8)
    assert abs(float(values.mean())) < 4.5 * std / math.sqrt(count), (name, "mean")
    error = math.sqrt((kurtosis - 1) / (4 * count))
    assert abs(float(values.square().mean().sqrt()) / std - 1) < 4.5 * error, (name, float(values.std()), std)
    if shape == "normal":
        below = torch.special.ndtr(values)
    else:
        assert float(values.abs().max()) <= 1, (name, "bound")
        below = (values + 1) / 2
    places = torch.arange(count + 1, dtype=torch.float64) / count
    distance = float(torch.maximum(places[1:] - below, below - places[:-1]).max())
    assert distance * math.sqrt(count) < DISTANCE, (name, distance * math.sqrt(count))


Laws = Mapping[str, Callable[[str, Tensor], Law]]  # pattern of a name -> law of that parameter


def assert_laws(model: torch.nn.Module, laws: Laws) -> None:
    """Each parameter's name is of exactly one pattern, each pattern has a parameter, and each parameter its law.

    Parameters of one pattern are held against it once more together: a few hundred numbers alone say little.
    """
    drawn: dict[tuple[str, str], list[Tensor]] = {}
    unused = set(laws)
    for name, weight in model.named_parameters():
        (pattern,) = [pattern for pattern in laws if re.fullmatch(pattern, name)]
        unused.discard(pattern)
        law = laws[pattern](name, weight)
        assert_law(name, weight, law)
        if law.shape != "constant":
            drawn.setdefault((pattern, law.shape), []).append(weight.detach().double().flatten() / law.spread)
    assert not unused
    for (pattern, shape), values in drawn.items():
        assert_drawn(pattern, torch.cat(values), shape)


GAMMA, BETA = r"(.*\.)?(bn\d|downsample\.1)\.weight", r"(.*\.)?(bn\d|downsample\.1)\.bias"
CONV = r"(.*\.)?(conv\d|downsample\.0)\.weight"


def ones(name: str, weight: Tensor) -> Law:
    return constant(1.0)


def zeros(name: str, weight: Tensor) -> Law:
    return constant(0.0)


def kaiming_out(name: str, weight: Tensor) -> Law:
    return normal(math.sqrt(2 / fan_out(weight.shape)))


TORCHVISION_TRUNK: Laws = {CONV: kaiming_out, GAMMA: ones, BETA: zeros}


def resnet(init: Init, *, channels: int = 3, zero: bool = False, seed: int = 0) -> ResNet:
    model = ResNet(50, 100, width=32, input_channels=channels)
    init_weights(model, init, torch.Generator().manual_seed(seed), zero_init_residual=zero)
    return model


MLPERF: Laws = {
    CONV: lambda name, weight: normal(math.sqrt(2 / fan_in(weight.shape))),
    GAMMA: ones,
    BETA: zeros,
    r"fc\.weight": lambda name, weight: normal(0.01),
    r"fc\.bias": zeros,
}


@pytest.mark.parametrize("channels", [3, 4])
def test_mlperf_s_resnet(channels):
    model = resnet("mlperf", channels=channels)
    assert_laws(model, MLPERF)
    # The fourth, zero channel counts: 196 products, not 147.
    assert_law("stem", model.conv1.weight, normal(math.sqrt(2 / (49 * channels))))


@pytest.mark.parametrize("zero", [False, True])
def test_torchvision_s_resnet(zero):
    model = resnet("torchvision", zero=zero)

    def gamma(name: str, weight: Tensor) -> Law:
        return constant(0.0 if zero and name.endswith("bn3.weight") else 1.0)

    def line(name: str, weight: Tensor) -> Law:
        return uniform(1 / math.sqrt(model.fc.in_features))

    assert_laws(model, {CONV: kaiming_out, GAMMA: gamma, BETA: zeros, r"fc\.(weight|bias)": line})


def xavier(name: str, weight: Tensor) -> Law:
    return uniform(math.sqrt(6 / (fan_in(weight.shape) + fan_out(weight.shape))))


@pytest.mark.parametrize("heads", ["separate", "fused"])
def test_ssd(heads):
    settings = SSDModel(depth=18, width=16, extra_channels=64, heads=heads)
    model = SSD(build_backbone(settings, BackboneSpec(stride=8)), 80, settings, grid_sizes(300))
    init_ssd(model, torch.Generator().manual_seed(0))
    trunk_laws = {rf"trunk\.{pattern}": law for pattern, law in TORCHVISION_TRUNK.items()}
    modules = dict(model.named_modules())

    def bias(name: str, weight: Tensor) -> Law:
        # As torch draws a convolution's bias, which the reference leaves alone.
        return uniform(1 / math.sqrt(fan_in(modules[name.removesuffix(".bias")].weight.shape)))

    parts = r"(extras\.\d\.(reduce|conv)|heads\.\d\.(conf|loc))"
    if heads == "separate":
        assert_laws(model, {**trunk_laws, rf"{parts}\.weight": xavier, rf"{parts}\.bias": bias})
        return
    for number, head in enumerate(model.heads):
        weights, end = head.fused.weight, head.classes + head.deltas
        for part in (
            weights[: head.classes],
            weights[head.classes : end],
            *([weights[end:]] if len(weights) > end else []),
        ):
            assert_law(f"head {number}", part, xavier("", part))


SMALL = MaskRCNNModel(depth=18, width=16, fpn_channels=64, roi=RoI(fc_channels=128), mask=MaskHead(num_convs=2))


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_mask_rcnn(norm):
    settings = replace(SMALL, norm="batch", fpn_norm=norm, freeze_stages=0)
    model = MaskRCNN(settings, 80)
    init_mask_rcnn(model, torch.Generator().manual_seed(0))

    def pyramid(name: str, weight: Tensor) -> Law:
        # Kaiming's uniform with a = 1: a variance of 1 / fan_in.
        return uniform(math.sqrt(3 / fan_in(weight.shape)))

    def transposed(name: str, weight: Tensor) -> Law:
        # Its weight has the inputs first, and torch counts the fan by places: inputs stand for outputs here, and are as many.
        assert weight.shape[0] == weight.shape[1]
        return kaiming_out(name, weight)

    laws: dict[str, Callable[[str, Tensor], Law]] = {
        **{rf"backbone\.body\.{pattern}": law for pattern, law in TORCHVISION_TRUNK.items()},
        r"backbone\.fpn\.(inner|layer)_blocks\.\d\.0\.weight": pyramid,
        r"rpn\.head\..*\.weight": lambda name, weight: normal(0.01),
        r"roi_heads\.box_head\.fc[67]\.weight": pyramid,
        r"roi_heads\.box_predictor\.cls_score\.weight": lambda name, weight: normal(0.01),
        r"roi_heads\.box_predictor\.bbox_pred\.weight": lambda name, weight: normal(0.001),
        r"roi_heads\.mask_head\..*\.weight": kaiming_out,
        r"roi_heads\.mask_predictor\.conv5_mask\.weight": transposed,
        r"roi_heads\.mask_predictor\.mask_fcn_logits\.weight": kaiming_out,
        r"(backbone\.fpn|rpn|roi_heads)\..*\.bias": zeros,
    }
    if norm == "batch":
        laws[r"backbone\.fpn\.(inner|layer)_blocks\.\d\.1\.weight"] = ones
    assert_laws(model, laws)


@pytest.mark.parametrize(
    ("off", "why"),
    [
        (lambda name, weight: normal(math.sqrt(2 / fan_out(weight.shape))), "the other fan"),
        (lambda name, weight: uniform(math.sqrt(6 / fan_in(weight.shape))), "uniform of the same variance"),
        (lambda name, weight: normal(math.sqrt(2.1 / fan_in(weight.shape))), "a variance of 5 % more"),
    ],
)
def test_another_law_is_noticed(off, why):
    with pytest.raises(AssertionError):
        assert_laws(resnet("mlperf"), {**MLPERF, CONV: off})


def test_no_number_of_a_parameter_follows_from_another_s():
    """Each is drawn apart: two parameters of one shape are not alike, nor are two networks of two seeds."""
    first, other = resnet("mlperf", seed=1), resnet("mlperf", seed=2)
    drawn = [weight.detach().flatten()[:3000] for weight in (first.layer1[1].conv2.weight, first.layer1[2].conv2.weight)]
    drawn.append(other.layer1[1].conv2.weight.detach().flatten()[:3000])
    alike = torch.corrcoef(torch.stack(drawn)) - torch.eye(3)
    assert float(alike.abs().max()) < 4.5 / math.sqrt(3000)
