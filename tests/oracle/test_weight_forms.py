"""Networks of other systems, written down plainly under their own names and in their own layout, are the oracles: their weights
in ours give the same numbers."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from weight_bytes import params, tf_checkpoint

from paceline._utils.errors import CheckpointError
from paceline.config.maskrcnn import MaskHead, MaskRCNNModel, RoI
from paceline.config.ssd import SSDModel, grid_sizes
from paceline.models.backbones import build_backbone
from paceline.models.backbones.base import BackboneSpec
from paceline.models.backbones.resnet import ResNet
from paceline.models.maskrcnn.model import MaskRCNN
from paceline.models.ops.anchors import count_boxes_per_cell
from paceline.models.ssd.model import SSD, init_ssd
from paceline.models.weights.load import load_weights
from paceline.models.weights.load_detectors import load_mask_rcnn_weights, load_ssd_weights
from paceline.models.weights.weight_file import open_weights

MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)  # of R, G and B in 0..255: ImageNet's
# In float64: what is left is the rounding of weights that were multiplied in float32.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


class Drawn:
    """Named numbers, drawn when a network first asks for them; `scale` keeps what is summed up near 1."""

    def __init__(self, seed: int) -> None:
        self.random, self.arrays = np.random.RandomState(seed), {}

    def __call__(self, name: str, *shape: int, fan: int = 0, about: float = 0.0, positive: bool = False) -> Tensor:
        if name not in self.arrays:
            values = self.random.standard_normal(shape) * (np.sqrt(2 / fan) if fan else 0.1)
            self.arrays[name] = ((np.abs(values) + 0.5) if positive else values + about).astype(np.float32)
        assert self.arrays[name].shape == shape, name
        return torch.from_numpy(self.arrays[name]).double()


class TensorFlowSSD:
    """Habana's SSD in TensorFlow's terms: NHWC, HWIO, SAME or explicit padding, variables counted as they are made."""

    def __init__(self, width: int, extras: int, classes: int, seed: int = 0) -> None:
        self.draw, self.width, self.extras, self.classes = Drawn(seed), width, extras, classes

    def conv(self, x: Tensor, name: str, filters: int, size: int, stride: int, padding: str, bias: bool) -> Tensor:
        inputs = x.shape[-1]
        kernel = self.draw(f"{name}/kernel", size, size, inputs, filters, fan=size * size * inputs)
        if padding == "same":
            x = same(x, size, stride, 0.0)
        elif padding == "fixed":
            x = F.pad(x, (0, 0, *[(size - 1) // 2, size - 1 - (size - 1) // 2] * 2))
        y = F.conv2d(x.permute(0, 3, 1, 2), kernel.permute(3, 2, 0, 1), stride=stride).permute(0, 2, 3, 1)
        return y + self.draw(f"{name}/bias", filters) if bias else y

    def unit(self, x: Tensor, filters: int, size: int, stride: int, relu: bool = True) -> Tensor:
        """conv2d_fixed_padding and the norm behind it, each with the next free name of the scope."""
        suffix = f"_{self.made}" if self.made else ""
        self.made += 1
        x = self.conv(x, f"{self.scope}conv2d{suffix}", filters, size, stride, "fixed" if stride > 1 else "same", False)
        norm = f"{self.scope}batch_normalization{suffix}"
        mean = self.draw(f"{norm}/moving_mean", filters)
        deviation = (self.draw(f"{norm}/moving_variance", filters, positive=True) + 1e-5).sqrt()
        gamma, beta = self.draw(f"{norm}/gamma", filters, about=1.0), self.draw(f"{norm}/beta", filters)
        y = (x - mean) / deviation * gamma + beta
        return F.relu(y) if relu else y

    def resnet(self, x: Tensor, scope: str, stages: int) -> Tensor:
        self.scope, self.made = scope, 0
        x = self.unit(x, self.width, 7, 2)
        x = F.max_pool2d(same(x, 3, 2, -torch.inf).permute(0, 3, 1, 2), 3, 2).permute(0, 2, 3, 1)
        for stage, (units, stride) in enumerate(((3, 1), (4, 2), (6, 1), (3, 2))[:stages]):
            for number in range(units):
                step, filters = stride if number == 0 else 1, self.width * 2**stage
                shortcut = self.unit(x, filters, 1, step, relu=False) if number == 0 and stage else x
                y = self.unit(self.unit(x, filters, 3, step), filters, 3, 1, relu=False)
                x = F.relu(y + shortcut)
        return x

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B, H, W, 3) -> logits (B, A, C) and deltas (B, A, 4) of y, x, h, w."""
        maps = [self.resnet(x, "resnet34/", 3)]
        for number, (outputs, halves) in enumerate(((1, True), (1, True), (2, True), (2, False), (2, False))):
            filters = self.extras // outputs
            y = F.relu(self.conv(maps[-1], f"ssd/block{7 + number}-conv1x1", filters // 2, 1, 1, "same", True))
            padding = "same" if halves else "valid"
            maps.append(
                F.relu(self.conv(y, f"ssd/block{7 + number}-conv3x3", filters, 3, 2 if halves else 1, padding, True))
            )
        logits, deltas = [], []
        for level, (found, boxes) in enumerate(zip(maps, count_boxes_per_cell(6))):
            scores = self.conv(found, f"ssd/class_net/class-{3 + level}", boxes * self.classes, 3, 1, "same", True)
            offsets = self.conv(found, f"ssd/box_net/box-{3 + level}", boxes * 4, 3, 1, "same", True)
            logits.append(scores.reshape(len(x), -1, self.classes))
            deltas.append(offsets.reshape(len(x), -1, 4))
        return torch.cat(logits, 1), torch.cat(deltas, 1)


def same(x: Tensor, size: int, stride: int, value: float) -> Tensor:
    """TensorFlow's SAME for (B, H, W, C): just as much as the last window needs, the odd one at the end."""
    sides = []
    for side in (x.shape[2], x.shape[1]):
        total = max(0, (-(-side // stride) - 1) * stride + size - side)
        sides += [total // 2, total - total // 2]
    return F.pad(x, (0, 0, *sides), value=value)


@pytest.fixture(scope="module")
def habana(tmp_path_factory) -> tuple[Path, Tensor, tuple[Tensor, Tensor]]:
    """-> (its checkpoint, a photo, its outputs for it)."""
    network, photo = (
        TensorFlowSSD(4, 8, 81),
        torch.randn(1, 300, 300, 3, generator=torch.Generator().manual_seed(1)).double(),
    )
    outputs = network(photo)
    kept = {
        **network.draw.arrays,
        "global_step": np.array(5, "i8"),
        "resnet34/conv2d/kernel/Momentum": np.zeros((7, 7, 3, 4), "f4"),
    }
    return tf_checkpoint(tmp_path_factory.mktemp("habana") / "model.ckpt-5", kept, checksums=False), photo, outputs


def ssd(padding: str = "both", heads: str = "separate", classes: int = 80) -> SSD:
    settings = SSDModel(width=4, padding=padding, heads=heads, extra_channels=8)  # type: ignore[arg-type]
    model = SSD(build_backbone(settings, BackboneSpec(stride=8)), classes, settings, grid_sizes(300))
    init_ssd(model, torch.Generator().manual_seed(0))
    return model.eval()


@pytest.mark.parametrize("heads", ["separate", "fused"])
def test_habanas_ssd_gives_its_outputs_where_even_sides_are_padded_at_their_end(habana, heads):
    file, photo, (logits, deltas) = habana
    model = ssd("same", heads)
    report = load_ssd_weights(model, file)
    assert not report.unexpected and not report.reinitialised
    with torch.no_grad():
        found = model.double()(photo.permute(0, 3, 1, 2))
    torch.testing.assert_close(found[0], logits, **CLOSE)
    torch.testing.assert_close(found[1], deltas[..., [1, 0, 3, 2]], **CLOSE)


def test_with_padding_on_both_sides_they_are_refused_because_outputs_would_differ(habana):
    file, photo, (logits, _) = habana
    with pytest.raises(CheckpointError, match=r"Add --model\.padding same") as refused:
        load_ssd_weights(ssd(), file)
    assert "\n" not in str(refused.value)
    model = ssd()
    model.load_state_dict(open_weights(file).ours.tensors, strict=False)
    with torch.no_grad():
        assert (model.double()(photo.permute(0, 3, 1, 2))[0] - logits).abs().max() > 0.01


@pytest.mark.parametrize("size", [64, 66, 70, 97])
def test_a_tensorflow_classifiers_trunk_fills_ours_for_any_size(size, tmp_path):
    network, photo = (
        TensorFlowSSD(4, 8, 81, seed=2),
        torch.randn(2, size, size, 3, generator=torch.Generator().manual_seed(2)).double(),
    )
    wanted = network.resnet(photo, "", 4)
    network.draw("dense/kernel", 32, 1001, fan=32)
    network.draw("dense/bias", 1001)
    index = tf_checkpoint(tmp_path / "m", network.draw.arrays, checksums=False)
    trunk = ResNet(34, width=4, steps=(1, 2, 1, 2), padding="same").eval()
    load_weights(trunk, index, allow_unexpected=("fc.",))
    with torch.no_grad():
        torch.testing.assert_close(trunk.double()(photo.permute(0, 3, 1, 2))[-1].permute(0, 2, 3, 1), wanted, **CLOSE)
    assert open_weights(index).ours.tensors["fc.weight"].shape == (1000, 32)


class CaffeResNet:
    """detectron2's or Caffe2's bottlenecks on BGR pixels less their mean; the first 1x1 strides, norms are scale and shift."""

    def __init__(self, naming: str) -> None:
        self.naming, self.draw = naming, Drawn(3)

    def conv(self, x: Tensor, where: str, filters: int, size: int, stride: int, relu: bool) -> Tensor:
        names = detectron2_names if self.naming == "detectron2" else caffe2_names
        weight, scale, shift = names(where)
        x = F.conv2d(
            x, self.draw(weight, filters, x.shape[1], size, size, fan=x.shape[1] * size * size), None, stride, size // 2
        )
        y = x * self.draw(scale, filters, about=1.0).view(1, -1, 1, 1) + self.draw(shift, filters).view(1, -1, 1, 1)
        return F.relu(y) if relu else y

    def __call__(self, pixels: Tensor) -> list[Tensor]:
        """(B, 3, H, W), RGB in 0..255 -> the stages' maps."""
        x = (pixels - torch.tensor(MEAN).view(1, 3, 1, 1)).flip(1) / 60
        self.draw.random.seed(3)
        x = F.max_pool2d(self.conv(x, "stem", 4, 7, 2, True), 3, 2, 1)
        maps = []
        for stage, units in enumerate((3, 4, 6, 3)):
            for unit in range(units):
                stride, where = 2 if unit == 0 and stage else 1, f"{stage + 2}.{unit}"
                shortcut = self.conv(x, f"{where}.shortcut", 16 * 2**stage, 1, stride, False) if unit == 0 else x
                y = self.conv(x, f"{where}.1", 4 * 2**stage, 1, stride, True)
                y = self.conv(y, f"{where}.2", 4 * 2**stage, 3, 1, True)
                x = F.relu(self.conv(y, f"{where}.3", 16 * 2**stage, 1, 1, False) + shortcut)
            maps.append(x)
        return maps


def detectron2_names(where: str) -> tuple[str, str, str]:
    stage, _, rest = where.partition(".")
    owner = (
        "stem.conv1" if where == "stem" else f"res{stage}.{rest.replace('.', '.conv').replace('convshortcut', 'shortcut')}"
    )
    return f"{owner}.weight", f"{owner}.norm.weight", f"{owner}.norm.bias"


def caffe2_names(where: str) -> tuple[str, str, str]:
    if where == "stem":
        return "conv1_w", "res_conv1_bn_s", "res_conv1_bn_b"
    stage, unit, layer = where.split(".")
    owner = f"res{stage}_{unit}_branch{'1' if layer == 'shortcut' else '2' + 'abc'[int(layer) - 1]}"
    return f"{owner}_w", f"{owner}_bn_s", f"{owner}_bn_b"


def saved_caffe(network: CaffeResNet, folder: Path) -> Path:
    """Its .pkl; the division by 60, which keeps numbers small, is put into the stem."""
    arrays = dict(network.draw.arrays)
    stem = "stem.conv1.weight" if network.naming == "detectron2" else "conv1_w"
    arrays[stem] = arrays[stem] / 60
    if network.naming == "detectron2":
        for name in [name for name in arrays if name.endswith("norm.weight")]:
            owner = name.removesuffix("weight")
            arrays[f"{owner}running_mean"] = np.zeros_like(arrays[name])
            arrays[f"{owner}running_var"] = np.full_like(arrays[name], 1 - 1e-5)
        content: dict = {"model": arrays, "__author__": "Caffe2"}
    else:
        content = {"blobs": {**arrays, "fc1000_w": np.zeros((1000, 128), "f4"), "fc1000_b": np.zeros(1000, "f4")}}
    (folder / "R-50.pkl").write_bytes(pickle.dumps(content, 2))
    return folder / "R-50.pkl"


@pytest.mark.parametrize("naming", ["detectron2", "caffe2"])
def test_caffes_networks_give_their_outputs_for_our_pixels(naming, tmp_path):
    network, pixels = (
        CaffeResNet(naming),
        255 * torch.rand(1, 3, 75, 90, generator=torch.Generator().manual_seed(4)).double(),
    )
    wanted = network(pixels)
    file = open_weights(saved_caffe(network, tmp_path), pickles=True)
    trunk = ResNet(50, width=4, stride_in="1x1").eval()
    load_weights(trunk, file, allow_unexpected=("fc.",))
    normalized = (pixels - torch.tensor(MEAN).view(1, 3, 1, 1)) / torch.tensor(STD).view(1, 3, 1, 1)
    with torch.no_grad():
        for found, map in zip(trunk.double()(normalized), wanted, strict=True):
            torch.testing.assert_close(found, map, **CLOSE)
    with pytest.raises(CheckpointError, match=r"Add --model\.stride-in 1x1"):
        load_weights(ResNet(50, width=4), file)


SMALL = MaskRCNNModel(depth=50, width=4, fpn_channels=8, roi=RoI(fc_channels=16))


def drawn_mask_rcnn(settings: MaskRCNNModel, classes: int, seed: int = 0) -> MaskRCNN:
    model, generator = MaskRCNN(settings, classes), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.uniform_(0.5, 1.5, generator=generator)
    return model


def same_but(model: MaskRCNN, state: Mapping[str, Tensor], without: int = 0) -> None:
    """All tensors are equal; `without`: but for the first rows of boxes (4) and masks (1), which others have no background for."""
    for name, tensor in model.state_dict().items():
        rows = 4 if "bbox_pred" in name and "roi_heads" in name else 1 if "mask_fcn_logits" in name else 0
        start = rows * without
        assert torch.equal(tensor[start:] if start else tensor, state[name][start:] if start else state[name]), name
        assert not start or not tensor[:start].any()


def gluon(model: MaskRCNN) -> dict[str, np.ndarray]:
    """Its parameters as GluonCV names them, by walking the net in Gluon's order."""
    arrays = {}

    def put(name: str, module, mark: str = ".") -> None:
        for part, tensor in module.state_dict().items():
            part = {"weight": "gamma", "bias": "beta"}.get(part, part) if hasattr(module, "running_mean") else part
            arrays[f"{name}{mark}{part}"] = tensor.numpy()

    body, trunk = model.backbone.body, "features.resnetv1b_"
    put(f"{trunk}conv0", body.conv1, "_")
    put(f"{trunk}batchnorm0", body.bn1, "_")
    for stage in range(1, 5):
        count = 0
        for unit in getattr(body, f"layer{stage}"):
            for conv, norm in ((unit.conv1, unit.bn1), (unit.conv2, unit.bn2), (unit.conv3, unit.bn3)):
                put(f"{trunk}layers{stage}_conv{count}", conv, "_")
                put(f"{trunk}layers{stage}_batchnorm{count}", norm, "_")
                count += 1
            if unit.downsample is not None:
                put(f"{trunk}down{stage}_conv0", unit.downsample[0], "_")
                put(f"{trunk}down{stage}_batchnorm0", unit.downsample[1], "_")
    fpn, heads = model.backbone.fpn, model.roi_heads
    for level in range(4):
        put(f"features.P{level + 2}_conv_lat", fpn.inner_blocks[level][0], "_")
        put(f"features.P{level + 2}_conv1", fpn.layer_blocks[level][0], "_")
    put("features.P6_conv1", fpn.top, "_")
    put("rpn.rpn_head.conv1.0", model.rpn.head.conv[0][0])
    put("rpn.rpn_head.score", model.rpn.head.cls_logits)
    put("rpn.rpn_head.loc", model.rpn.head.bbox_pred)
    put("box_features.1", heads.box_head.fc6)
    put("box_features.3", heads.box_head.fc7)
    put("class_predictor", heads.box_predictor.cls_score)
    put("box_predictor", heads.box_predictor.bbox_pred)
    for number, layer in enumerate(heads.mask_head):
        put(f"mask.deconv.{2 * number}", layer[0])
    put(f"mask.deconv.{2 * len(heads.mask_head)}", heads.mask_predictor.conv5_mask)
    put("mask.mask", heads.mask_predictor.mask_fcn_logits)
    for name, rows in (("box_predictor", 4), ("mask.mask", 1)):
        for part in ("weight", "bias"):
            arrays[f"{name}.{part}"] = arrays[f"{name}.{part}"][rows:]
    arrays["rpn.anchor_generator.0.anchors"] = np.zeros((1, 1, 2, 2, 12), "f4")
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


def test_gluoncvs_mask_rcnn_fills_ours_but_for_the_rows_of_a_background_that_it_has_not(tmp_path):
    settings = replace(SMALL, fpn_top="conv", mask=MaskHead(num_convs=2), rpn=replace(SMALL.rpn, channels=12))
    source, model = drawn_mask_rcnn(settings, 5, seed=1), drawn_mask_rcnn(settings, 5, seed=2)
    (tmp_path / "w.params").write_bytes(params(gluon(source)))
    report = load_mask_rcnn_weights(model, tmp_path / "w.params")
    assert not (report.unexpected or report.reinitialised)
    same_but(model, source.state_dict(), without=1)


def benchmark_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """maskrcnn_benchmark's, which the MLPerf reference is; the stem for its pixels."""
    theirs = {}
    for name, tensor in state.items():
        name = name.replace("backbone.body.conv1", "backbone.body.stem.conv1").replace(
            "backbone.body.bn1", "backbone.body.stem.bn1"
        )
        for level in range(4):
            for what in ("inner", "layer"):
                name = name.replace(f"fpn.{what}_blocks.{level}.0.", f"fpn.fpn_{what}{level + 1}.")
            name = name.replace(f"roi_heads.mask_head.{level}.0.", f"roi_heads.mask.feature_extractor.mask_fcn{level + 1}.")
        name = name.replace("rpn.head.conv.0.0.", "rpn.head.conv.").replace(
            "roi_heads.box_head.", "roi_heads.box.feature_extractor."
        )
        name = name.replace("roi_heads.box_predictor.", "roi_heads.box.predictor.").replace(
            "mask_predictor.", "mask.predictor."
        )
        theirs[f"module.{name}"] = tensor
    stem = theirs["module.backbone.body.stem.conv1.weight"]
    theirs["module.backbone.body.stem.conv1.weight"] = stem.flip(1) / torch.tensor(STD).flip(0).view(1, 3, 1, 1)
    theirs["module.rpn.anchor_generator.cell_anchors.0"] = torch.zeros(3, 4)
    return theirs


def test_the_mlperf_references_mask_rcnn_fills_ours(tmp_path):
    settings = replace(SMALL, stride_in="1x1")
    source, model = drawn_mask_rcnn(settings, 5, seed=1), drawn_mask_rcnn(settings, 5, seed=2)
    torch.save({"model": benchmark_names(source.state_dict()), "iteration": 7}, tmp_path / "w.pth")
    load_mask_rcnn_weights(model, tmp_path / "w.pth")
    state = dict(source.state_dict())
    name = "backbone.body.conv1.weight"
    torch.testing.assert_close(model.state_dict()[name], state[name])
    model.state_dict()[name].copy_(state[name])
    same_but(model, state)
    with pytest.raises(CheckpointError, match=r"--model\.stride-in 1x1"):
        load_mask_rcnn_weights(drawn_mask_rcnn(SMALL, 5), tmp_path / "w.pth")
