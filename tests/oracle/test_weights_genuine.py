"""Files that MXNet, GluonCV and TensorFlow write themselves, and their own networks' outputs: on request, where a Python has them.

PACELINE_MXNET_PYTHON=/path/to/python        mxnet 1.9.1, numpy 1.23.5, gluoncv 0.10
PACELINE_TENSORFLOW_PYTHON=/path/to/python   tensorflow 2
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from messages import raises

from paceline._utils.errors import CheckpointError
from paceline.config.recipes import RECIPES
from paceline.models.backbones.resnet import ResNet
from paceline.models.maskrcnn.model import MaskRCNN
from paceline.models.weights.formats.mxnet import read_params
from paceline.models.weights.load import load_weights
from paceline.models.weights.load_detectors import load_mask_rcnn_weights
from paceline.models.weights.weight_file import open_weights

pytestmark = pytest.mark.nightly("needs published weights")

ARRAYS = """
import numpy as np, mxnet as mx
random, arrays = np.random.RandomState(0), {}
for kind in ("float32", "float64", "float16", "uint8", "int8", "int32", "int64"):
    arrays[kind] = mx.nd.array(random.rand(3, 4, 2) * 100, dtype=kind)
mx.nd.save("arrays.params", arrays)
np.savez("arrays.npz", **{name: array.asnumpy() for name, array in arrays.items()})
mx.nd.save("list.params", list(arrays.values()))
mx.nd.save("sparse.params", {"a": mx.nd.sparse.row_sparse_array((random.rand(2, 3), [0, 2]), shape=(4, 3))})
"""
GLUONCV = """
import numpy as np, mxnet as mx
from gluoncv.model_zoo import get_model
photo = mx.nd.array(np.random.RandomState(5).standard_normal((1, 3, 96, 96)))
for name in ("resnet34_v1b", "resnet50_v1b", "resnet50_v1d"):
    random, net = np.random.RandomState(1), get_model(name, pretrained=False)
    net.initialize()
    net(photo)
    for key, parameter in net.collect_params().items():
        values = random.standard_normal(parameter.shape)
        if key.endswith("running_var"):
            values = np.abs(values) + 0.5
        elif values.ndim > 1:
            values *= np.sqrt(2 / np.prod(values.shape[1:]))
        else:
            values = 0.1 * values + key.endswith("gamma")
        parameter.set_data(mx.nd.array(values))
    net.save_parameters(name + ".params")
    np.save(name + ".npy", net(photo).asnumpy())
"""
# Each part of its Mask R-CNN on its own: pyramid, proposals of the finest level, box head, mask head.
GLUONCV_MASKS = """
import numpy as np, mxnet as mx
from gluoncv.model_zoo import get_model
net, random = get_model("mask_rcnn_fpn_resnet50_v1b_coco", pretrained=False, pretrained_base=False), np.random.RandomState(1)
net.initialize()
net(mx.nd.zeros((1, 3, 128, 128)))
for key, parameter in net.collect_params().items():
    if "anchor" not in key:
        values = random.standard_normal(parameter.shape)
        if values.ndim > 1:
            values *= np.sqrt(2 / np.prod(values.shape[1:]))
        elif key.endswith("running_var"):
            values = np.abs(values) + 0.5
        else:
            values = 0.1 * values + key.endswith("gamma")
        parameter.set_data(mx.nd.array(values))
net.save_parameters("mask_rcnn.params")
given = lambda *shape: mx.nd.array(np.random.RandomState(5).standard_normal(shape))
out = {f"level{number}": map for number, map in enumerate(net.features(given(1, 3, 128, 192)))}
head = net.rpn.rpn_head
middle = head.conv1(out["level0"])
out |= {"scores": head.score(middle), "deltas": head.loc(middle), "pooled": net.box_features[0](given(4, 256, 14, 14))}
features = net.box_features(given(4, 256, 14, 14))
out |= {"classes": net.class_predictor(features), "boxes": net.box_predictor(features)}
out["masks"] = net.mask.mask(mx.nd.relu(net.mask.deconv(given(4, 256, 14, 14))))
np.savez("mask_rcnn.npz", **{name: array.asnumpy() for name, array in out.items()})
"""
# The backbone of Habana's SSD: a ResNet-34 whose variables are counted as tf.layers counts them.
TENSORFLOW = """
import numpy as np, tensorflow as tf
v1 = tf.compat.v1
v1.disable_eager_execution()
random, made = np.random.RandomState(3), {}
def named(kind):
    made[kind] = made.get(kind, -1) + 1
    return kind + (f"_{made[kind]}" if made[kind] else "")
def unit(x, filters, size, stride, relu=True):
    channels = int(x.shape[-1])
    kernel = random.standard_normal((size, size, channels, filters)) * np.sqrt(2 / (size * size * channels))
    kernel = v1.get_variable(named("conv2d") + "/kernel", initializer=kernel.astype("f"))
    if stride > 1:
        before = (size - 1) // 2
        x = tf.pad(x, [[0, 0], [before, size - 1 - before], [before, size - 1 - before], [0, 0]])
    x = tf.nn.conv2d(x, kernel, stride, "VALID" if stride > 1 else "SAME")
    norm = named("batch_normalization")
    parts = {"gamma": 1 + 0.1 * random.standard_normal(filters), "beta": 0.1 * random.standard_normal(filters)}
    parts |= {"moving_mean": 0.1 * random.standard_normal(filters), "moving_variance": random.rand(filters) + 0.5}
    g, b, m, v = (v1.get_variable(f"{norm}/{part}", initializer=value.astype("f")) for part, value in parts.items())
    x = tf.nn.batch_normalization(x, m, v, b, g, 1e-5)
    return tf.nn.relu(x) if relu else x
photo = v1.placeholder(tf.float32, [1, 300, 300, 3])
x = tf.nn.max_pool2d(unit(photo, 64, 7, 2), 3, 2, "SAME")
for stage, (units, step) in enumerate(((3, 1), (4, 2), (6, 1), (3, 2))):
    for number in range(units):
        stride, filters = step if number == 0 else 1, 64 * 2**stage
        shortcut = unit(x, filters, 1, stride, False) if number == 0 and stage else x
        x = tf.nn.relu(unit(unit(x, filters, 3, stride), filters, 3, 1, False) + shortcut)
    if stage == 2:
        map = x
v1.get_variable("dense/kernel", initializer=np.zeros((512, 1001), "f"))
v1.get_variable("dense/bias", initializer=np.zeros(1001, "f"))
v1.get_variable("global_step", initializer=np.int64(28152))
with v1.Session() as session:
    session.run(v1.global_variables_initializer())
    v1.train.Saver().save(session, "./model.ckpt-28152")
    np.save("map.npy", session.run(map, {photo: np.random.RandomState(5).standard_normal((1, 300, 300, 3))}))
"""


def written(variable: str, program: str, folder: Path) -> Path:
    python = os.environ.get(variable)
    if not python:
        pytest.skip(f"{variable} names no Python (only with --nightly and on request)")
    done = subprocess.run([python, "-c", program], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def photo(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.RandomState(5).standard_normal(shape).astype(np.float32))


def close(found: torch.Tensor, wanted: np.ndarray) -> bool:
    assert np.allclose(found.detach().numpy(), wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    return True


def test_mxnets_own_files_are_read_to_the_bit(tmp_path):
    folder = written("PACELINE_MXNET_PYTHON", ARRAYS, tmp_path)
    found = read_params(folder / "arrays.params", 2**20)
    with np.load(folder / "arrays.npz") as wanted:
        assert found.keys() == set(wanted.files)
        for name in found:
            assert found[name].dtype == wanted[name].dtype
            np.testing.assert_array_equal(found[name], wanted[name])
    for name, says in (("list", "each array must have a name"), ("sparse", "sparse")):
        with pytest.raises(CheckpointError, match=says):
            read_params(folder / f"{name}.params", 2**20)


def test_gluoncvs_networks_give_their_outputs(tmp_path):
    folder = written("PACELINE_MXNET_PYTHON", GLUONCV, tmp_path)
    for depth in (34, 50):
        model = ResNet(depth, 1000).eval()
        report = load_weights(model, folder / f"resnet{depth}_v1b.params")
        assert not (report.unexpected or report.reinitialised)
        assert close(model.classify(photo(1, 3, 96, 96)), np.load(folder / f"resnet{depth}_v1b.npy"))
    with raises(CheckpointError, "stem", "resnet*_v1b"):
        open_weights(folder / "resnet50_v1d.params")


def test_each_part_of_gluoncvs_mask_rcnn_gives_its_outputs(tmp_path):
    folder = written("PACELINE_MXNET_PYTHON", GLUONCV_MASKS, tmp_path)
    model = MaskRCNN(RECIPES["maskrcnn-gluoncv"]().model, 80).eval()
    report = load_mask_rcnn_weights(model, folder / "mask_rcnn.params")
    assert not (report.unexpected or report.reinitialised)
    with np.load(folder / "mask_rcnn.npz") as file, torch.no_grad():
        wanted = dict(file)
        for number, map in enumerate(model.backbone(photo(1, 3, 128, 192))):
            assert close(map, wanted[f"level{number}"])
        (scores,), (deltas,) = model.rpn.head([torch.from_numpy(wanted["level0"])])
        assert close(scores, wanted["scores"].transpose(0, 2, 3, 1).reshape(1, -1))
        assert close(deltas, wanted["deltas"].transpose(0, 2, 3, 1).reshape(1, -1, 4))
        classes, boxes = model.roi_heads.boxes(torch.from_numpy(wanted["pooled"]))
        assert close(classes, wanted["classes"]) and close(boxes[:, 4:], wanted["boxes"])
        labels = torch.tensor([1, 5, 80, 33])
        assert close(model.roi_heads.masks(photo(4, 256, 14, 14), labels), wanted["masks"][range(4), labels - 1])


def test_tensorflows_own_checkpoint_gives_its_map(tmp_path):
    folder = written("PACELINE_TENSORFLOW_PYTHON", TENSORFLOW, tmp_path)
    trunk = ResNet(34, steps=(1, 2, 1), padding="same").eval()
    load_weights(trunk, folder / "model.ckpt-28152.index")
    found = trunk(photo(1, 300, 300, 3).permute(0, 3, 1, 2))[-1]
    assert close(found.permute(0, 2, 3, 1), np.load(folder / "map.npy"))
