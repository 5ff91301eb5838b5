"""The forms that a trained model is written in: a row each, and a file here for each row. Imports no torch.

A form's module has

    write(trained: Trained, out: Path, flags: ExportOptions) -> Iterator[str]

which writes `out`, whole or not at all (_utils/atomic_write.py), and yields lines for the user as it goes on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from paceline._utils.atomic_write import check_user_file
from paceline._utils.commands import EXTRAS, install_command
from paceline._utils.errors import PacelineError
from paceline._utils.text import suggest_name
from paceline.config.constraints import Help


@dataclass(frozen=True)
class ExportFormat:
    """One row."""

    suffix: str  # of its files
    module: str  # its file in this package
    about: str  # in words
    takes: tuple[str, ...] = ()  # fields of the verb's flags that mean something for this form
    extras: tuple[str, ...] = ()  # whose packages it needs


@dataclass(frozen=True)
class ExportOptions:
    """Which file is written, and how a graph in it works."""

    format: Annotated[str, Help("paceline, onnx, openvino, torch, or aoti; empty: by the suffix of --output")] = ""
    output: Annotated[str, Help("output file; a file that paceline wrote is replaced")] = ""
    input_dtype: Annotated[Literal["uint8", "float"], Help("graphs: uint8 (B, H, W, 3), or (B, 3, H, W) in 0..1")] = "uint8"
    image_size: Annotated[str, Help("Mask R-CNN: input shape HxW of the graph; empty: the shapes of `predict`")] = ""
    batch_size: Annotated[int, Help("graphs of detectors: images per call; classifiers accept any number")] = 1
    score_threshold: Annotated[float | None, Help("graphs of detectors: minimum score; None: from the recipe")] = None
    precision: Annotated[Literal["fp32", "fp16", "int8"], Help("dtype of the network; int8: onnx only")] = "fp32"
    verify_images: Annotated[int, Help("number of images on which the predictions of a graph are verified; 0: none")] = 16
    verify_dir: Annotated[
        str, Help("folder of these images; empty: the validation set of the run (int8: training set)")
    ] = ""
    calibration_images: Annotated[int, Help("int8: number of images to calibrate the value ranges on")] = 64


GRAPH = ("input_dtype", "image_size", "batch_size", "score_threshold", "precision", "verify_images", "verify_dir")
FORMS = {
    "paceline": ExportFormat(".safetensors", "verification", "one file that other commands accept instead of a run"),
    "onnx": ExportFormat(
        ".onnx",
        "onnx_export",
        "ONNX graph from images to predictions, for onnxruntime",
        (*GRAPH, "calibration_images"),
        ("export",),
    ),
    "openvino": ExportFormat(".xml", "openvino_export", "OpenVINO graph, with a .bin file", GRAPH, ("export", "openvino")),
    "torch": ExportFormat(".pt2", "torch_export", "torch.export graph, requires only torch", GRAPH),
    "aoti": ExportFormat(".pt2", "torch_export", "graph compiled by AOTInductor for this type of CPU", GRAPH),
}


def choose_export_format(name: str, out: Path) -> str:
    """The form that --format names, or the first with the suffix of `out`.

    Raises PacelineError for a form that is not there, for a file of another suffix than the form's or that is none of ours, and
    where a package is missing.
    """
    suffixes = ", ".join(f"{form.suffix} ({known})" for known, form in FORMS.items())
    if not name:
        name = next((known for known, form in FORMS.items() if form.suffix == out.suffix), "")
        if not name:
            raise PacelineError(f"--output {out}: the suffix must be one of {suffixes}.")
    if name not in FORMS:
        raise PacelineError(f"--format {name}: format not found. {suggest_name(name, FORMS) or f'Choose from {suffixes}.'}")
    if out.suffix != FORMS[name].suffix:
        raise PacelineError(f"--output {out}: the suffix for --format {name} must be {FORMS[name].suffix}.")
    for extra in FORMS[name].extras:
        packages = [re.split("[<=>]", package)[0] for package in EXTRAS[extra]]
        if any(find_spec(package) is None for package in packages):
            raise PacelineError(f"--format {name}: requires {', '.join(packages)}. Install:  {install_command(extra)}")
    check_user_file(out)
    return name
