"""Names and layouts of the MXNet systems' weights, turned into torchvision's; and folders of their .npy files.

Two naming schemes are known:
NVIDIA's ResNet (a folder with one `<name>.npy` per array): conv0, bn0, stage<S>_unit<U>_conv<1..3>, _bn<1..3>, for the
shortcut _conv1sc and _sc, and fc1; statistics are moving_mean and moving_var; convolutions are OHWI.
Gluon's (the SSD's pickled ResNet-34 backbone): conv0, batchnorm0, stage<S>_conv<K>, stage<S>_batchnorm<K>, with K
counted from 0 through the stage and a first unit's shortcut after its own convolutions; statistics are running_mean
and running_var; convolutions are OIHW.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from paceline.config.errors import CheckpointError
from paceline.config.plain_file import require_plain
from paceline.config.printable import short
from paceline.weights.forms.class_names import published
from paceline.weights.forms.ours import Facts, FormError, Ours, Tensors

# Of one array: ten times the largest backbone here.
MAX_BYTES = 2**30
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


def read_npy_folder(folder: Path) -> dict[str, np.ndarray]:
    """Every `<name>.npy` of a folder, by name. Raises CheckpointError where there is none, or one is no array."""
    files = sorted(folder.glob("*.npy"))
    if not files:
        raise CheckpointError(f"{folder}: no .npy files here; --weights takes a file, or a folder of saved arrays")
    arrays: dict[str, np.ndarray] = {}
    for file in files:
        try:
            size = require_plain(file)
        except OSError as error:
            raise CheckpointError(f"{file}: cannot be read as weights ({error.strerror})") from None
        if size > MAX_BYTES:
            raise CheckpointError(f"{file}: larger than any array of these models (1024 MiB)")
        try:
            # Mapped, so that nothing is allocated for a shape beyond the file's bytes.
            array = np.load(file, allow_pickle=False, mmap_mode="r")
        except Exception as error:  # whatever a stranger's bytes make numpy raise
            raise CheckpointError(f"{file}: not a plain numpy array: {short(str(error), 200)}") from None
        if not isinstance(array, np.ndarray):
            array.close()
            raise CheckpointError(f"{file}: not a plain numpy array: an archive of several")
        arrays[file.stem] = array
    return arrays


def is_mxnet(names: Tensors, _: Facts) -> bool:
    """Whether names are MXNet's: no dots, and a stem called conv0; or those of the SSD as it is saved in training."""
    return _is_trained_ssd(names) or ("conv0_weight" in names and not any("." in name for name in names))


def _is_trained_ssd(names: Tensors) -> bool:
    return any(name.endswith("expand_trans_conv0_weight") for name in names)


def from_mxnet(saved: Tensors, _: Facts) -> Ours:
    """The same weights under torchvision's names, convolutions as OIHW. Names that fit no scheme stay as they are.

    Raises FormError for an SSD that was trained there.
    """
    if _is_trained_ssd(saved):
        raise FormError(
            "the MXNet system's SSD as it is saved in training, which is not read: none was published to compare a reading with. "
            "The backbone that it starts from is (--weights resnet34-mlperf)"
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
    return Ours(renamed, classes=published(len(renamed["fc.bias"])) if "fc.bias" in renamed else ())


def _units(arrays: Tensors, inputs_last: bool) -> tuple[int, dict[int, bool]]:
    """Of Gluon's counted names: (convolutions in a unit, stage -> whether its first unit has one in its shortcut)."""
    first = arrays.get("stage1_conv0_weight")
    per_unit = 2
    if first is not None and first.shape[1 if inputs_last else 2] == 1:
        per_unit = 3
    counts = dict.fromkeys(range(1, 5), 0)
    for name in arrays:
        match = re.fullmatch(r"stage([1-4])_conv\d+_weight", name)
        if match:
            counts[int(match[1])] += 1
    return per_unit, {stage: count % per_unit == 1 for stage, count in counts.items()}


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
