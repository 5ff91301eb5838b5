"""torchvision's ResNets as the oracle: same names, same outputs, weights both ways."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torchvision
from by_night import ONE_MORE
from messages import raises
from torch import nn

from paceline._utils.errors import RecipeError
from paceline.config.constraints import check_bounds
from paceline.config.maskrcnn import MaskHead, MaskRCNNModel, RoI
from paceline.config.recipe import check_rules
from paceline.config.resnet import ResNetModel, backbone_rules
from paceline.config.ssd import SSDModel
from paceline.models.backbones import build_backbone
from paceline.models.backbones.base import BackboneSpec
from paceline.models.backbones.resnet import ResNet
from paceline.models.maskrcnn.model import MaskRCNN
from paceline.models.ssd.model import SSD
from paceline.models.weights.formats.torchvision import to_plain_tensors
from paceline.models.weights.load import load_weights
from paceline.models.weights.load_detectors import load_mask_rcnn_weights, load_ssd_weights


@pytest.fixture(autouse=True)
def no_first_weights(monkeypatch):
    """torchvision's own first weights are all overwritten here and take longer than the tests."""
    for name in ("kaiming_normal_", "kaiming_uniform_"):
        monkeypatch.setattr(torch.nn.init, name, lambda tensor, *_, **__: tensor)


def fill(model: nn.Module, seed: int) -> None:
    """Weights and statistics from numpy: nothing can be downloaded, and no initializer of torch's is involved."""
    source = np.random.RandomState(seed).standard_normal(1_000_003).astype(np.float32)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith("num_batches_tracked"):
                continue
            values = np.resize(source, tuple(tensor.shape))
            source = np.roll(source, 7919)
            if tensor.dim() > 1:
                values *= np.sqrt(2 / np.prod(tensor.shape[1:])).astype(np.float32)
            elif name.endswith("running_var") or (name.endswith("weight") and "fc" not in name):
                values = np.abs(values) * 0.2 + 0.8
            else:
                values *= 0.1
            tensor.copy_(torch.from_numpy(values))


NEXT = {"groups": 32, "width_per_group": 4}


@pytest.mark.parametrize(
    ("name", "depth", "parts"),
    [
        ("resnet18", 18, {}), pytest.param("resnet34", 34, {}, marks=ONE_MORE), ("resnet50", 50, {}),
        pytest.param("resnet101", 101, {}, marks=ONE_MORE),
        ("resnext50_32x4d", 50, NEXT),
    ],
)  # fmt: skip
def test_torchvision_weights_give_torchvision_outputs_and_go_back(name, depth, parts, tmp_path):
    theirs = getattr(torchvision.models, name)(weights=None)
    fill(theirs, depth)
    torch.save(theirs.state_dict(), tmp_path / "weights.pth")
    ours = ResNet(depth, 1000, **parts)
    report = load_weights(ours, tmp_path / "weights.pth")
    assert list(report.used) == list(theirs.state_dict())
    assert not (report.missing or report.unexpected or report.reinitialised or report.converted)

    images = torch.from_numpy(np.random.RandomState(0).standard_normal((2, 3, 40, 40)).astype(np.float32))
    with torch.no_grad():
        assert torch.equal(ours.eval().classify(images), theirs.eval()(images))

    before = {name: value.clone() for name, value in theirs.state_dict().items()}
    for parameter in theirs.parameters():
        parameter.data.zero_()
    theirs.load_state_dict(to_plain_tensors(ours.state_dict()), strict=True)
    assert all(torch.equal(value, before[name]) for name, value in theirs.state_dict().items())


def test_a_training_step_has_torchvisions_logits_gradients_and_statistics():
    theirs = torchvision.models.resnet18(weights=None, num_classes=10)
    fill(theirs, 1)
    ours = ResNet(18, 10)
    ours.load_state_dict(theirs.state_dict())
    images = torch.from_numpy(np.random.RandomState(0).standard_normal((4, 3, 64, 64)).astype(np.float32))
    logits = ours.classify(images)
    expected = theirs(images)
    assert torch.equal(logits, expected)
    logits.square().sum().backward()
    expected.square().sum().backward()
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters()):
        assert torch.equal(a.grad, b.grad), name
    assert torch.equal(ours.bn1.running_var, theirs.bn1.running_var)


def test_the_4_channel_stem_computes_the_3_channel_nets_outputs_both_ways(tmp_path):
    theirs = torchvision.models.resnet18(weights=None)
    fill(theirs, 4)
    torch.save({"state_dict": {f"module.{name}": value for name, value in theirs.state_dict().items()}}, tmp_path / "w.pth")
    ours = ResNet(18, 1000, input_channels=4)
    report = load_weights(ours, tmp_path / "w.pth")
    assert report.converted == ("conv1.weight",)
    images = torch.from_numpy(np.random.RandomState(0).standard_normal((2, 3, 40, 40)).astype(np.float32))
    padded = torch.cat((images, torch.zeros(2, 1, 40, 40)), 1)
    with torch.no_grad():
        torch.testing.assert_close(ours.eval().classify(padded), theirs.eval()(images), rtol=1e-5, atol=1e-5)
    exported = to_plain_tensors(ours.state_dict())
    assert all(torch.equal(exported[name], value) for name, value in theirs.state_dict().items())


@pytest.mark.parametrize(
    ("name", "depth", "parts"),
    [("resnext101_32x8d", 101, {"groups": 32, "width_per_group": 8}), ("wide_resnet50_2", 50, {"width_per_group": 128})],
)
def test_wider_networks_have_torchvisions_names_and_shapes(name, depth, parts):
    with torch.device("meta"):
        theirs = getattr(torchvision.models, name)(weights=None).state_dict()
        ours = ResNet(depth, 1000, **parts).state_dict()
    assert [(name, tensor.shape) for name, tensor in ours.items()] == [
        (name, tensor.shape) for name, tensor in theirs.items()
    ]


def maps_of(theirs: nn.Module, images: torch.Tensor) -> list[torch.Tensor]:
    """Outputs of torchvision's four stages."""
    features, maps = theirs.maxpool(theirs.relu(theirs.bn1(theirs.conv1(images)))), []
    for stage in (theirs.layer1, theirs.layer2, theirs.layer3, theirs.layer4):
        features = stage(features)
        maps.append(features)
    return maps


def test_a_resnext_file_fills_ssd_and_mask_rcnn_and_gives_torchvisions_maps(tmp_path):
    theirs = torchvision.models.resnext50_32x4d(weights=None)
    fill(theirs, 2)
    torch.save(theirs.state_dict(), tmp_path / "next.pth")
    images = torch.from_numpy(np.random.RandomState(0).standard_normal((1, 3, 64, 96)).astype(np.float32))
    with torch.no_grad():
        expected = maps_of(theirs.eval(), images)
        for norm in ("batch", "frozen"):
            masks = MaskRCNN(
                MaskRCNNModel(**NEXT, norm=norm, fpn_channels=8, roi=RoI(fc_channels=8), mask=MaskHead(num_convs=1)), 2
            )
            report = load_mask_rcnn_weights(masks, tmp_path / "next.pth")
            assert set(report.unexpected) == {"backbone.body.fc.weight", "backbone.body.fc.bias"}
            for map, other in zip(masks.backbone.body.eval()(images), expected):
                torch.testing.assert_close(map, other, rtol=1e-4, atol=1e-5 * float(other.abs().max()))
        # SSD's third stage keeps the second's resolution: the reference takes the stride out of its first unit.
        theirs.layer3[0].conv2.stride = theirs.layer3[0].downsample[0].stride = (1, 1)
        trunk = build_backbone(SSDModel(depth=50, **NEXT), BackboneSpec(stride=8))
        boxes = SSD(trunk, 2, SSDModel(extra_channels=8), (12, 6, 3))
        report = load_ssd_weights(boxes, tmp_path / "next.pth")
        assert {name.split(".")[1] for name in report.unexpected} == {"layer4", "fc"}
        maps = trunk.eval()(images)
        assert trunk.strides == [4, 8, 8] and [map.shape[1] for map in maps] == trunk.channels == [256, 512, 1024]
        assert all(torch.equal(*pair) for pair in zip(maps, maps_of(theirs, images)))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"depth": 34, "groups": 32}, "--model.groups 32 ... --model.width-per-group 64"),
        ({"depth": 18, "width_per_group": 128}, "--model.depth 18"),
        ({"width": 8, "width_per_group": 4}, "--model.width-per-group 4 ... --model.width 8"),
        ({"groups": 0}, "--model.groups 0: must be 1 or more"),
        ({"backbone": "timm/resnet10t", "groups": 2}, "--model.backbone timm/resnet10t"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "model", [ResNetModel(depth=50), SSDModel(depth=50), MaskRCNNModel()], ids=lambda model: type(model).__name__
)
def test_parts_that_cannot_be_are_refused_by_their_flag(model, changes, says):
    with raises(RecipeError, says):
        check_bounds(changed := replace(model, **changes), "--model.")
        check_rules(*backbone_rules(changed))


def test_an_unknown_trunk_names_the_known_ones():
    for trunk, says in (("resnt", "must be one of resnet, timm"), ("x", "must be one of"), ("resnet/50", "--model.depth")):
        with pytest.raises(RecipeError, match=says):
            build_backbone(ResNetModel(backbone=trunk), BackboneSpec())
