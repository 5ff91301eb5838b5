"""--to openvino: the ONNX graph converted by OpenVINO, as NAME.xml with its numbers in NAME.bin.

OpenVINO's ONNX frontend reads the graph: the one that `openvino.convert_model` uses, which also tells its makers over the network that
something was converted, unless that was declined. So `Core.read_model` is called here, which tells nobody.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.config.commands import to_install
from paceline.config.errors import UserError
from paceline.config.whole import check_output, whole
from paceline.export.compare import Run
from paceline.export.onnx_form import check_installed, taken_down
from paceline.export.written import METADATA, Written
from paceline.training.trained import Trained

if TYPE_CHECKING:
    from paceline.export.verb import Flags

NEEDED = ("openvino",)
# Plugins may choose bf16 or fp16 themselves, whose answers differ by more than sums of fp32.
EXACT = {"INFERENCE_PRECISION_HINT": "f32"}


def write(trained: Trained, out: Path, flags: Flags) -> Iterator[str]:
    """Write the file and its numbers.

    Raises UserError where a package is missing, a flag does not fit, something else is there, or the answers differ.
    """
    check_installed("openvino")
    if any(find_spec(package) is None for package in NEEDED):
        raise UserError(f"--to openvino: openvino is needed. {to_install('openvino')}")
    numbers = out.with_suffix(".bin")
    check_output(out)
    if os.path.lexists(numbers) and not out.exists():
        raise UserError(f"--out {out}: its numbers would replace {numbers}, which is none of ours. Name another file.")
    import openvino

    made = Written(trained, flags)
    program = taken_down(made)
    with made.placed(out) as part:
        graph = part.with_suffix(".onnx")
        program.save(graph, external_data=False)
        model = converted(graph)
        model.set_friendly_name(METADATA)  # which the first line of the file begins with
        model.set_rt_info(made.facts(), [METADATA])
        openvino.save_model(model, part, compress_to_fp16=False)
        yield from made.checked(openvino_run(part))
        with whole(numbers) as placed:
            part.with_suffix(".bin").rename(placed)
    yield f"{out} and {numbers}: keep them together.  openvino.Core().compile_model({str(out)!r}, 'CPU', {EXACT})"


def converted(graph: Path) -> Any:
    """An ONNX file as OpenVINO's model."""
    import openvino

    model: Any = openvino.Core().read_model(graph)
    for node in model.get_ops():
        if (
            node.get_type_name() == "TopK"
        ):  # equals come in order of their places, as ONNX has it; the frontend drops that
            node.set_attribute("stable", True)
    return model


def openvino_run(path: Path) -> Run:
    """Runs a file by OpenVINO on the CPU, in fp32."""
    import openvino

    compiled: Any = openvino.Core().compile_model(path, "CPU", EXACT)

    def run(arguments: Any) -> list[Any]:
        found = compiled(list(arguments))
        return [found[place] for place in range(len(found))]

    return run
