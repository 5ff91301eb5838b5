"""What runs a graph's file, a row for each form: from arguments to outputs, by the form's own package, on the CPU, in fp32.

Imports no torch unless a .pt2 is opened. Nothing in an .onnx or .xml runs but operators of ONNX and OpenVINO: their packages know no
others unless a library is handed to them, and what lies in other files than these is not read.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from paceline._utils.errors import CheckpointError
from paceline._utils.safe_read import read_plain, require_plain
from paceline.config.model_card import ONNX, OPENVINO, TORCH

# A graph's arguments -> its outputs.
Run: TypeAlias = Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]
MAX_BYTES = 2 << 30  # a file of Protocol Buffers has no more
# OpenVINO's plugins may choose bf16 or fp16 themselves, whose answers differ by more than sums of fp32.
EXACT = {"INFERENCE_PRECISION_HINT": "f32"}


class TensorSpec(NamedTuple):
    """An argument or an output: `kind` as numpy calls it; of `shape` None is any number."""

    name: str
    kind: str
    shape: tuple[int | None, ...]


@dataclass(frozen=True)
class GraphSession:
    """An opened file."""

    run: Run
    inputs: Sequence[TensorSpec] | None = None  # None where a form does not name them
    outputs: Sequence[TensorSpec] = ()


def _onnx(path: Path, digest: str) -> GraphSession:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is raised all the same
    # Numbers in other files are looked for below this, where nothing can be.
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.devnull)
    content, providers = read_plain(path, MAX_BYTES), ["CPUExecutionProvider"]
    session: Any = onnxruntime.InferenceSession(content, options, providers=providers)
    kinds = {"tensor(float)": "float32", "tensor(uint8)": "uint8", "tensor(int64)": "int64"}

    def ports(listed: Sequence[Any]) -> list[TensorSpec]:
        sides = ([side if isinstance(side, int) else None for side in one.shape] for one in listed)
        return [
            TensorSpec(one.name, kinds.get(one.type) or str(one.type), tuple(shape)) for one, shape in zip(listed, sides)
        ]

    inputs, outputs = ports(session.get_inputs()), ports(session.get_outputs())
    return GraphSession(
        lambda explicit: session.run(None, {one.name: a for one, a in zip(inputs, explicit)}), inputs, outputs
    )


def _openvino(path: Path, digest: str) -> GraphSession:
    import openvino

    content, beside = read_plain(path, MAX_BYTES), path.with_suffix(".bin")
    wrong, again = "", "Keep the two files of `paceline export` in one folder."
    try:
        numbers = read_plain(beside, MAX_BYTES)
        if digest and hashlib.sha256(numbers).hexdigest() != digest:
            wrong = "the file is damaged or belongs to another model"
    except OSError as problem:
        wrong, numbers = str(problem.strerror), b""
    if wrong:
        raise CheckpointError(f"{beside}: loading the weights of {path.name} failed ({wrong}). {again}")
    core: Any = openvino.Core()
    compiled = core.compile_model(core.read_model(content, numbers), "CPU", EXACT)

    def ports(listed: Sequence[Any]) -> list[TensorSpec]:
        sides = ([side.get_length() if side.is_static else None for side in one.get_partial_shape()] for one in listed)
        kinds = (np.dtype(one.get_element_type().to_dtype()).name for one in listed)
        return [TensorSpec(one.get_any_name(), kind, tuple(shape)) for one, kind, shape in zip(listed, kinds, sides)]

    return GraphSession(
        lambda explicit: list(compiled(list(explicit)).to_tuple()), ports(compiled.inputs), ports(compiled.outputs)
    )


def _torch(path: Path, digest: str) -> GraphSession:
    """A program of torch.export, or a library of AOTInductor. Either can run code of whoever made it."""
    import torch
    import torchvision  # noqa: F401  # whose operators a file of Mask R-CNN has

    require_plain(path)
    with zipfile.ZipFile(path) as archive:
        compiled = any("/data/aotinductor/" in name for name in archive.namelist())
    opened: Any = torch._inductor.aoti_load_package(str(path)) if compiled else torch.export.load(path).module()

    def run(arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
        with torch.inference_mode():
            result = opened(*map(torch.from_numpy, arguments))
        return [part.numpy() for part in result]

    return GraphSession(run)


class GraphRuntime(NamedTuple):
    """A row: the package, the extra of ours that installs it, and what opens a file, with the SHA-256 of numbers beside it, or ""."""

    package: str
    extra: str
    runner: Callable[[Path, str], GraphSession]


FORMS = {
    ONNX: GraphRuntime("onnxruntime", "export", _onnx),
    OPENVINO: GraphRuntime("openvino", "openvino", _openvino),
    TORCH: GraphRuntime("torch", "", _torch),
}


def open_session(path: Path) -> Run:
    """What runs a file of ours that was written just now."""
    return FORMS[path.suffix].runner(path, "").run
