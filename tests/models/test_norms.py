"""Frozen BatchNorms folded into their convolutions, GroupNorms in BatchNorms' places, and names that stay torchvision's."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, Bottleneck
from torchvision.ops import FrozenBatchNorm2d

from paceline.config.maskrcnn import MaskRCNNModel
from paceline.models.backbones import build_backbone
from paceline.models.backbones.base import Backbone, BackboneSpec
from paceline.models.backbones.resnet import ResNet
from paceline.models.layers.batch_norm import list_batch_norms, update_running_statistics
from paceline.models.layers.common import FoldedConv2d, FrozenBatchNorm, fold_frozen, make_group_norm, replace_norms
from paceline.models.maskrcnn.model import BackboneWithFPN
from paceline.models.maskrcnn.module import MaskRCNN

EPS = 1e-3


def resnet(depth: int, width: int, norm: str) -> Backbone:
    return build_backbone(
        MaskRCNNModel(depth=depth, width=width, bn_eps=EPS, freeze_stages=0), BackboneSpec(stride=32, norm=norm)
    )


def filled(net: nn.Module) -> nn.Module:
    """Numbers of a useful size from a seed, statistics with them."""
    random = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, tensor in net.state_dict().items():
            if name.endswith("num_batches_tracked"):
                continue
            tensor.normal_(generator=random)
            if name.endswith("running_var"):
                tensor.abs_().add_(0.2)
            elif tensor.dim() > 1:
                tensor.mul_((1 / tensor[0].numel()) ** 0.5)
    return net


def torchvision_body(depth: int) -> nn.Module:
    def norm(channels: int) -> FrozenBatchNorm2d:
        return FrozenBatchNorm2d(channels, eps=EPS)

    block, units = {18: (BasicBlock, [2, 2, 2, 2]), 50: (Bottleneck, [3, 4, 6, 3])}[depth]
    net = torchvision.models.ResNet(block, units, norm_layer=norm)
    del net.fc
    return net


def stages_of(net: nn.Module, images: Tensor) -> list[Tensor]:
    """The four stages' outputs of torchvision's ResNet."""
    features, stages = net.maxpool(net.relu(net.bn1(net.conv1(images)))), []
    for stage in (net.layer1, net.layer2, net.layer3, net.layer4):
        features = stage(features)
        stages.append(features)
    return stages


@pytest.mark.parametrize("depth", [18, 50])
def test_folded_frozen_norms_give_torchvisions_outputs_and_weight_gradients(depth, monkeypatch):
    for name in ("kaiming_normal_", "kaiming_uniform_"):  # first weights that are overwritten
        monkeypatch.setattr(torch.nn.init, name, lambda tensor, *_, **__: tensor)
    theirs = filled(torchvision_body(depth)).double()
    ours = resnet(depth, 64, "frozen").double()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    assert sum(isinstance(module, FoldedConv2d) for module in ours.modules()) == {18: 20, 50: 53}[depth]
    images = torch.randn(2, 3, 32, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found, expected = ours.train()(images), stages_of(theirs.train(), images)
    for one, other in zip(found, expected):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    for stages in (found, expected):
        torch.stack([stage.sin().sum() for stage in stages]).sum().backward()
    wanted = dict(theirs.named_parameters())
    assert {name for name, _ in ours.named_parameters()} == set(wanted)  # weights of convolutions, nothing of the norms
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[name].grad, rtol=1e-8, atol=1e-9)


def test_an_unfolded_frozen_norm_is_torchvisions_and_folding_twice_changes_nothing():
    norm, other = FrozenBatchNorm(5, EPS), FrozenBatchNorm2d(5, eps=EPS)
    other.load_state_dict(filled(norm).state_dict(), strict=True)
    map = torch.randn(2, 5, 3, 4)
    torch.testing.assert_close(norm(map), other(map))
    body = filled(resnet(10, 8, "frozen"))
    images = torch.randn(1, 3, 32, 32)
    before = body(images)
    fold_frozen(body)
    assert all(torch.equal(*pair) for pair in zip(before, body(images)))


def test_folding_leaves_parameters_where_they_are_and_survives_a_copy():
    net = ResNet(10, 3, width=8)
    parameters = [
        id(parameter) for name, parameter in net.named_parameters() if "bn" not in name and "downsample.1" not in name
    ]
    replace_norms(net, "frozen", EPS)
    fold_frozen(net)
    assert [id(parameter) for parameter in net.parameters()] == parameters
    filled(net)
    images = torch.randn(1, 3, 64, 64)
    twin = copy.deepcopy(net)
    with torch.no_grad():
        net.bn1.weight.mul_(2.0)
        # The copy's convolutions fold the copy's norms.
        assert not torch.equal(twin.classify(images), net.classify(images))
        twin.bn1.weight.mul_(2.0)
        assert torch.equal(twin.classify(images), net.classify(images))


def test_a_folded_net_loads_saves_and_exports_as_it_is(tmp_path):
    net = filled(resnet(10, 8, "frozen"))
    plain = resnet(10, 8, "batch").state_dict()
    wanted = [name for name in plain if not name.endswith("num_batches_tracked")]
    assert list(net.state_dict()) == wanted
    other = resnet(10, 8, "frozen")
    other.load_state_dict(net.state_dict(), strict=True, assign=True)
    torch.save(net, tmp_path / "net.pt")
    saved = torch.load(tmp_path / "net.pt", weights_only=False)
    images = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        exported = torch.export.export(net, (images,)).module()
        for twin in (other, saved, exported):
            assert all(torch.equal(*pair) for pair in zip(twin(images), net(images)))


def test_group_norms_take_every_batch_norms_place_with_its_channels():
    body = resnet(10, 16, "group")
    names = {name for name, module in resnet(10, 16, "batch").named_modules()
             if isinstance(module, nn.BatchNorm2d)}  # fmt: skip
    groups = {name: module for name, module in body.named_modules() if isinstance(module, nn.GroupNorm)}
    assert set(groups) == names and not list(list_batch_norms(body))
    assert all(module.eps == EPS for module in groups.values())
    assert groups["bn1"].num_channels == 16 and groups["layer4.0.bn2"].num_channels == 128
    assert all(parameter.requires_grad for parameter in groups["bn1"].parameters())


@pytest.mark.parametrize(("channels", "groups"), [(1, 1), (7, 1), (8, 1), (16, 2), (64, 8), (256, 32), (1024, 32)])
def test_groups_have_eight_channels_or_there_are_32_of_them(channels, groups):
    assert make_group_norm(channels).num_groups == groups


@pytest.mark.parametrize(("stages", "still"), [(0, ()), (1, ("conv1.", "bn1.")), (2, ("conv1.", "bn1.", "layer1."))])
def test_frozen_layers_neither_train_nor_count_statistics(stages, still):
    body = filled(resnet(10, 8, "batch"))
    body.freeze_stages(stages)
    body.eval().train()
    before = {name: tensor.clone() for name, tensor in body.state_dict().items()}
    torch.stack([stage.square().mean() for stage in body(torch.randn(2, 3, 32, 32))]).sum().backward()
    update_running_statistics(body)
    for name, parameter in body.named_parameters():
        assert (parameter.grad is None) == name.startswith(still), name
    for name, tensor in body.state_dict().items():
        if name.endswith("running_mean"):
            assert torch.equal(tensor, before[name]) == name.startswith(still), name


def test_names_and_shapes_are_torchvisions(monkeypatch):
    for name in ("kaiming_normal_", "kaiming_uniform_", "normal_"):
        monkeypatch.setattr(torch.nn.init, name, lambda tensor, *_, **__: tensor)
    with torch.device("meta"):
        theirs = torchvision.models.detection.maskrcnn_resnet50_fpn(weights=None, weights_backbone=None)
        ours = MaskRCNN(MaskRCNNModel(), classes=90)
        trained = MaskRCNN(replace(MaskRCNNModel(), norm="batch", freeze_stages=0), classes=90)
    expected = {name: tensor.shape for name, tensor in theirs.state_dict().items()}
    assert {name: tensor.shape for name, tensor in trained.state_dict().items()} == expected
    expected = {name: shape for name, shape in expected.items() if not name.endswith("num_batches_tracked")}
    assert {name: tensor.shape for name, tensor in ours.state_dict().items()} == expected


@pytest.mark.parametrize("min_fpn_level", [2, 3])
@pytest.mark.parametrize("top", ["pool", "conv"])
@pytest.mark.parametrize("norm", ["none", "batch", "group"])
def test_levels_have_half_the_sides_of_the_one_before_rounded_up(min_fpn_level, top, norm):
    trunk = resnet(10, 8, "group")
    net = BackboneWithFPN(
        trunk,
        MaskRCNNModel(
            fpn_channels=16, min_fpn_level=min_fpn_level, freeze_stages=0, fpn_norm=norm, fpn_top=top, bn_eps=EPS
        ),
    )
    levels = filled(net)(torch.randn(1, 3, 96, 160))
    assert [tuple(level.shape) for level in levels] == [
        (1, 16, -(-96 // stride), -(-160 // stride)) for stride in net.strides
    ]
    assert net.strides == [4, 8, 16, 32, 64][min_fpn_level - 2 :]
