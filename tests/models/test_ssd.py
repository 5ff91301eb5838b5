"""The SSD network: its shapes, both kinds of head, what is frozen, and weight files of other systems."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from messages import raises
from safetensors.torch import save_file
from torch import Tensor

from paceline._utils.errors import CheckpointError, RecipeError
from paceline.config.ssd import SSDModel, SSDParity, grid_sizes
from paceline.models.backbones import build_backbone
from paceline.models.backbones.base import BackboneSpec, Norm
from paceline.models.layers.batch_norm import configure_batch_norm, list_batch_norms, update_running_statistics
from paceline.models.ops.anchors import anchor_to_cell, count_boxes_per_cell
from paceline.models.ssd.model import SSD, init_ssd
from paceline.models.weights.formats.mlperf import from_reference, swap_channels, to_reference
from paceline.models.weights.load_detectors import load_ssd_weights


def network(
    size: int = 300, depth: int = 34, width: int = 64, classes: int = 80, pyramid: int = 0, norm: Norm = "batch", **choices
) -> SSD:
    form = BackboneSpec(stride=32, finest=8, norm=norm) if pyramid else BackboneSpec(stride=8, norm=norm)
    trunk = build_backbone(SSDModel(depth=depth, width=width, freeze_stages=choices.get("freeze_stages", 0)), form)
    model = SSD(trunk, classes, SSDModel(fpn_channels=pyramid, **choices), grid_sizes(size))
    init_ssd(model, torch.Generator().manual_seed(3))
    return model


def small(**choices) -> SSD:
    return network(size=96, depth=10, width=4, classes=3, extra_channels=8, **choices)


def saved(model: SSD, folder: Path) -> Path:
    file = folder / "weights.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, file)
    return file


def oracle_state(names: dict) -> dict[str, Tensor]:
    """The parameters that the recorded outputs were made with; the recipe stands beside the data."""
    state = {}
    for name, shape in names["parameters"]:
        random = np.random.RandomState(zlib.crc32(name.encode()) ^ names["fill_seed"])
        values = random.standard_normal(shape).astype(np.float32)
        if name.endswith("running_var"):
            values = np.abs(values) + np.float32(0.5)
        elif name.endswith(("running_mean", "bias")):
            values = np.float32(0.1) * values
        elif values.ndim == 1:
            values = 1 + np.float32(0.1) * values
        else:
            values = values * np.float32(np.sqrt(2 / np.prod(shape[1:])))
        state[name] = torch.from_numpy(values.astype(np.float32))
    return state


@pytest.fixture(scope="module")
def oracle(shared_data: Path):
    names = json.loads((shared_data / "oracle" / "ssd300.json").read_text())
    return oracle_state(names), dict(np.load(shared_data / "oracle" / "ssd300.npz"))


@pytest.mark.parametrize("heads", ["separate", "fused"])
def test_full_size_outputs_from_the_reference_s_weights_are_the_reference_s(oracle, heads, tmp_path):
    state, recorded = oracle
    file = tmp_path / "reference.pth"
    torch.save({"model": state, "label_map": {}}, file)
    model = network(heads=heads)
    report = load_ssd_weights(model, file)
    assert not report.reinitialised and not report.unexpected
    model = model.to(memory_format=torch.channels_last).eval()
    images = np.random.RandomState(int(recorded["model_input_seed"])).standard_normal((2, 3, 300, 300))
    with torch.inference_mode():
        logits, deltas = model(torch.from_numpy(images.astype(np.float32)))
    order = torch.argsort(anchor_to_cell(grid_sizes(300)))  # back to the reference's order of boxes
    deltas, logits = deltas[:, order].transpose(1, 2), logits[:, order].transpose(1, 2)
    assert deltas.shape == (2, 4, 8732) and logits.shape == (2, 81, 8732)
    for ours, theirs, sums in (
        (deltas, recorded["model_ploc"], recorded["model_ploc_sum"]),
        (logits, recorded["model_plabel"], recorded["model_plabel_sum"]),
    ):
        kept = ours[:, :, ::41] if ours.shape[1] == 4 else ours[:, ::5, ::41]
        largest = np.abs(theirs).max()
        assert np.abs(kept.numpy() - theirs).max() <= 1e-5 * largest
        absolute = float(ours.double().abs().sum())
        assert abs(absolute - sums[1]) <= 1e-5 * sums[1]
        assert abs(float(ours.double().sum()) - sums[0]) <= 1e-5 * sums[1]


def test_the_published_network_has_its_published_number_of_parameters():
    model = network()
    parts = [sum(p.numel() for p in part.parameters()) for part in (model.trunk, model.extras, model.heads)]
    assert parts == [8_170_304, 3_574_400, 8_227_830]


def test_fused_heads_have_344_and_512_channels():
    model = network(heads="fused")
    assert [head.fused.out_channels for head in model.heads] == [344, 512, 512, 512, 344, 344]


@pytest.mark.parametrize("pyramid", [0, 4])
@pytest.mark.parametrize("size", [64, 96, 100, 160, 192, 256, 300, 320, 511])
def test_maps_have_the_sizes_that_default_boxes_are_made_for(size, pyramid):
    cells = grid_sizes(size)
    model = network(size, depth=10, width=2, classes=2, extra_channels=4, pyramid=pyramid)
    per_cell = count_boxes_per_cell(len(cells))
    logits, deltas = model.eval()(torch.zeros(1, 3, size, size))
    assert logits.shape[1] == deltas.shape[1] == sum(n * cell**2 for n, cell in zip(per_cell, cells))


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_output_row_of_a_cell_comes_from_that_cell_and_box(memory):
    model = small().eval()
    map = torch.randn(2, 16, 5, 7).to(memory_format=memory)
    head = model.heads[0]
    logits, deltas = head(map)
    conf, loc = head.conf(map), head.loc(map)
    row, column, box = 3, 5, 2
    place = (row * 7 + column) * 4 + box
    assert torch.equal(logits[1, place], conf[1, box * 4 : box * 4 + 4, row, column])
    assert torch.equal(deltas[1, place], loc[1, box * 4 : box * 4 + 4, row, column])


def test_fused_and_separate_heads_give_the_same_outputs_through_a_weight_file_both_ways(tmp_path):
    apart, fused, again = small(), small(heads="fused"), small()
    report = load_ssd_weights(fused, saved(apart, tmp_path))
    assert sum("fused" in name for name in report.converted) == 2 * len(fused.heads)
    torch.nn.init.zeros_(again.heads[0].conf.weight)
    load_ssd_weights(again, saved(fused, tmp_path))
    images = torch.randn(2, 3, 96, 96)
    outputs = [model.eval()(images) for model in (apart, fused, again)]
    for ours, other in zip(outputs[0], outputs[1]):
        torch.testing.assert_close(ours, other, rtol=1e-5, atol=1e-6)
    assert all(torch.equal(*pair) for pair in zip(outputs[0], outputs[2]))


def test_same_seed_same_weights_and_frozen_parts_do_not_move():
    model, other = (
        small(freeze_stages=1, parity=SSDParity(freeze_first_conv=True)),
        small(freeze_stages=1, parity=SSDParity(freeze_first_conv=True)),
    )
    assert all(torch.equal(*pair) for pair in zip(model.state_dict().values(), other.state_dict().values()))
    configure_batch_norm(model, groups=2, join=1, join_group=None, forwards=1)
    model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    logits, deltas = model(torch.randn(4, 3, 96, 96))
    (logits.square().mean() + deltas.square().mean()).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= 0.1 * parameter.grad
    update_running_statistics(model)
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    still = {f"trunk.{module}." for module in ("conv1", "bn1", "layer1.0.conv1", "layer1.0.bn1")}
    frozen = {name for name in before if name.startswith(tuple(still))}
    assert frozen and not frozen & changed
    assert "trunk.layer1.0.bn2.running_mean" in changed and "trunk.layer1.0.conv2.weight" in changed
    model.eval().train()
    assert [module.training for module in list_batch_norms(model)].count(False) == 2


@pytest.mark.parametrize("norm", [False, True])
def test_a_pyramid_s_levels_are_torchvision_s(norm):
    model = small(pyramid=12, extra_norm=norm).eval()
    layer = torch.nn.BatchNorm2d if norm else None
    theirs = torchvision.ops.FeaturePyramidNetwork([8, 16, 32], 12, norm_layer=layer).eval()
    theirs.load_state_dict(model.fpn.state_dict())
    images = torch.randn(2, 3, 96, 96)
    stages = [model.trunk(images)[place] for place in model.places]
    merged = list(theirs(dict(enumerate(stages))).values())
    for ours, their in zip(model.fpn.merge(stages)[0], merged, strict=True):
        torch.testing.assert_close(ours, their)
    # The heads see them behind a ReLU, and the extra maps begin where the pyramid ends.
    maps = [level.relu() for level in merged]
    maps.append(model.extras[0](maps[-1]))
    found = torch.cat([head(map)[0] for head, map in zip(model.heads, maps, strict=True)], 1)
    torch.testing.assert_close(model(images)[0], found)


@pytest.mark.parametrize("norm", ["batch", "frozen"])  # a frozen norm has no counter, and the file has
def test_a_pyramid_takes_the_whole_of_a_classifier_s_trunk(tmp_path, norm):
    theirs = torchvision.models.resnet34(weights=None)
    torch.save(theirs.state_dict(), tmp_path / "resnet34.pth")
    model = network(pyramid=32, norm=norm)
    report = load_ssd_weights(model, tmp_path / "resnet34.pth")
    assert torch.equal(model.trunk.layer4[2].conv2.weight, theirs.layer4[2].conv2.weight)
    assert {name.split(".")[0] for name in report.reinitialised} == {"fpn", "extras", "heads"}
    assert {name.split(".")[1] for name in report.unexpected} == {"fc"}


def test_a_pyramid_needs_maps_of_three_strides():
    trunk = build_backbone(SSDModel(depth=10, width=4), BackboneSpec(stride=8))
    with raises(RecipeError, "FPN", "[8, 16, 32]"):
        SSD(trunk, 3, SSDModel(fpn_channels=8), grid_sizes(96))


def test_torchvision_s_resnet34_fills_the_trunk(tmp_path):
    theirs = torchvision.models.resnet34(weights=None)
    file = tmp_path / "resnet34.pth"
    torch.save(theirs.state_dict(), file)
    model = network()
    report = load_ssd_weights(model, file)
    assert torch.equal(model.trunk.layer3[5].conv2.weight, theirs.layer3[5].conv2.weight)
    assert all(name.startswith(("extras.", "heads.")) for name in report.reinitialised)
    assert {name.split(".")[1] for name in report.unexpected} == {"layer4", "fc"}


def test_other_classes_keep_everything_but_the_class_heads(tmp_path):
    old, new = small(), network(size=96, depth=10, width=4, classes=7, extra_channels=8)
    fresh = new.heads[0].conf.weight.clone()
    report = load_ssd_weights(new, saved(old, tmp_path))
    assert {name.split(".")[2] for name in report.reinitialised} == {"conf"}
    assert torch.equal(new.heads[0].conf.weight, fresh)
    assert torch.equal(new.heads[2].loc.weight, old.heads[2].loc.weight)


def test_a_fused_file_without_a_levels_heads_is_refused_by_their_names(tmp_path):
    whole, model = small(heads="fused").state_dict(), small()
    part = {name: tensor.contiguous() for name, tensor in whole.items() if not name.startswith("heads.1.")}
    save_file(part, tmp_path / "part.safetensors")
    with pytest.raises(CheckpointError, match=r"heads\.1\.loc\.weight"):
        load_ssd_weights(model, tmp_path / "part.safetensors")


def test_another_trunk_is_refused_and_changes_nothing(tmp_path):
    model = small()
    before = model.state_dict()["trunk.conv1.weight"].clone()
    with raises(CheckpointError, "another model"):
        load_ssd_weights(model, saved(network(size=96, depth=18, width=8, classes=3, extra_channels=8), tmp_path))
    assert torch.equal(model.trunk.conv1.weight, before)


def test_to_the_reference_and_back_is_the_same_state():
    state = small().state_dict()
    theirs = to_reference(state)
    assert "additional_blocks.1.2.weight" in theirs and "model.layer2.0.0.conv1.weight" in theirs
    back = from_reference(theirs)
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)


def test_swapped_channels_by_hand():
    # Two values of three boxes: (v0b0, v0b1, v0b2, v1b0, ...) becomes (b0v0, b0v1, b1v0, ...).
    assert swap_channels(torch.arange(6), 2).tolist() == [0, 3, 1, 4, 2, 5]
