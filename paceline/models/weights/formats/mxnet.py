"""Weights of MXNet's systems, read, and under our names: the MLPerf systems', and GluonCV's ResNets v1b and Mask R-CNN.

Letters: K classes
NVIDIA's ResNet (a folder with one `<name>.npy` per array): conv0, bn0, stage<S>_unit<U>_conv<1..3>, _bn<1..3>, for the
shortcut _conv1sc and _sc, and fc1; statistics are moving_mean and moving_var; convolutions are OHWI.
Gluon's (the SSD's pickled ResNet-34 backbone): conv0, batchnorm0, stage<S>_conv<K>, stage<S>_batchnorm<K>, with K
counted from 0 through the stage and a first unit's shortcut after its own convolutions; statistics are running_mean
and running_var; convolutions are OIHW.
GluonCV's v1b strides in the 3x3, as ours; its boxes and masks have no row for the background, its class scores have it first, as ours.
Source of GluonCV's names: its model_zoo (resnetv1b.py, rcnn/mask_rcnn) as `save_parameters` writes them, checked with files that
GluonCV 0.10 wrote.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from paceline._utils.errors import CheckpointError
from paceline._utils.names import list_matching
from paceline._utils.safe_read import read_plain, require_plain
from paceline._utils.text import abbreviate
from paceline.models.weights.classes import count_class_rows, published_class_names
from paceline.models.weights.formats.paceline_format import Facts, PacelineWeights, Tensors, WeightFormatError

# MXNet's last part of a name -> torch's.
PARTS = {
    "weight": "weight",
    "bias": "bias",
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_var": "running_var",
    "running_mean": "running_mean",
    "running_var": "running_var",
}
NAME = re.compile(rf"(?P<owner>.+?)_(?P<part>{'|'.join(PARTS)})")
UNIT = re.compile(r"stage(?P<stage>[1-4])_unit(?P<unit>\d+)_(?P<layer>conv1sc|sc|conv[1-3]|bn[1-3])")
COUNTED = re.compile(r"stage(?P<stage>[1-4])_(?P<layer>conv|batchnorm)(?P<count>\d+)")
OUTSIDE = {"conv0": "conv1", "bn0": "bn1", "batchnorm0": "bn1", "fc1": "fc", "dense0": "fc"}


def is_mxnet(names: Tensors, _: Facts) -> bool:
    """Whether names are MXNet's: no dots, and a stem called conv0; or those of the SSD as it is saved in training."""
    return _is_trained_ssd(names) or ("conv0_weight" in names and not any("." in name for name in names))


def _is_trained_ssd(names: Tensors) -> bool:
    return any(name.endswith("expand_trans_conv0_weight") for name in names)


def from_mxnet(saved: Tensors, _: Facts) -> PacelineWeights:
    """The same weights under torchvision's names, convolutions as OIHW. Names that fit no scheme stay as they are.

    Raises WeightFormatError for an SSD that was trained there.
    """
    if _is_trained_ssd(saved):
        raise WeightFormatError(
            "a training checkpoint of the MXNet SSD, which is not supported, because no such file was published. Its "
            "initial backbone is supported (--weights resnet34-mlperf)"
        )
    stem = saved["conv0_weight"]
    # A stem has 3 or 4 input channels and a square kernel that is neither: its shape tells the whole file's layout.
    inputs_last = stem.ndim == 4 and stem.shape[1] == stem.shape[2] and stem.shape[3] in (3, 4)
    per_unit, shortcut = _units(saved, inputs_last)
    renamed = {}
    for name, tensor in saved.items():
        if tensor.ndim == 4 and inputs_last:
            tensor = tensor.permute(0, 3, 1, 2).contiguous()
        renamed[_torchvision_name(name, per_unit, shortcut)] = tensor
    return PacelineWeights(renamed, classes=published_class_names(len(renamed["fc.bias"])) if "fc.bias" in renamed else ())


def _units(arrays: Tensors, inputs_last: bool) -> tuple[int, dict[int, bool]]:
    """Of Gluon's counted names: (convolutions in a unit, stage -> whether its first unit has one in its shortcut)."""
    first = arrays.get("stage1_conv0_weight")
    per_unit = 3 if first is not None and first.shape[1 if inputs_last else 2] == 1 else 2
    stages = [match[1] for name in arrays if (match := re.fullmatch(r"stage([1-4])_conv\d+_weight", name))]
    return per_unit, {stage: stages.count(str(stage)) % per_unit == 1 for stage in range(1, 5)}


def _torchvision_name(name: str, per_unit: int, shortcut: Mapping[int, bool]) -> str:
    parsed = NAME.fullmatch(name)
    if parsed is None:
        return name
    owner, part = parsed["owner"], PARTS[parsed["part"]]
    if owner in OUTSIDE:
        return f"{OUTSIDE[owner]}.{part}"
    unit = UNIT.fullmatch(owner)
    if unit is not None:
        layer = {"conv1sc": "downsample.0", "sc": "downsample.1"}.get(unit["layer"], unit["layer"])
        return f"layer{unit['stage']}.{int(unit['unit']) - 1}.{layer}.{part}"
    counted = COUNTED.fullmatch(owner)
    if counted is None:
        return name
    stage, count, conv = int(counted["stage"]), int(counted["count"]), counted["layer"] == "conv"
    if shortcut[stage] and count == per_unit:
        return f"layer{stage}.0.downsample.{0 if conv else 1}.{part}"
    if shortcut[stage] and count > per_unit:
        count -= 1
    number, layer = divmod(count, per_unit)
    return f"layer{stage}.{number}.{'conv' if conv else 'bn'}{layer + 1}.{part}"


PART = "|".join(PARTS)
# Of a detector's trunk: convolutions and norms are counted through a stage, shortcuts stand apart.
TRUNK = re.compile(
    rf"features\.resnetv1b_((?P<where>layers|down)(?P<stage>[1-4])_)?(?P<layer>conv|batchnorm)(?P<count>\d+)_(?P<part>{PART})"
)
PYRAMID = re.compile(r"features\.P(?P<level>[2-6])_(?P<layer>conv_lat|conv1)_(?P<part>weight|bias)")
HEADS = {
    "box_features.1": "roi_heads.box_head.fc6",
    "box_features.3": "roi_heads.box_head.fc7",
    "class_predictor": "roi_heads.box_predictor.cls_score",
    "box_predictor": "roi_heads.box_predictor.bbox_pred",
    "rpn.rpn_head.conv1.0": "rpn.head.conv.0.0",
    "rpn.rpn_head.score": "rpn.head.cls_logits",
    "rpn.rpn_head.loc": "rpn.head.bbox_pred",
    "mask.mask": "roi_heads.mask_predictor.mask_fcn_logits",
}
# Convolutions of the mask head with a ReLU behind each; the last of them is transposed.
MASK = re.compile(r"mask\.deconv\.(?P<place>\d+)\.(?P<part>weight|bias)")
WITHOUT_BACKGROUND = {"roi_heads.box_predictor.bbox_pred": 4, "roi_heads.mask_predictor.mask_fcn_logits": 1}
NO_WEIGHTS = re.compile(r".*anchor_generator\..*")
BODY = "backbone.body."


def is_gluoncv(names: Tensors, _: Facts) -> bool:
    """Whether the names are GluonCV's: of a classifier, or of a detector."""
    norms = (
        name.removesuffix("gamma") for name in names if name.endswith(".gamma")
    )  # other networks have scales of that name
    return any(f"{norm}running_var" in names for norm in norms) or any(
        name.startswith("features.resnetv1b_") for name in names
    )


def from_gluoncv(saved: Tensors, _: Facts) -> PacelineWeights:
    """Under our names. Raises WeightFormatError for its other networks."""
    if any(name.startswith("features.resnetv1b_") for name in saved):
        return _detector(saved)
    if "conv1.0.weight" in saved:
        raise WeightFormatError(
            "a GluonCV ResNet with three convolutions in its stem (v1c, v1d, v1e, v1s, ResNeSt), but paceline supports "
            "one. Use resnet*_v1b"
        )
    if "conv1.weight" not in saved or "bn1.gamma" not in saved:
        raise WeightFormatError("an unsupported GluonCV network. Use a ResNet v1b, or a Mask R-CNN on a ResNet v1b")
    state = {}
    for name, tensor in saved.items():
        parts = name.split(".")
        state[".".join((*parts[:-1], PARTS.get(parts[-1], parts[-1])))] = tensor
    return PacelineWeights(state, classes=published_class_names(len(state["fc.bias"])) if "fc.bias" in state else ())


def _detector(saved: Tensors) -> PacelineWeights:
    per_unit = 3 if saved["features.resnetv1b_layers1_conv0_weight"].shape[2:] == (1, 1) else 2
    last = max((int(result["place"]) for name in saved if (result := MASK.fullmatch(name))), default=0)
    state: dict[str, Tensor] = {}
    left_out, converted = [], []
    for name, tensor in saved.items():
        if NO_WEIGHTS.fullmatch(name):
            left_out.append(name)
            continue
        ours = _trunk_name(name, per_unit) or _head_name(name, last) or name
        owner = ours.rpartition(".")[0]
        if owner in WITHOUT_BACKGROUND:
            tensor = torch.cat((tensor.new_zeros(WITHOUT_BACKGROUND[owner], *tensor.shape[1:]), tensor))
            converted.append(ours)
        state[ours] = tensor
    return PacelineWeights(
        state, tuple(converted), classes=published_class_names(count_class_rows(state)), left_out=tuple(left_out)
    )


def _trunk_name(name: str, per_unit: int) -> str | None:
    result = TRUNK.fullmatch(name)
    if result is None or (result["where"] != "layers" and int(result["count"])):
        return None
    kind, part = "conv" if result["layer"] == "conv" else "bn", PARTS[result["part"]]
    if result["where"] is None:
        return f"{BODY}{kind}1.{part}"
    if result["where"] == "down":
        return f"{BODY}layer{result['stage']}.0.downsample.{0 if kind == 'conv' else 1}.{part}"
    unit, layer = divmod(int(result["count"]), per_unit)
    return f"{BODY}layer{result['stage']}.{unit}.{kind}{layer + 1}.{part}"


def _head_name(name: str, last: int) -> str | None:
    if result := PYRAMID.fullmatch(name):
        level, part = int(result["level"]), result["part"]
        if level == 6:
            return f"backbone.fpn.top.{part}"
        blocks = "inner_blocks" if result["layer"] == "conv_lat" else "layer_blocks"
        return f"backbone.fpn.{blocks}.{level - 2}.0.{part}"
    if result := MASK.fullmatch(name):
        index = int(result["place"])
        if index == last:
            return f"roi_heads.mask_predictor.conv5_mask.{result['part']}"
        return f"roi_heads.mask_head.{index // 2}.0.{result['part']}"
    owner, _, part = name.rpartition(".")
    return f"{HEADS[owner]}.{part}" if owner in HEADS else None


# Read MXNet's files: .params, and folders with one .npy an array.
#
# A .params is a list of arrays with their names, as `mx.nd.save`, Gluon's `save_parameters` and Module checkpoints write. The file is
# numbers after numbers, little-endian, so nothing in it can be executed; its sizes are compared with the bytes that are there before
# anything is allocated.
#
#     u64 0x112, u64 0 | u64 count, that many arrays | u64 count of names (0 or the same), each: u64 length, that many bytes
#     array: u32 magic, [i32 storage], shape, [i32 device, i32 number of it, i32 type, values]; what is in brackets by the magic
# Source: Apache MXNet 1.9, src/ndarray/ndarray.cc (NDArray::Save, ::Load, ::LegacyLoad), include/mxnet/tuple.h.

# Of one array: ten times the largest backbone here.
MAX_OF_ARRAY = 2**30
LIST = 0x112
V1, V2, V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA  # V3: written with numpy's shapes, where () is a scalar
DENSE = 0
MAX_SIDES = 32
# MXNet's numbers of the types of its arrays.
TYPES = {0: "<f4", 1: "<f8", 2: "<f2", 3: "|u1", 4: "<i4", 5: "|i1", 6: "<i8", 7: "|b1"}
# Prefixes that Module checkpoints put before names.
KINDS = ("arg:", "aux:")


def read_npy_folder(folder: Path) -> dict[str, np.ndarray]:
    """Every `<name>.npy` of a folder, by name. Raises CheckpointError where there is none, or one is no array."""
    files = list_matching(folder, "*.npy")
    if not files:
        raise CheckpointError(f"{folder}: no .npy files found. --weights requires a file, or a folder of saved arrays")
    arrays: dict[str, np.ndarray] = {}
    for file in files:
        try:
            size = require_plain(file)
        except OSError as error:
            raise CheckpointError(f"{file}: cannot be read as weights ({error.strerror})") from None
        if size > MAX_OF_ARRAY:
            raise CheckpointError(f"{file}: larger than the limit for an array (1024 MiB)")
        try:
            # Mapped, so that nothing is allocated for a shape beyond the file's bytes.
            array = np.load(file, allow_pickle=False, mmap_mode="r")
        except Exception as error:  # whatever a stranger's bytes make numpy raise
            raise CheckpointError(f"{file}: not a plain numpy array: {abbreviate(str(error), 200)}") from None
        if not isinstance(array, np.ndarray):
            array.close()
            raise CheckpointError(f"{file}: not a plain numpy array, but an archive of several arrays")
        arrays[file.stem] = array
    return arrays


def read_params(path: Path, most: int) -> dict[str, np.ndarray]:
    """Name -> array. Raises CheckpointError for another file, a torn one, one of more than `most` bytes, and sparse arrays."""
    try:
        reader = _ByteReader(read_plain(path, most))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read as weights ({error.strerror})") from None
    try:
        return reader.arrays()
    except (ValueError, struct.error, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: not a readable MXNet .params file: {abbreviate(str(error), 200)}") from None


class _ByteReader:
    """Walks through the bytes; raises ValueError where they are not what they should be."""

    def __init__(self, data: bytes) -> None:
        self.data, self.place = data, 0

    def arrays(self) -> dict[str, np.ndarray]:
        if len(self.data) < 24 or self.numbers("<QQ") != (LIST, 0):
            raise ValueError("it does not start like a list of arrays")
        # An array takes four bytes at least, a name eight: a count beyond that is a lie.
        arrays = [self.array() for _ in range(self.count(4))]
        names = [self.name() for _ in range(self.count(8))]
        if self.place != len(self.data):
            raise ValueError(f"{len(self.data) - self.place:,} extra bytes after its end")
        if len(names) != len(arrays):
            raise ValueError(f"{len(arrays)} arrays have {len(names)} names, but each array must have a name")
        if len(set(names)) != len(names):
            raise ValueError("two arrays have the same name")
        return {name: array for name, array in zip(names, arrays) if array is not None}

    def numbers(self, form: str) -> tuple[int, ...]:
        results = struct.unpack_from(form, self.data, self.place)
        self.place += struct.calcsize(form)
        return results

    def count(self, least: int) -> int:
        (count,) = self.numbers("<Q")
        if count * least > len(self.data) - self.place:
            raise ValueError(f"truncated: {count:,} values are expected")
        return count

    def name(self) -> str:
        size = self.count(1)
        text = self.data[self.place : self.place + size].decode()
        self.place += size
        return next((text.removeprefix(kind) for kind in KINDS if text.startswith(kind)), text)

    def shape(self, magic: int) -> tuple[int, ...] | None:
        """None: an array that was never filled."""
        (sides,) = self.numbers("<i")
        if (magic == V3 and sides == -1) or (magic != V3 and sides == 0):
            return None
        if not 0 <= sides <= MAX_SIDES:
            raise ValueError(f"an array with {sides} dimensions")
        shape = self.numbers(f"<{sides}q")
        if any(side < 0 for side in shape):
            raise ValueError(f"an array of shape {shape}")
        return shape

    def array(self) -> np.ndarray | None:
        (magic,) = self.numbers("<I")
        if magic in (V2, V3):
            (storage,) = self.numbers("<i")
            if storage != DENSE:
                raise ValueError("one of its arrays is sparse. Save it as .tostype('default')")
            shape = self.shape(magic)
        elif magic == V1:
            shape = self.shape(magic)
        elif magic <= MAX_SIDES:  # of the first years: the number of sides, and each of 32 bits
            shape = self.numbers(f"<{magic}I") or None
        else:
            raise ValueError(f"an array that starts with {magic:#x}")
        if shape is None:
            return None
        _, _, kind = self.numbers("<3i")
        if kind not in TYPES:
            raise ValueError(f"an array of type {kind}")
        dtype = np.dtype(TYPES[kind])
        size = math.prod(shape) * dtype.itemsize
        if size > len(self.data) - self.place:
            raise ValueError(f"an array of shape {shape} is truncated")
        array = np.frombuffer(self.data, dtype, math.prod(shape), self.place).reshape(shape)
        self.place += size
        return array
