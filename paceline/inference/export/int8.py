"""--precision int8: an ONNX file's network in whole numbers of eight bits, by onnxruntime's static quantization; and what that costs.

Ranges of the numbers inside come from training photos; weights have a scale for each channel and seven bits, so that no processor's
sums overflow. Layers whose outputs are scores and shifts of boxes stay in float32, and so do decoding, suppression and the last layer
of masks. Nobody knows beforehand what is lost: the evaluation's own scorer reads the whole validation set through both files.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from paceline._utils.errors import DataError, PacelineError
from paceline._utils.formatting import format_metric_name
from paceline._utils.text import format_count
from paceline.config.run import FOLD, RunOptions, from_json, relative_data
from paceline.distributed.comm.launcher import read_launch
from paceline.distributed.comm.world import open_distributed
from paceline.inference.export.graph import Graph
from paceline.inference.export.verification import load_sample_images, select_named_images
from paceline.inference.graph.evaluate import evaluate_file
from paceline.inference.graph.graph_model import GraphInput, make_graph_calls, open_graph
from paceline.inference.image_input import Photo
from paceline.inference.trained_model import TrainedModel
from paceline.models.datamodule import select_evenly
from paceline.models.task import Task
from paceline.training.open_data import open_task

if TYPE_CHECKING:
    from paceline.inference.export.formats import ExportOptions

LAYERS = ("Conv", "Gemm")
# What computes in eight bits too where all that it takes does.
BETWEEN = ("Relu", "Clip", "Add", "MaxPool", "GlobalAveragePool", "Resize")
# What takes the outputs of a network's last layers, and of no other.
DECODES = ("Reshape", "Transpose", "Softmax", "Slice", "Split", "Squeeze", "Unsqueeze", "Cast", "Gather")
METRICS = ("top1", "box_ap", "mask_ap")
PHOTOS_A_CALL = 8  # where the file takes any number


class CalibrationData:
    """A run's data, for the ranges and for the loss."""

    def __init__(self, trained: TrainedModel, flags: ExportOptions) -> None:
        """Raises PacelineError where there are no photos to calibrate on, or none to score; see `--verify-images 0`."""
        if flags.calibration_images < 1:
            raise PacelineError(f"--calibration-images {flags.calibration_images}: must be 1 or more.")
        self.trained, self.flags = trained, flags
        self.task = None if flags.verify_dir and not flags.verify_images else _task(trained)

    def photos(self) -> Iterator[Photo]:
        """Up to `flags.calibrate` of --verify-dir, else of the photos that the run learned from, evenly spread."""
        if self.flags.verify_dir:
            yield from select_named_images(self.flags.verify_dir, self.flags.calibration_images)
        elif self.task is not None:
            numbers = self.task.data.train_numbers[
                select_evenly(self.task.data.train_images, self.flags.calibration_images)
            ]
            yield from (self.task.data.train_index.read(int(number)) for number in numbers)

    def inputs(self, graph: Graph) -> list[GraphInput]:
        """`photos` as the graph takes them. Raises PacelineError without a readable one."""
        return load_sample_images(self.trained, self.flags, graph.shape if self.flags.image_size else None, self.photos())

    def quantize(self, graph: Graph, photos: list[GraphInput], floats: Path, out: Path) -> str:
        """Write `out`, the ONNX file `floats` in eight bits by the ranges in these photos -> a line about it."""
        import onnxruntime
        from onnx import load
        from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

        runtime: Any = onnxruntime
        folding = runtime.SessionOptions()
        folding.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        folding.optimized_model_filepath = str(out)
        # Weights that are multiplied by their normalization's scale become constants: others have no int8.
        runtime.InferenceSession(floats, folding, providers=["CPUExecutionProvider"])
        model = load(out)
        chosen = list_int8_nodes(model.graph)
        count = min(len(photos), PHOTOS_A_CALL) if graph.any_batch else self.flags.batch_size
        names = [one.name for one in model.graph.input]

        class Reader(CalibrationDataReader):
            def __init__(self) -> None:
                self.left = make_graph_calls(photos, count, graph.flags.input_dtype, sized=len(names) > 1)

            def get_next(self) -> Any:
                arguments = next(self.left, None)
                return arguments and dict(zip(names, arguments))

        before = logging.root.manager.disable
        logging.disable(logging.WARNING)  # advice to optimize a graph that is folded already
        try:
            # It also computes scales of what is not chosen, and decoding has -inf for places that are empty.
            with np.errstate(invalid="ignore"):
                quantize_static(
                    model, out, Reader(), op_types_to_quantize=[*LAYERS, *BETWEEN], nodes_to_quantize=chosen, per_channel=True,
                    reduce_range=True, activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
                )  # fmt: skip
        finally:
            logging.disable(before)
        written = load(out).graph
        unpacked = {value for node in written.node if node.op_type == "DequantizeLinear" for value in node.output}
        layers = [node.input[1] in unpacked for node in written.node if node.op_type in LAYERS]
        return f"{sum(layers)} of {len(layers)} layers in int8, calibrated on {format_count(len(photos), 'image')}"

    def loss(self, files: Mapping[str, Path]) -> Iterator[str]:
        """What the whole validation set scores by two files, by name, and the difference; a line a metric."""
        if not self.flags.verify_images or self.task is None:
            yield "the accuracy loss was not measured, because of --verify-images 0"
            return
        (one, before), (other, after) = ((name, score_export(file, self.task)) for name, file in files.items())
        photos = format_count(self.task.data.val_images, "validation image")
        for name in METRICS:
            if before.get(name, -1) >= 0:  # COCO's -1: there are no objects
                was, now = 100 * before[name], 100 * after[name]
                change = f"{abs(was - now):.2f} {'lost' if was >= now else 'gained'}"
                yield f"{format_metric_name(name)} on {photos}, in percent: {was:.2f} in {one}, {now:.2f} in {other}: {change}"


def list_int8_nodes(graph: Any) -> list[str]:
    """The names of an ONNX graph's nodes that are computed so; they come in the order of computation."""
    takers: dict[str, list[str]] = {}
    for node in graph.node:
        for value in node.input:
            takers.setdefault(value, []).append(node.op_type)
    constants = {"", *(one.name for one in graph.initializer)}
    names, made = [], set()
    for node in graph.node:
        if node.op_type in LAYERS:
            chosen = not set(takers.get(node.output[0], DECODES)) & set(DECODES)
        else:
            chosen = node.op_type in BETWEEN and all(value in made or value in constants for value in node.input)
        if chosen:
            names.append(node.name)
            made |= set(node.output)
    return names


def _task(trained: TrainedModel) -> Task:
    """The run's data as it was evaluated on them."""
    facts = trained.facts
    try:
        if not (data := relative_data(facts)):
            raise DataError("run.json does not record a dataset")
        saved = from_json(RunOptions(), facts.options, f"{trained.folder}: options")
        kept = ("max_train_images", "max_val_images", *FOLD)
        options = RunOptions(data=data, **{name: getattr(saved, name) for name in kept})
        with open_distributed(read_launch({}), device=torch.device("cpu")) as world:
            task = open_task(trained.recipe, options, world)
        if tuple(task.data.classes) != trained.classes:
            raise DataError("the dataset has other classes now")
    except PacelineError as problem:
        raise PacelineError(
            f"{trained.folder}: int8 requires images for calibration, and the validation set of the run to measure the accuracy loss. "
            f"They were not found ({str(problem).splitlines()[0].rstrip('.')}). To calibrate on other images without a measurement, "
            "add --verify-dir DIR --verify-images 0"
        ) from None
    return task


def score_export(file: Path, task: Task) -> Mapping[str, float]:
    """The metrics of the task's validation set, scored through a file."""
    with open_distributed(read_launch({}), device=torch.device("cpu")) as world:
        return evaluate_file(
            open_graph(file), task, key=f"export/{file.name}", batch=PHOTOS_A_CALL, world=world, passed=lambda _: None
        ).metrics
