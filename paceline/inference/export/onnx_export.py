"""--format onnx: whole graphs by torch's own exporter, for onnxruntime and whatever else reads ONNX; and a reader beside the file.

Two operators are ours to translate. A stable sort is TopK of all elements, whose equals come in order of their places. Suppression is
ONNX's NonMaxSuppression, one node where our own fixed form unrolls into a thousand: greedy, in float32, from a threshold on. Lists
come sorted, so a box's score there is its place, counted from the end.

Letters: L lists   C boxes of a list
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from paceline._utils.atomic_write import LINE, check_user_file, write_user_file
from paceline._utils.version import __version__
from paceline.config.model_card import METADATA
from paceline.inference.export.int8 import CalibrationData
from paceline.inference.export.verification import WrittenGraph
from paceline.inference.graph import onnx_reader
from paceline.inference.trained_model import TrainedModel

if TYPE_CHECKING:
    from paceline.inference.export.formats import ExportOptions

OPSET = 18
# The program that is copied beside the file.
READER = Path(onnx_reader.__file__)

torch.library.define("paceline::keep", "(Tensor boxes, Tensor valid, Tensor classes, float iou, bool by_class) -> Tensor")


@torch.library.register_fake("paceline::keep")
def _shape_of_kept(boxes: Tensor, valid: Tensor, classes: Tensor, iou: float, by_class: bool) -> Tensor:
    return torch.empty_like(valid)


def one_node(boxes: Tensor, valid: Tensor, iou: float, classes: Tensor | None) -> Tensor:
    """`nms_fixed`'s first answer as the operator that `_translations` knows; it is only traced, never run."""
    kinds = valid.long() if classes is None else classes
    lists = boxes.flatten(0, -3), valid.flatten(0, -2), kinds.flatten(0, -2)
    return torch.ops.paceline.keep(*lists, iou, classes is not None).view(valid.shape)


def write(trained: TrainedModel, out: Path, flags: ExportOptions) -> Iterator[str]:
    """Write the file and its reader, OUT with _predict.py in place of its suffix.

    Raises PacelineError where a flag does not fit, something else is beside it, or the answers differ.
    """
    beside = out.with_name(f"{out.stem}_predict.py")
    check_user_file(beside, "next to --output")
    data = CalibrationData(trained, flags) if flags.precision == "int8" else None
    made = WrittenGraph(trained, flags)
    photos = data.inputs(made.graph) if data else []
    with made.placed(out) as part:
        export_program(made).save(part, external_data=False)
        if data is not None:
            floats = part.rename(part.with_name("fp32.onnx"))
            yield data.quantize(made.graph, photos, floats, part)
            _sign(part, made)
            yield from data.loss({"fp32": floats, "int8": part})
        else:
            yield from made.checked(part)
    text = READER.read_text(encoding="utf-8").replace("MODEL.onnx", out.name)
    write_user_file(beside, f"{LINE}reads {out.name}\n{text}")
    yield f"{beside}: predicts with it, and requires only numpy, Pillow, and onnxruntime:  python {beside} IMAGE"


def export_program(made: WrittenGraph) -> Any:
    """The graph as torch.onnx's program, with the facts in its metadata and without paths of this machine."""
    traced = made.graph.traced(suppression=one_node)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            traced,
            input_names=["photos", "sizes"][: len(made.graph.example())],
            output_names=made.graph.outputs,
            opset_version=OPSET,
            dynamo=True,
            custom_translation_table=_translations(),
            verbose=False,
        )
    assert program is not None
    model = program.model
    model.producer_name, model.producer_version, model.graph.name = METADATA, __version__, made.trained.recipe.task
    model.metadata_props[METADATA] = made.facts()
    for part in (model.graph, *model.graph, *(value for node in model.graph for value in node.outputs)):
        part.metadata_props.clear()  # traces with paths of this machine
    return program


def _sign(part: Path, made: WrittenGraph) -> None:
    """Write the facts into a file that onnxruntime's quantization has signed with its own name."""
    import onnx

    model = onnx.load(part)
    model.producer_name, model.producer_version = METADATA, __version__
    onnx.helper.set_model_props(model, {METADATA: made.facts()})
    onnx.save(model, part)


def _translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Operators of torch, and what they are in ONNX."""
    import onnxscript
    from onnx import TensorProto, numpy_helper

    op: Any = onnxscript.opset18

    def constant(values: Any, kind: type) -> Any:
        return op.Constant(value=numpy_helper.from_array(np.array(values, kind)))

    def stable_sort(self: Any, stable: bool = False, dim: int = -1, descending: bool = False) -> Any:
        count = op.Shape(self, start=dim, end=dim + 1 if dim != -1 else None)
        order = {"axis": dim, "largest": int(descending), "sorted": 1}
        if self.dtype.name in ("UINT8", "BOOL"):  # TopK has none of them
            values, locations = op.TopK(op.Cast(self, to=TensorProto.INT32), count, **order)
            return op.Cast(values, to=self.dtype.value), locations
        return op.TopK(self, count, **order)

    def keep(boxes: Any, valid: Any, classes: Any, iou: float, by_class: bool) -> Any:
        """(L, C, 4), (L, C) bool, (L, C) int64 -> (L, C) bool."""
        count = boxes.shape[1]
        enters = op.Unsqueeze(valid, constant([1], np.int64))
        if by_class:
            most = op.ReduceMax(classes, keepdims=0)
            numbers = op.Range(constant(0, np.int64), op.Add(most, constant(1, np.int64)), constant(1, np.int64))
            own = op.Equal(
                op.Unsqueeze(classes, constant([1], np.int64)), op.Unsqueeze(numbers, constant([0, 2], np.int64))
            )
            enters = op.And(enters, own)
        scores = op.Where(enters, constant(np.arange(count, 0, -1)[None, None], np.float32), constant(0, np.float32))
        result = op.NonMaxSuppression(
            boxes, scores, constant([count], np.int64), constant([iou], np.float32), constant([0.5], np.float32)
        )
        locations = op.Gather(result, constant([0, 2], np.int64), axis=1)
        none = op.And(valid, constant(False, np.bool_))
        taken = op.Expand(constant([True], np.bool_), op.Shape(result, start=0, end=1))
        return op.ScatterND(none, locations, taken)

    return {torch.ops.aten.sort.stable: stable_sort, torch.ops.paceline.keep.default: keep}
