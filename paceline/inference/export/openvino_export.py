"""--format openvino: the ONNX graph converted by OpenVINO, as NAME.xml with its numbers in NAME.bin.

OpenVINO's ONNX frontend reads the graph: the one that `openvino.convert_model` uses, which also tells its makers over the network that
something was converted, unless that was declined. So `Core.read_model` is called here, which tells nobody.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline._utils.atomic_write import atomic_writer
from paceline._utils.errors import PacelineError
from paceline._utils.hashing import file_sha256
from paceline.config.model_card import METADATA
from paceline.inference.export.onnx_export import export_program
from paceline.inference.export.verification import WrittenGraph
from paceline.inference.graph.runtimes import EXACT
from paceline.inference.trained_model import TrainedModel

if TYPE_CHECKING:
    from paceline.inference.export.formats import ExportOptions


def write(trained: TrainedModel, out: Path, flags: ExportOptions) -> Iterator[str]:
    """Write the file and its numbers. Raises PacelineError if a flag does not fit, the file exists, or the predictions differ."""
    numbers = out.with_suffix(".bin")
    if os.path.lexists(numbers) and not out.exists():
        raise PacelineError(f"--output {out}: {numbers} already exists and is not a paceline file. Choose another file.")
    import openvino

    made = WrittenGraph(trained, flags)
    with made.placed(out) as part:
        graph = part.with_suffix(".onnx")
        export_program(made).save(graph, external_data=False)
        model = convert_onnx(graph)
        model.set_friendly_name(METADATA)  # which the first line of the file begins with
        beside, digest = part.with_suffix(".bin"), ""
        for _ in range(2):  # the second time with the first one's numbers in its card
            model.set_rt_info(made.facts(digest), [METADATA])
            openvino.save_model(model, part, compress_to_fp16=False)
            digest = file_sha256(beside)
        yield from made.checked(part)
        with atomic_writer(numbers) as placed:
            beside.rename(placed)
    yield f"{out} and {numbers}: keep both in one folder.  openvino.Core().compile_model({str(out)!r}, 'CPU', {EXACT})"


def convert_onnx(graph: Path) -> Any:
    """An ONNX file as OpenVINO's model."""
    import openvino

    model: Any = openvino.Core().read_model(graph)
    for node in model.get_ops():
        # Equals come in order of their places, as ONNX has it; the frontend drops that.
        if node.get_type_name() == "TopK":
            node.set_attribute("stable", True)
    return model
