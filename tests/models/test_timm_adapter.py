"""timm's networks as trunks: timm's own outputs, our BatchNorms, weights by name from timm's files, and what is refused."""

from __future__ import annotations

import sys

import pytest
import torch
from by_night import ONE_MORE
from messages import raises
from safetensors.torch import save_file
from torch import Tensor

from paceline._utils.errors import CheckpointError, RecipeError
from paceline.config.maskrcnn import MaskHead, MaskRCNNModel, RoI
from paceline.config.recipe import Recipe
from paceline.config.resnet import ImageInput, ResNetModel, check_classification
from paceline.config.ssd import SSDModel, grid_sizes
from paceline.config.system import System
from paceline.models.backbones import build_backbone
from paceline.models.backbones.base import Backbone, BackboneSpec, init_weights
from paceline.models.backbones.timm_adapter import FrozenBatchNormAct, TimmConv2d
from paceline.models.layers.batch_norm import configure_batch_norm, list_batch_norms, update_running_statistics
from paceline.models.maskrcnn.model import MaskRCNN, init_mask_rcnn
from paceline.models.memory_estimate import estimate_recipe_memory
from paceline.models.registry import WORKLOADS
from paceline.models.resnet.loss import ClassifierWithLoss
from paceline.models.ssd.model import SSD, init_ssd
from paceline.models.weights.load import load_weights
from paceline.models.weights.load_detectors import load_mask_rcnn_weights, load_ssd_weights

pytestmark = pytest.mark.usefixtures("timm")
# LayerNorm alone; BatchNorm2d; both with an activation inside, stages to be cut off; epsilon 1e-3.
NAMES = ("convnext_atto", "resnet10t", "mobilenetv3_small_050", "tf_efficientnet_lite0")
WITH_NORMS = NAMES[1:]


def trunk_of(name: str, form: BackboneSpec | None = None, seed: int = 1) -> Backbone:
    trunk = build_backbone(ResNetModel(backbone=f"timm/{name}"), form or BackboneSpec())
    trunk.draw("torchvision", torch.Generator().manual_seed(seed), zero_init_residual=False)
    return trunk


def theirs_of(trunk: Backbone, name: str) -> torch.nn.Module:
    """timm's own feature network with the trunk's weights; layers that the trunk has not keep timm's."""
    import timm

    theirs = timm.create_model(name, features_only=True, out_indices=trunk.places)
    state = {name.removeprefix("net."): tensor for name, tensor in trunk.state_dict().items()}
    assert not theirs.load_state_dict(state, strict=False).unexpected_keys
    return theirs


def images(count: int = 4, height: int = 64, width: int = 64) -> Tensor:
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize(
    ("name", "stride"),
    [
        ("convnext_atto", 8),
        ("mobilenetv3_small_050", 0),
        ("mobilenetv3_small_050", 8),
        *(pytest.param(*case, marks=ONE_MORE)
          for case in (("convnext_atto", 32), ("resnet10t", 32), ("tf_efficientnet_lite0", 8))),
    ],
)  # fmt: skip
def test_maps_statistics_and_gradients_are_timm_s(name, stride):
    trunk = trunk_of(name, BackboneSpec(stride=stride))
    theirs, given = theirs_of(trunk, name), images(2, 64, 64)
    assert trunk.strides[-1] == (8 if stride == 8 else 32)
    mine, expected = trunk.train()(given), theirs.train()(given)
    for map, other, channels, by in zip(mine, expected, trunk.channels, trunk.strides):
        assert torch.equal(map, other) and map.shape == (2, channels, 64 // by, 64 // by)
    mine[-1].square().sum().backward()
    expected[-1].square().sum().backward()
    wanted = dict(theirs.named_parameters())
    for key, parameter in trunk.net.named_parameters():
        # Every tensor has a gradient: data parallel waits for each.
        assert torch.equal(parameter.grad, wanted[key].grad), key
    buffers = dict(theirs.named_buffers())
    for key, buffer in trunk.net.named_buffers():
        if key.endswith(("running_mean", "running_var")):
            torch.testing.assert_close(buffer, buffers[key], rtol=1e-6, atol=1e-7)
    with torch.no_grad():
        assert all(torch.equal(*pair) for pair in zip(trunk.eval()(given), theirs.eval()(given)))


@pytest.mark.parametrize("name", WITH_NORMS)
def test_each_group_of_images_has_its_own_statistics(name):
    trunk, given = trunk_of(name, BackboneSpec(stride=8)).train(), images()
    norms = list(list_batch_norms(trunk))
    assert norms and not [
        module
        for module in trunk.modules()
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and module not in norms
    ]
    alone = [trunk(part)[-1] for part in given.split(2)]
    configure_batch_norm(trunk, groups=2, join_group=None, join=1, forwards=1)
    torch.testing.assert_close(trunk(given)[-1], torch.cat(alone), rtol=1e-4, atol=1e-5)
    before = norms[0].running_mean.clone()
    update_running_statistics(trunk)
    assert not torch.equal(norms[0].running_mean, before)


@pytest.mark.parametrize("name", WITH_NORMS)
def test_frozen_norms_use_their_running_statistics_and_do_not_train(name):
    trunk = trunk_of(name, BackboneSpec(stride=32, norm="frozen"))
    theirs, given = theirs_of(trunk, name), images(2)
    for module in (trunk.net, theirs):
        random = torch.Generator().manual_seed(1)
        for key, buffer in module.named_buffers():
            if key.endswith("running_mean"):
                buffer.uniform_(-0.2, 0.2, generator=random)
            elif key.endswith("running_var"):
                buffer.uniform_(0.5, 1.0, generator=random)
    given = given.double()
    for map, other in zip(trunk.double().train()(given), theirs.double().eval()(given)):
        torch.testing.assert_close(map, other, rtol=1e-9, atol=1e-9)
        assert map.any()
    assert not list(list_batch_norms(trunk))
    assert len(list(trunk.parameters())) < len(list(theirs.parameters()))


def test_first_weights_follow_from_the_seed_alone_and_move_no_global_state():
    before = torch.random.get_rng_state()
    first, again, other = trunk_of("resnet10t"), trunk_of("resnet10t"), trunk_of("resnet10t", seed=2)
    assert torch.equal(before, torch.random.get_rng_state())
    torch.rand(7)
    later = trunk_of("resnet10t")
    for key, tensor in first.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[key]) and torch.equal(tensor, later.state_dict()[key])
    assert not torch.equal(first.net.conv1[0].weight, other.net.conv1[0].weight)


def networks(name: str) -> dict:
    """One of each workload on this trunk, with its loader of weights, its trunk, and its trunk's prefix."""
    classes = (
        WORKLOADS["classification"]
        .network.build(Recipe("classification", ResNetModel(backbone=f"timm/{name}"), ImageInput()), 3)
        .network
    )
    init_weights(classes, "torchvision", torch.Generator().manual_seed(1))
    settings = SSDModel(backbone=f"timm/{name}", extra_channels=8)
    boxes = SSD(build_backbone(settings, BackboneSpec(stride=8)), 3, settings, grid_sizes(96))
    init_ssd(boxes, torch.Generator().manual_seed(1))
    settings = MaskRCNNModel(
        backbone=f"timm/{name}",
        norm="batch",
        freeze_stages=0,
        fpn_channels=8,
        roi=RoI(fc_channels=8),
        mask=MaskHead(num_convs=1),
    )
    masks = MaskRCNN(settings, 3)
    init_mask_rcnn(masks, torch.Generator().manual_seed(1))
    return {
        "classification": (classes, load_weights, classes, ""),
        "ssd": (boxes, load_ssd_weights, boxes.trunk, "trunk."),
        "maskrcnn": (masks, load_mask_rcnn_weights, masks.backbone.body, "backbone.body."),
    }


@pytest.mark.parametrize("name", [pytest.param("convnext_atto", marks=ONE_MORE), "mobilenetv3_small_050"])
def test_timm_s_files_and_our_own_checkpoints_fill_every_network_by_name(timm, name, tmp_path):
    torch.manual_seed(3)
    whole = timm.create_model(name)
    features = timm.create_model(name, features_only=True)
    features.load_state_dict({key: tensor for key, tensor in zip(features.state_dict(), whole.state_dict().values())})
    save_file(whole.state_dict(), tmp_path / "whole.safetensors")
    torch.save(features.state_dict(), tmp_path / "features.pth")
    given = images(1, 96, 96)
    with torch.no_grad():
        expected = features.eval()(given)
    for network, load, trunk, prefix in networks(name).values():
        own = {f"network.{key}": tensor.clone() for key, tensor in network.state_dict().items()}
        save_file(own, tmp_path / "own.safetensors")
        for file in ("whole.safetensors", "features.pth"):
            for parameter in trunk.parameters():
                torch.nn.init.zeros_(parameter)
            report = load(network, tmp_path / file)
            with torch.no_grad():
                maps = trunk.eval()(given)
            assert all(torch.equal(map, expected[place]) for place, map in enumerate(maps))
            assert all(not key.startswith(f"{prefix}net.") for key in (*report.missing, *report.reinitialised))
            assert bool(report.unexpected) == (file[0] == "w" or len(maps) < len(expected))
        report = load(network, tmp_path / "own.safetensors")
        assert len(report.used) == len(own) and not report.unexpected
        assert all(torch.equal(tensor, own[f"network.{key}"]) for key, tensor in network.state_dict().items())
    with raises(CheckpointError, "another model"):
        load_weights(trunk_of("resnet10t"), tmp_path / "whole.safetensors")


@pytest.mark.parametrize(
    ("name", "form", "says"),
    [
        ("convnext_ato", BackboneSpec(), "--model.backbone timm/convnext_ato ... convnext_atto"),
        ("hf-hub:timm/resnet18.a1_in1k", BackboneSpec(), "network"),  # create_model would fetch it
        ("", BackboneSpec(), "network"),
        ("vit_tiny_patch16_224", BackboneSpec(), r"[16, 16, 16]"),
        ("hrnet_w18_small", BackboneSpec(stride=8), "12 of ... map"),
        ("levit_128s", BackboneSpec(), "any size"),
        ("convnext_atto", BackboneSpec(norm="frozen"), "--model.norm frozen ... BatchNorm"),
        ("resnet10t", BackboneSpec(norm="group"), "--model.norm group"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_trunk_is_refused_by_name(name, form, says):
    with raises(RecipeError, says):
        build_backbone(ResNetModel(backbone=f"timm/{name}"), form)


def test_a_norm_whose_statistics_could_not_span_images_is_refused_by_name():
    trunk = trunk_of("resnet10t")
    for norm in (torch.nn.BatchNorm1d(4), torch.nn.BatchNorm2d(4, affine=False), torch.nn.SyncBatchNorm(4)):
        with raises(RecipeError, "--bn-batch-size", type(norm).__name__):
            trunk._our_norm(norm)


def test_what_a_network_cannot_do_with_a_trunk_is_refused_by_its_flag():
    settings = SSDModel(backbone="timm/convnext_atto", extra_channels=8)
    model = SSD(build_backbone(settings, BackboneSpec(stride=8)), 3, settings, grid_sizes(100))
    with raises(RecipeError, "--input.image-size 100", "12 cells", "13"):
        model(torch.zeros(1, 3, 100, 100))
    with raises(RecipeError, "--model.stem small", "--model.backbone timm/resnet10t"):
        check_classification(Recipe("classification", ResNetModel(backbone="timm/resnet10t", stem="small"), ImageInput()))


def test_without_timm_the_message_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(RecipeError, match=r"pip install 'timm>=1.0.22'"):
        build_backbone(ResNetModel(backbone="timm/resnet10t"), BackboneSpec())


def test_a_classifier_pools_timm_s_last_map_and_its_memory_is_counted():
    recipe = Recipe("classification", ResNetModel(backbone="timm/mobilenetv3_small_050"), ImageInput(image_size=64))
    model = WORKLOADS["classification"].network.build(recipe, 5)
    assert isinstance(model, ClassifierWithLoss)
    init_weights(model.network, "torchvision", torch.Generator().manual_seed(1))
    trunk, given = model.network.eval(), images(2)
    expected = torch.nn.functional.linear(trunk(given)[-1].mean((2, 3)), trunk.fc.weight, trunk.fc.bias)
    torch.testing.assert_close(trunk.classify(given), expected)
    found = estimate_recipe_memory(WORKLOADS["classification"], recipe, System("cpu"), 5)
    assert found.parameters == sum(parameter.numel() for parameter in model.parameters()) and found.per_image > 0


@pytest.mark.parametrize("name", ["mobilenetv3_small_050", pytest.param("convnext_atto", marks=ONE_MORE)])
def test_a_classifier_of_ours_fills_the_trunk_of_each_detector(name, tmp_path):
    (classifier, *_), *detectors = networks(name).values()
    own = {f"network.{key}": tensor + 1 for key, tensor in classifier.state_dict().items()}
    save_file(own, tmp_path / "own.safetensors")
    for network, load, trunk, prefix in detectors:
        report = load(network, tmp_path / "own.safetensors")
        assert all(not key.startswith(f"{prefix}net.") for key in (*report.missing, *report.reinitialised))
        for key, tensor in trunk.state_dict().items():
            assert torch.equal(tensor, own[f"network.{key}"]) or key.endswith("num_batches_tracked"), key


def test_what_a_network_draws_in_a_step_is_switched_off_or_refused():
    trunk = trunk_of("tiny_vit_5m_224").train()
    given = images(1)
    assert all(map(torch.equal, trunk(given), trunk(given)))


@pytest.mark.parametrize(
    ("name", "folded"),
    [
        ("tf_efficientnet_lite0", 48),
        pytest.param("resnet10t", 13, marks=ONE_MORE),
        pytest.param("ghostnet_100", 0, marks=ONE_MORE),
    ],
)
def test_frozen_norms_are_folded_where_that_changes_nothing(name: str, folded: int) -> None:
    """timm's own network in eval mode computes the same maps and the same gradients; ghostnet's names are in another order."""
    trunk = (
        trunk_of(name, BackboneSpec(norm="frozen", finest=8)).train().double()
    )  # in float32 a ReLU6 here and there flips
    drawn = torch.Generator().manual_seed(3)
    for norm in (module for module in trunk.modules() if isinstance(module, FrozenBatchNormAct)):
        norm.running_mean.copy_(0.1 * torch.randn(len(norm.weight), generator=drawn))
        norm.running_var.copy_(0.5 + torch.rand(len(norm.weight), generator=drawn))
        norm.bias.copy_(0.1 * torch.randn(len(norm.weight), generator=drawn))
    assert sum(isinstance(module, TimmConv2d) and module.norm[0] is not None for module in trunk.modules()) == folded
    theirs = theirs_of(trunk, name).eval().double()
    found, expected = trunk(images().double()), theirs(images().double())
    for ours, map in zip(found, expected):
        torch.testing.assert_close(ours, map)
    for maps in (found, expected):
        sum(map.square().sum() for map in maps).backward()
    wanted = dict(theirs.named_parameters())
    for name, parameter in trunk.named_parameters():
        gradient = wanted[name.removeprefix("net.")].grad
        torch.testing.assert_close(parameter.grad, gradient)
