"""Weights as others pickle them: the MXNet SSD's backbone in Gluon's names, MSRA's in Caffe2's, detectron2's models."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline.models.backbones.resnet import ResNet
from paceline.models.weights.formats.detectron2 import to_detectron2
from paceline.models.weights.formats.paceline_format import PacelineWeights


def gluon_arrays(model: ResNet) -> dict[str, np.ndarray]:
    """A ResNet-34's trunk under Gluon's names, by walking the net in Gluon's order."""
    arrays = {"conv0_weight": model.conv1.weight.detach().numpy()}

    def put(name: str, norm: torch.nn.BatchNorm2d) -> None:
        parts = {"gamma": "weight", "beta": "bias", "running_mean": "running_mean", "running_var": "running_var"}
        for part, ours in parts.items():
            arrays[f"{name}_{part}"] = getattr(norm, ours).detach().numpy()

    put("batchnorm0", model.bn1)
    for stage, layer in enumerate((model.layer1, model.layer2, model.layer3), start=1):
        count = 0
        for unit in layer:
            layers = [(unit.conv1, unit.bn1), (unit.conv2, unit.bn2)]
            if unit.downsample is not None:
                layers.append((unit.downsample[0], unit.downsample[1]))
            for conv, norm in layers:
                arrays[f"stage{stage}_conv{count}_weight"] = conv.weight.detach().numpy()
                put(f"stage{stage}_batchnorm{count}", norm)
                count += 1
    return arrays


def caffe2_arrays(model: ResNet) -> dict[str, np.ndarray]:
    """A ResNet of bottlenecks as Caffe2 names its arrays: scale and shift for a norm, no statistics."""
    arrays = {}
    for name, tensor in model.state_dict().items():
        if name.endswith(("running_mean", "running_var", "num_batches_tracked")):
            continue
        end = {"weight": "s", "bias": "b"}[name.rpartition(".")[2]]
        unit = re.match(r"layer(\d)\.(\d+)\.(?:(conv|bn)(\d)|downsample\.(\d))", name)
        if unit is None:
            theirs = {"conv1.weight": "conv1_w", "bn1.weight": "res_conv1_bn_s", "bn1.bias": "res_conv1_bn_b",
                      "fc.weight": "fc1000_w", "fc.bias": "fc1000_b"}[name]  # fmt: skip
        else:
            branch = "2" + "abc"[int(unit[4]) - 1] if unit[4] else "1"
            norm = unit[3] == "bn" or unit[5] == "1"
            theirs = f"res{int(unit[1]) + 1}_{unit[2]}_branch{branch}_{f'bn_{end}' if norm else 'w'}"
        arrays[theirs] = tensor.numpy()
    return arrays


def detectron2_content(model: torch.nn.Module) -> dict[str, Any]:
    """What its model zoo pickles of a network: names as arrays, with pixels that were BGR."""
    tensors, _, _ = to_detectron2(PacelineWeights({name: tensor.clone() for name, tensor in model.state_dict().items()}))
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    arrays |= {"pixel_mean": np.float32([103.53, 116.28, 123.675]), "pixel_std": np.float32([57.375, 57.12, 58.395])}
    return {"model": arrays, "__author__": "Detectron2 Model Zoo"}


def pickled(content: dict[str, Any], file: Path) -> Path:
    """`file`, which holds them."""
    file.write_bytes(pickle.dumps(content, 2))
    return file
