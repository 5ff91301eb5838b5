"""The first weights of GluonCV's net, recorded from its own code, beside ours: each tensor's law, not its numbers."""

from __future__ import annotations

import math

import pytest
import torch
from gluoncv_recorded import Recorded, reader
from torch import Tensor

from paceline.config.maskrcnn import MaskRCNNModel
from paceline.config.recipes.maskrcnn import gluoncv, mlperf
from paceline.models.maskrcnn.model import MaskRCNN, init_mask_rcnn

NORMAL, UNIFORM = 3.0, 1.8  # kurtosis
LOOKED_AT = 400_000
NAMES = {
    **{f"P{level}_conv_lat": f"backbone.fpn.inner_blocks.{level - 2}.0" for level in range(2, 6)},
    **{f"P{level}_conv1": f"backbone.fpn.layer_blocks.{level - 2}.0" for level in range(2, 6)},
    "P6_conv1": "backbone.fpn.top",
    "dense0": "roi_heads.box_head.fc6",
    "dense1": "roi_heads.box_head.fc7",
    "maskrcnn0_dense0": "roi_heads.box_predictor.cls_score",
    "maskrcnn0_dense1": "roi_heads.box_predictor.bbox_pred",
    "maskrcnn0_rpn0_rpnhead0_conv0": "rpn.head.conv.0.0",
    "maskrcnn0_rpn0_rpnhead0_conv1": "rpn.head.cls_logits",
    "maskrcnn0_rpn0_rpnhead0_conv2": "rpn.head.bbox_pred",
    **{f"maskrcnn0_mask0_conv{place}": f"roi_heads.mask_head.{place}.0" for place in range(4)},
    "maskrcnn0_mask0_conv4": "roi_heads.mask_predictor.conv5_mask",
    "maskrcnn0_mask0_conv5": "roi_heads.mask_predictor.mask_fcn_logits",
}


@pytest.fixture
def recorded() -> Recorded:
    return reader()


def drawn(model: MaskRCNNModel) -> MaskRCNN:
    network = MaskRCNN(model, 80)
    init_mask_rcnn(network, torch.Generator().manual_seed(8), model.init)
    return network


def some(values: Tensor) -> Tensor:
    """At most some LOOKED_AT of the values, spread evenly, in float64."""
    return values.detach().flatten()[:: max(1, values.numel() // LOOKED_AT)].double()


def moments(values: Tensor) -> tuple[float, float, float, float]:
    """mean, deviation, largest magnitude and kurtosis; kurtosis 0 of zeros."""
    centerd = values - values.mean()
    variance = float(centerd.square().mean())
    kurtosis = float(centerd.pow(4).mean()) / variance**2 if variance else 0.0
    return float(values.mean()), math.sqrt(variance), float(values.abs().max()), kurtosis


def of_law(values: Tensor, std: float, kurtosis: float) -> None:
    """Values of that deviation and shape about 0, to five standard errors of each moment."""
    values = some(values)
    mean, found, most, shape = moments(values)
    count = len(values)
    assert abs(mean) <= 5 * std / math.sqrt(count)
    # The variance of a sample's deviation is (kurtosis - 1) / (4 n), relative.
    assert abs(found / std - 1) <= 5 * math.sqrt((kurtosis - 1) / (4 * count))
    assert abs(shape - kurtosis) <= 5 * math.sqrt((24 if kurtosis == NORMAL else 3) / count)
    if kurtosis == UNIFORM:
        bound = math.sqrt(3) * std
        assert bound * (1 - 20 / count) <= most <= bound * (1 + 1e-6)


def test_every_layer_has_the_law_of_gluoncv_s_net(recorded: Recorded) -> None:
    theirs = recorded("first_weights")
    network, seen = drawn(gluoncv().model), set()
    for name, (count, mean, std, least, most, kurtosis) in zip(theirs["names"].tolist(), theirs["rows"].tolist()):
        module, part = name.rsplit("_", 1)
        ours = getattr(network.get_submodule(NAMES[module]), part)
        seen.add(module)
        if std == 0:
            assert not ours.any(), name
            continue
        ours = some(ours)
        law = min((NORMAL, UNIFORM), key=lambda value: abs(value - kurtosis))
        # Both are samples: as far apart as their sizes make likely.
        error = 5 * math.sqrt((law - 1) / 4 * (1 / count + 1 / ours.numel()))
        our_mean, our_std, our_most, our_kurtosis = moments(ours)
        assert abs(our_std / std - 1) <= error, name
        assert abs(our_mean - mean) <= 5 * std * math.sqrt(1 / count + 1 / ours.numel()), name
        assert abs(our_kurtosis - law) <= 5 * math.sqrt((24 if law == NORMAL else 3) / ours.numel()), name
        if law == UNIFORM:
            assert our_most == pytest.approx(max(most, -least), rel=20 / min(count, ours.numel())), name
    assert seen == set(NAMES)


@pytest.fixture(scope="module")
def reference() -> MaskRCNN:
    return drawn(mlperf().model)


@pytest.mark.parametrize(
    ("module", "fan", "kurtosis"),
    [
        ("backbone.fpn.inner_blocks.0.0", 256, UNIFORM),
        ("backbone.fpn.inner_blocks.3.0", 2048, UNIFORM),
        ("backbone.fpn.layer_blocks.1.0", 2304, UNIFORM),
        ("roi_heads.box_head.fc6", 12_544, UNIFORM),
        ("roi_heads.box_head.fc7", 1024, UNIFORM),
        ("rpn.head.conv.0.0", 10_000, NORMAL),
        ("rpn.head.cls_logits", 10_000, NORMAL),
        ("roi_heads.box_predictor.cls_score", 10_000, NORMAL),
        ("roi_heads.box_predictor.bbox_pred", 1_000_000, NORMAL),
        ("roi_heads.mask_head.0.0", 1152, NORMAL),
        ("roi_heads.mask_predictor.conv5_mask", 512, NORMAL),
        ("roi_heads.mask_predictor.mask_fcn_logits", 40.5, NORMAL),
    ],
)
def test_other_recipes_have_the_mlperf_reference_s_laws(
    reference: MaskRCNN, module: str, fan: float, kurtosis: float
) -> None:
    """Variance 1 / fan, from the reference's source (fpn.py, roi_box_feature_extractors.py, rpn.py, ...); biases 0."""
    layer = reference.get_submodule(module)
    assert isinstance(layer.weight, Tensor)
    of_law(layer.weight, fan**-0.5, kurtosis)
    assert not layer.bias.any()  # type: ignore[union-attr, operator]
