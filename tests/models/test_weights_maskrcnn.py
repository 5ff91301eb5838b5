"""Weight files for Mask R-CNN: torchvision's of any age, COCO's 91 rows, a ResNet's, our own, and ones that do not fit."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torchvision
from messages import check_text, raises
from safetensors.torch import save_file
from torch import Tensor, nn

from paceline._utils.errors import CheckpointError
from paceline.config.maskrcnn import MaskHead, MaskRCNNModel, RoI
from paceline.config.recipes import RECIPES
from paceline.config.ssd import SSDModel
from paceline.models.backbones.resnet import ResNet
from paceline.models.maskrcnn.model import init_mask_rcnn
from paceline.models.maskrcnn.module import MaskRCNN
from paceline.models.registry import WORKLOADS
from paceline.models.weights.classes import Labels
from paceline.models.weights.formats.detectron2 import from_detectron2, to_detectron2
from paceline.models.weights.formats.paceline_format import PacelineWeights, WeightFormatError
from paceline.models.weights.load_detectors import load_mask_rcnn_weights, load_ssd_weights

SMALL = MaskRCNNModel(depth=10, width=8, fpn_channels=8, roi=RoI(fc_channels=16), mask=MaskHead(num_convs=2))
CLASS_LAYERS = (
    "roi_heads.box_predictor.cls_score.", "roi_heads.box_predictor.bbox_pred.", "roi_heads.mask_predictor.mask_fcn_logits."
)  # fmt: skip
# COCO's 80 categories, as its annotations number them.
COCO_IDS = tuple(number for number in range(1, 91) if number not in (12, 26, 29, 30, 45, 66, 68, 69, 71, 83))
NAMES = tuple(f"category {number}" for number in COCO_IDS)


def network(classes: int, seed: int, settings: MaskRCNNModel = SMALL) -> MaskRCNN:
    made = MaskRCNN(settings, classes)
    init_mask_rcnn(made, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for name, tensor in made.state_dict().items():  # biases and statistics that tell two nets apart
            if tensor.dim() == 1 and tensor.is_floating_point():
                tensor.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(seed + len(name)))
    return made


def file_of(state: dict[str, Tensor], folder: Path) -> Path:
    torch.save(state, folder / "weights.pth")
    return folder / "weights.pth"


def old_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """As torchvision had them before its pyramid and heads became sequences."""
    renamed = {}
    for name, tensor in state.items():
        name = re.sub(r"(backbone\.fpn\.\w+_blocks\.\d)\.0\.", r"\1.", name)
        name = name.replace("rpn.head.conv.0.0.", "rpn.head.conv.")
        name = re.sub(r"mask_head\.(\d)\.0\.", lambda found: f"mask_head.mask_fcn{int(found[1]) + 1}.", name)
        renamed[name] = tensor
    return renamed


def equal(model: nn.Module, state: dict[str, Tensor], but: tuple[str, ...] = ()) -> bool:
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items() if not name.startswith(but))
    return True


@pytest.mark.parametrize("names", ["new", "old"])
def test_a_file_with_the_same_classes_fills_everything_whatever_its_age(names, tmp_path):
    state, model = network(5, seed=1).state_dict(), network(5, seed=2)
    given = old_names(state) if names == "old" else dict(state)
    assert (given.keys() == state.keys()) == (names == "new")
    report = load_mask_rcnn_weights(model, file_of(given, tmp_path))
    assert equal(model, state)
    assert len(report.used) == len(state)
    assert not (report.missing or report.unexpected or report.reinitialised or report.converted)


def test_old_names_are_those_that_torchvision_itself_still_reads(monkeypatch):
    for name in ("kaiming_normal_", "kaiming_uniform_", "normal_"):
        monkeypatch.setattr(torch.nn.init, name, lambda tensor, *_, **__: tensor)
    with torch.device("meta"):
        theirs = torchvision.models.detection.maskrcnn_resnet50_fpn(weights=None, weights_backbone=None)
    old = {name: tensor for name, tensor in old_names(theirs.state_dict()).items() if "num_batches" not in name}
    assert {"backbone.fpn.inner_blocks.0.weight", "rpn.head.conv.bias", "roi_heads.mask_head.mask_fcn4.bias"} < old.keys()
    for module in theirs.modules():  # it renames for files without a version
        assert not isinstance(module, nn.Linear) or module.weight.is_meta
    problems = theirs.load_state_dict(old, strict=False, assign=True)
    assert not problems.unexpected_keys
    assert all(name.endswith("num_batches_tracked") for name in problems.missing_keys)


def test_coco_rows_go_to_the_data_sets_classes_by_category_id(tmp_path):
    file, model = network(90, seed=1).state_dict(), network(80, seed=2)
    report = load_mask_rcnn_weights(model, file_of(file, tmp_path), Labels(NAMES, COCO_IDS))
    assert set(report.converted) == {layer + part for layer in CLASS_LAYERS for part in ("weight", "bias")}
    assert not (report.reinitialised or report.missing or report.unexpected)
    assert equal(model, file, but=CLASS_LAYERS)
    state = model.state_dict()
    for part in ("weight", "bias"):
        classes, boxes, masks = (layer + part for layer in CLASS_LAYERS)
        for row, number in enumerate((0, *COCO_IDS)):
            assert torch.equal(state[classes][row], file[classes][number])
            assert torch.equal(state[boxes][4 * row : 4 * row + 4], file[boxes][4 * number : 4 * number + 4])
            assert torch.equal(state[masks][row], file[masks][number])


@pytest.mark.parametrize("ids", [(), (1, 2, 91), (1, 2, 3)], ids=["unknown", "beyond COCO's", "somebody's first three"])
def test_classes_that_are_not_cocos_start_anew_in_all_three_layers(ids, tmp_path):
    file, model = network(90, seed=1).state_dict(), network(3, seed=2)
    report = load_mask_rcnn_weights(model, file_of(file, tmp_path), Labels(tuple(map(str, range(3))), ids))
    assert set(report.reinitialised) == {layer + part for layer in CLASS_LAYERS for part in ("weight", "bias")}
    assert equal(model, file, but=CLASS_LAYERS)
    fresh = network(3, seed=2).state_dict()
    assert all(torch.equal(model.state_dict()[name], fresh[name]) for name in report.reinitialised)


def test_classes_of_another_data_set_start_anew_too(tmp_path):
    file, model = network(7, seed=1).state_dict(), network(5, seed=2)
    report = load_mask_rcnn_weights(model, file_of(file, tmp_path), Labels(tuple("abcde"), (1, 2, 3, 4, 5)))
    assert len(report.reinitialised) == 6 and not report.converted
    assert equal(model, file, but=CLASS_LAYERS)


def test_torchvisions_resnet_fills_the_trunk_and_nothing_else(tmp_path):
    theirs = torchvision.models.resnet50(weights=None).state_dict()
    settings = replace(SMALL, depth=50, width=64)
    model = network(3, seed=2, settings=settings)
    report = load_mask_rcnn_weights(model, file_of(theirs, tmp_path))
    fresh = network(3, seed=2, settings=settings).state_dict()
    for name, tensor in model.state_dict().items():
        trunk = name.removeprefix("backbone.body.")
        assert torch.equal(tensor, fresh[name] if trunk == name else theirs[trunk]), name
    assert set(report.unexpected) == {"backbone.body.fc.weight", "backbone.body.fc.bias"}
    assert all(not name.startswith("backbone.body.") for name in report.reinitialised)


@pytest.mark.parametrize("norm", ["batch", "frozen"])
def test_our_own_checkpoint_fills_everything_with_either_norm(norm, tmp_path):
    """Frozen weights start a net that trains its norms, and the other way round."""
    state = network(5, seed=1, settings=replace(SMALL, norm=norm)).state_dict()
    file = tmp_path / "model.safetensors"
    save_file({f"network.{name}": tensor.contiguous() for name, tensor in state.items()}, file)
    for other in ("batch", "frozen"):
        model = network(5, seed=2, settings=replace(SMALL, norm=other))
        report = load_mask_rcnn_weights(model, file)
        counters = tuple(name for name in model.state_dict() if name.endswith("num_batches_tracked") and name not in state)
        assert equal(model, state, but=counters or ("none",))
        assert not report.unexpected and report.missing == counters


def without_masks(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in state.items() if "mask" not in name}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (lambda: network(3, 1, replace(SMALL, depth=18)).state_dict(), "unknown ... backbone.body.layer1.1"),
        (lambda: network(3, 1, replace(SMALL, width=16)).state_dict(), "conv1.weight ... (16, 3, 7, 7) ... (8,"),
        (lambda: ResNet(18, 3, width=8).state_dict(), "another model"),
    ],
    ids=["another depth", "another width", "another ResNet"],
)
def test_a_wrong_file_is_refused_in_one_message_and_changes_nothing(given, says, tmp_path):
    model, before = network(80, seed=2), network(80, seed=2).state_dict()
    path = file_of(given(), tmp_path)
    with raises(CheckpointError, says) as refused:
        load_mask_rcnn_weights(model, path, Labels(NAMES, COCO_IDS))
    assert str(path) in str(refused.value) and "--model.backbone, --model.depth, --model.width" in str(refused.value)
    assert equal(model, before)


def test_a_detector_without_masks_fills_all_but_the_mask_head_and_the_class_rows_and_is_named(tmp_path):
    state, model = network(80, seed=1).state_dict(), network(80, seed=2)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    path = file_of(without_masks(state), tmp_path)
    report = load_mask_rcnn_weights(model, path, Labels(NAMES, COCO_IDS))
    new = ("roi_heads.mask_", *CLASS_LAYERS)
    assert equal(model, state, but=new)
    assert all(torch.equal(model.state_dict()[name], before[name]) for name in before if name.startswith(new))
    assert set(report.reinitialised) == {name for name in state if name.startswith(new)}
    check_text(report.said[-1], "fasterrcnn_resnet50_fpn", "boxes", "masks")


def test_a_network_without_masks_is_filled_by_detectors_with_and_without_them(tmp_path):
    state, boxes = network(80, seed=1).state_dict(), replace(SMALL, masks=False)
    for given in (without_masks(state), state):
        model = network(80, 2, boxes)
        report = load_mask_rcnn_weights(model, file_of(given, tmp_path), Labels(NAMES, COCO_IDS))
        assert model.state_dict().keys() == without_masks(state).keys() and equal(model, without_masks(state))
        assert set(report.unexpected) == given.keys() - model.state_dict().keys()
        assert not report.reinitialised and not report.missing


def test_a_resnet_trained_with_a_fourth_channel_of_zeros_fills_a_trunk_of_three(tmp_path):
    source = ResNet(10, 5, width=8, input_channels=4)
    with torch.no_grad():
        for tensor in source.state_dict().values():
            tensor.copy_(torch.rand(tensor.shape))
    save_file({name: tensor.contiguous() for name, tensor in source.state_dict().items()}, tmp_path / "r.safetensors")
    segmenter = network(3, 1)
    report = load_mask_rcnn_weights(segmenter, tmp_path / "r.safetensors")
    assert "backbone.body.conv1.weight" in report.converted
    assert torch.equal(segmenter.backbone.body.conv1.weight, source.conv1.weight[:, :3])
    detector = (
        WORKLOADS["detection"].network.build(replace(RECIPES["ssd-demo"](), model=SSDModel(depth=10, width=8)), 3).network
    )
    assert "trunk.conv1.weight" in load_ssd_weights(detector, tmp_path / "r.safetensors").converted
    assert torch.equal(detector.trunk.conv1.weight, source.conv1.weight[:, :3])


def test_a_box_head_with_convolutions_goes_to_detectron2_and_back():
    """Its 4conv1fc: conv1, conv2, ... and fc1."""
    settings = replace(SMALL, roi=replace(SMALL.roi, num_convs=3, conv_channels=24))
    state = network(4, 0, settings).state_dict()
    head = {name: tensor for name, tensor in state.items() if ".box_head." in name}
    assert head["roi_heads.box_head.4.weight"].shape[1] == 24 * settings.roi.pool_size**2
    theirs, _, (wanted, *_) = to_detectron2(PacelineWeights(state))
    assert "NUM_CONV 3" in wanted and "CONV_DIM 24" in wanted and "NUM_FC 1" in wanted
    layers = ("conv1", "conv2", "conv3", "fc1")
    names = [f"roi_heads.box_head.{layer}.{part}" for layer in layers for part in ("weight", "bias")]
    assert [name for name in theirs if ".box_head." in name] == names
    back = from_detectron2(theirs, {"__author__": "torchvision"}).tensors
    assert all(torch.equal(back[name], tensor) for name, tensor in head.items())
    theirs["roi_heads.box_head.fc2.weight"] = torch.zeros(4, 4)
    with raises(WeightFormatError, "two"):
        from_detectron2(theirs, {})
