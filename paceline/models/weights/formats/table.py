"""The forms of weights that are known, a row each, and how they are written. Another form is a row here and a file beside this one.

A row says how a form is recognized by the names of the tensors, how it becomes ours, and how it is written where its side still has
users. Rows are tried in order; the last one takes everything. How bytes become tensors is another table,
models/weights/formats/detect.py.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from paceline._utils.atomic_write import atomic_writer, remove_stale_parts
from paceline._utils.errors import PacelineError
from paceline.models.weights.formats.detectron2 import from_detectron2, is_detectron2, to_detectron2
from paceline.models.weights.formats.efficientnet import from_efficientnet, is_efficientnet
from paceline.models.weights.formats.mlperf import (
    from_maskrcnn_benchmark,
    is_maskrcnn_benchmark,
    is_reference,
    read_reference,
    write_reference,
)
from paceline.models.weights.formats.mxnet import from_gluoncv, from_mxnet, is_gluoncv, is_mxnet
from paceline.models.weights.formats.paceline_format import Facts, PacelineWeights, Tensors, WeightFormatError, to_metadata
from paceline.models.weights.formats.tensorflow import from_tensorflow, is_tensorflow
from paceline.models.weights.formats.torchvision import (
    from_torchvision,
    is_paceline,
    write_paceline,
    write_timm,
    write_torchvision,
)

# Ours -> the tensors under their names, what stands beside them in the file, and what its user must know.
Writer = Callable[[PacelineWeights], tuple[dict[str, Tensor], dict[str, object], tuple[str, ...]]]


@dataclass(frozen=True)
class WeightFormat:
    """One form. Reading and writing raise WeightFormatError where the network is one that the other side does not have."""

    name: str  # as --format has it
    about: str
    matches: Callable[[Tensors, Facts], bool]  # by the tensors' names
    read: Callable[[Tensors, Facts], PacelineWeights]
    write: Writer | None = None  # None: nobody reads it any more
    suffixes: tuple[str, ...] = (".safetensors", ".pth")  # of files that may be written, the usual one first


def never_matches(_: Tensors, __: Facts) -> bool:
    """Of forms that have another row's names: they are only written."""
    return False


FORMS = (
    WeightFormat("reference", "the MLPerf reference SSD", is_reference, read_reference, write_reference, (".pth", ".safetensors")),
    WeightFormat("maskrcnn-benchmark", "the MLPerf reference Mask R-CNN", is_maskrcnn_benchmark, from_maskrcnn_benchmark),
    WeightFormat("detectron2", "detectron2, or Caffe2 (MSRA)", is_detectron2, from_detectron2, to_detectron2, (".pth", ".pkl")),
    WeightFormat("gluoncv", "GluonCV", is_gluoncv, from_gluoncv),
    WeightFormat("mxnet", "the MXNet systems of MLPerf", is_mxnet, from_mxnet),
    WeightFormat("tensorflow", "TensorFlow (Habana's SSD and its backbone)", is_tensorflow, from_tensorflow),
    WeightFormat("efficientnet", "efficientnet_pytorch (EfficientNet-Lite)", is_efficientnet, from_efficientnet),
    WeightFormat("torchvision", "torchvision", never_matches, from_torchvision, write_torchvision, (".pth", ".safetensors")),
    WeightFormat("timm", "timm's ResNets", never_matches, from_torchvision, write_timm),
    WeightFormat("paceline", "paceline, torchvision, or timm (identical names)", is_paceline, from_torchvision, write_paceline),
)  # fmt: skip


def find_weight_format(tensors: Tensors, facts: Facts) -> WeightFormat:
    """The first row whose names these are."""
    return next(form for form in FORMS if form.matches(tensors, facts))


# Forms whose own readers look for the tensors under "model".
WRAPPED = ("reference", "detectron2")


def writable_formats() -> list[WeightFormat]:
    """The forms that may be written."""
    return [form for form in FORMS if form.write is not None]


def write_format(
    source: Path, ours: PacelineWeights, form: WeightFormat, out: Path
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Write what `source` held into `out`; -> the tensors as they were written, and what their user must know.

    Raises PacelineError where the other side has no such network, or the file cannot be written.
    """
    assert form.write is not None
    try:
        tensors, beside, notes = form.write(ours)
    except WeightFormatError as problem:
        raise PacelineError(f"{source}: cannot be written as --format {form.name}: {problem}.") from None
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        remove_stale_parts(out.parent, {out.name})
        with atomic_writer(out, sync=True) as part:
            _write(part, out.suffix, tensors, beside, form, ours)
    except (OSError, RuntimeError, safetensors.SafetensorError) as problem:
        reason = getattr(problem, "strerror", None) or (str(problem).splitlines() or [""])[0]
        raise PacelineError(f"--output {out}: cannot be written ({reason}). Choose another file.") from None
    return tensors, notes


def _write(
    part: Path,
    suffix: str,
    tensors: Mapping[str, Tensor],
    beside: Mapping[str, Any],
    form: WeightFormat,
    ours: PacelineWeights,
) -> None:
    if suffix == ".safetensors":
        metadata = to_metadata(ours) if form.name == "paceline" else {"format": "pt"}
        # save_file would write to a name of its own, which a kill leaves behind, and for the file's owner alone.
        part.write_bytes(safetensors.torch.save(dict(tensors), metadata=metadata))
        return
    with part.open("wb") as file:
        if suffix == ".pkl":
            _StablePickler(file, protocol=4).dump(
                {"model": {name: tensor.numpy() for name, tensor in tensors.items()}, **beside}
            )
        else:
            torch.save({"model": dict(tensors), **beside} if form.name in WRAPPED else dict(tensors), file)


class _StablePickler(pickle.Pickler):
    """numpy 1 and 2 name the function that usually makes an array again differently, and neither knows the other's name."""

    def reducer_override(self, obj: Any) -> Any:
        """An array is numpy.ndarray(shape, type, bytes), which both know."""
        if isinstance(obj, np.ndarray):
            return np.ndarray, (obj.shape, obj.dtype.str, obj.tobytes())
        return NotImplemented
