"""A graph that `paceline export` wrote, opened: from photos to its outputs, and to a run's results. Imports no torch but for a .pt2.

Whatever its form, its card (config/model_card.py) says what it takes and gives, and its runner (runtimes.py) does that. Photos are
read as the program beside an ONNX file reads them (onnx_reader.py), which has an evaluation's very pixels.
Letters: n photos   H, W pixels of the input   K classes   D places for objects   S side of a mask
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from paceline._utils.commands import install_command
from paceline._utils.errors import CheckpointError, PacelineError
from paceline._utils.text import abbreviate
from paceline.config.model_card import NCHW, refuse_graph
from paceline.config.recipe import Recipe
from paceline.config.resnet import Exif
from paceline.config.run import RunRecord, read_run, saved_classes
from paceline.data.transforms.exif import read_orientation
from paceline.data.transforms.image_io import Header, broken_image_message, read_header
from paceline.inference.graph.onnx_reader import paste_mask, to_input
from paceline.inference.graph.runtimes import FORMS, GraphSession, Run, TensorSpec
from paceline.inference.image_input import Photo, encode_photo
from paceline.inference.predictor import Predictor, PreparedImage, to_classification, to_detections
from paceline.inference.results import PredictionResult
from paceline.models.registry import WORKLOADS, load_saved_recipe
from paceline.models.workload import WorkloadSpec

KEPT = 5  # classes of an answer, as of a run's
# Outputs by name.
CLASSES, BOXES = ("probabilities",), ("boxes", "scores", "labels")
# Of one photo: probabilities (K,); or boxes (D, 4), scores (D,), labels (D,), and masks (D, S, S) of a network that has them.
Outputs: TypeAlias = tuple[np.ndarray, ...]
# Lines of OpenVINO's errors that name places of its source.
_PLACE = re.compile(r"(Exception from|Check '.*' failed at) ")


class GraphInput(NamedTuple):
    """A photo in a graph's input."""

    pixels: np.ndarray  # (H, W, 3) uint8
    size: tuple[int, int]  # height and width of the photo in it


def make_graph_calls(photos: Sequence[GraphInput], count: int, input: str, sized: bool) -> Iterator[list[np.ndarray]]:
    """A graph's arguments, `count` photos of one shape per call; the last call of a shape is filled up with its last photo.

    input  uint8 or float; sized: whether it takes sizes
    """
    groups = group_by_shape(photos)
    for part in (group[first : first + count] for group in groups for first in range(0, len(group), count)):
        part = [photos[index] for index in part]
        part += part[-1:] * (count - len(part))
        images = np.stack([photo.pixels for photo in part])
        if input == "float":
            images = np.ascontiguousarray(images.transpose(0, 3, 1, 2), np.float32) / np.float32(255)
        yield [images, *([np.array([photo.size for photo in part], np.int64)] if sized else [])]


def run_on_images(run: Run, photos: Sequence[GraphInput], count: int, input: str, sized: bool) -> list[Outputs]:
    """Of each photo, by `run`; the others as `make_graph_calls` takes them."""
    result: dict[int, Outputs] = {}
    for indices in group_by_shape(photos):
        arguments = make_graph_calls([photos[index] for index in indices], count, input, sized)
        result |= zip(indices, (one for outputs in map(run, arguments) for one in zip(*outputs)))
    return [result[index] for index in range(len(photos))]


def group_by_shape(photos: Sequence[GraphInput]) -> list[list[int]]:
    """Numbers of the photos, those of one input shape together."""
    shapes = [photo.pixels.shape for photo in photos]
    return [[index for index, other in enumerate(shapes) if other == shape] for shape in dict.fromkeys(shapes)]


@dataclass(frozen=True)
class GraphModel:
    """What `inference/trained_model.py` has of a run, without torch."""

    folder: Path  # the file
    workload: WorkloadSpec
    recipe: Recipe
    classes: tuple[str, ...]
    checkpoint: str  # the file's name
    step: int
    facts: RunRecord  # of its card
    runner: GraphSession

    @property
    def category_ids(self) -> tuple[int, ...]:
        """Ids of the training set's annotation file, as `classes`; 1..K where the card does not name them."""
        return tuple(self.facts.data.get("category_ids") or range(1, len(self.classes) + 1))

    @property
    def rules(self) -> dict[str, Any]:
        """How a photo becomes its input, as `reader.to_input` takes it."""
        return {**self.facts.graph, "task": self.recipe.task, "input": asdict(self.recipe.input)}

    def reader(self) -> Callable[[bytes, str], tuple[Header, GraphInput]]:
        """A function that makes an encoded photo what the graph takes, an evaluation's very pixels; other processes may call it.

        It takes the photo and its name, and raises DataError, naming it, where it cannot be decoded.
        """
        return partial(_read, self.recipe.input.exif, self.rules)

    def outputs(self, photos: Sequence[GraphInput]) -> list[Outputs]:
        """Of each photo. Raises CheckpointError where the graph fails, or gives what its card does not say."""

        def run(arguments: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
            try:
                outputs = self.runner.run(arguments)
            except Exception as problem:  # the packages' errors are of no common type
                raise CheckpointError(f"{self.folder}: running the graph failed ({_reason(problem)}).") from None
            if not _as_said(outputs, get_output_names(self.recipe), len(arguments[0]), len(self.classes)):
                raise CheckpointError(f"{self.folder}: the outputs do not match the classes and outputs in its metadata.")
            return outputs

        graph = self.facts.graph
        layout = "float" if graph["layout"] == NCHW else "uint8"
        return run_on_images(
            run, photos, graph["batch"] or max(1, len(photos)), layout, self.recipe.task == "instance-segmentation"
        )


def to_network_detections(outputs: Outputs, size: tuple[int, int]) -> np.ndarray:
    """-> (D, 6) float32 as networks here have them: left, top, right, bottom as fractions of the photo, score, class 1..K, or 0.

    size  height and width of the photo in the input
    """
    boxes, scores, labels = outputs[:3]
    extent = np.array([size[1], size[0]] * 2, np.float32)
    return np.column_stack((boxes / extent, scores, labels + 1)).astype(np.float32)


def open_graph(
    path: Path, *, allow_code_execution: bool = False, checkpoint: str = "best", workload: str = "", recipe: str = ""
) -> GraphModel:
    """Open a file with a card. No checkpoint, workload or recipe can be named for one. A .pt2 requires `allow_code_execution`.

    Raises PacelineError for those, without consent, and where the form's package is not installed, CheckpointError for a file that
    is none of ours.
    """
    refuse_graph(path, "load", allow_code_execution=allow_code_execution)
    for flag, value, usual in (
        ("--checkpoint", checkpoint, "best"),
        ("--task-file", workload, ""),
        ("--recipe", recipe, ""),
    ):
        if value != usual:
            raise PacelineError(f"{flag} {value}: not supported for {path}, which contains one model. Remove {flag}.")
    form = FORMS[path.suffix]
    if find_spec(form.package) is None:
        raise PacelineError(f"{path}: requires {form.package}, which is not installed:  {install_command(form.extra)}")
    facts = read_run(path)
    task = facts.recipe.get("task")
    if task not in WORKLOADS:
        raise CheckpointError(f"{path}: task {abbreviate(task)} is not supported. Expected one of {', '.join(WORKLOADS)}.")
    fitting = load_saved_recipe(facts, path, named="", again=str)
    classes, own, graph = saved_classes(facts, path), WORKLOADS[task], facts.graph
    try:
        runner = form.runner(path, graph.get("numbers", ""))
    except PacelineError:
        raise
    except Exception as problem:  # the packages' errors are of no common type
        reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else _reason(problem)
        raise CheckpointError(f"{path}: {form.package} failed to open the file ({reason}).") from None
    shape = graph["height"], graph["width"]
    fits = task == "instance-segmentation" or shape == own.network.eval_shape(fitting, 1, 1)
    if not fits or not _is_ours(runner, graph, fitting):
        raise CheckpointError(f"{path}: inputs or outputs do not match the metadata. Export the model with paceline again.")
    return GraphModel(path, own, fitting, classes, path.name, int(facts.step or 0), facts, runner)


def _is_ours(runner: GraphSession, graph: Mapping[str, Any], recipe: Recipe) -> bool:
    """Whether inputs and outputs, where the file names them, are those of docs/reference/export-formats.md, in the card's sizes."""
    batch, sides = graph.get("batch"), (graph["height"], graph["width"])
    photos = ("float32", (3, *sides)) if graph["layout"] == NCHW else ("uint8", (*sides, 3))
    wanted = {"photos": photos, **({"sizes": ("int64", (2,))} if recipe.task == "instance-segmentation" else {})}
    inputs = [TensorSpec(name, kind, (batch, *shape)) for name, (kind, shape) in wanted.items()]
    outputs = [(name, "int64" if name == "labels" else "float32") for name in get_output_names(recipe)]
    explicit = [(one.name, one.kind) for one in runner.outputs]
    return runner.inputs is None or (list(runner.inputs) == inputs and explicit == outputs)


def get_output_names(recipe: Recipe) -> tuple[str, ...]:
    """Names of a graph's outputs, in its order."""
    names = CLASSES if recipe.task == "classification" else BOXES
    return (*names, "masks") if getattr(recipe.model, "masks", False) else names


def _as_said(outputs: Sequence[np.ndarray], names: Sequence[str], count: int, classes: int) -> bool:
    if len(outputs) != len(names):
        return False
    if names == CLASSES:
        return outputs[0].shape == (count, classes)
    boxes, scores, labels, *masks = outputs
    locations = labels.shape
    return (
        len(locations) == 2
        and locations[0] == count
        and scores.shape == locations
        and boxes.shape == (*locations, 4)
        and labels.max(initial=-1) < classes
        and all(one.ndim == 4 and one.shape[:2] == locations and one.shape[2] == one.shape[3] for one in masks)
    )


def _reason(problem: Exception) -> str:
    """A package's own words, without numbers, file names and lines of its own source."""
    lines = [line for line in str(problem).splitlines() if line and not _PLACE.match(line)] or [type(problem).__name__]
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", lines[0])
    return abbreviate(text, 160).rstrip(". ")


class GraphPredictor(Predictor):
    """As `TorchPredictor`, of a graph."""

    def __init__(self, opened: GraphModel) -> None:
        self.trained: GraphModel = opened

    def reader(self) -> Callable[[Photo], PreparedImage]:
        return partial(_seen, self.trained.reader())

    def _answers(self, part: Sequence[PreparedImage]) -> list[PredictionResult]:
        outputs = self.trained.outputs([GraphInput(seen.pixels, seen.label) for seen in part])
        kind = self._objects if self.finds_objects else self._best
        return [kind(seen, one) for seen, one in zip(part, outputs)]

    def _best(self, seen: PreparedImage, outputs: Outputs) -> PredictionResult:
        scores = np.where(np.isfinite(outputs[0]), outputs[0], -1)
        best = np.argsort(-scores, kind="stable")[:KEPT]
        return to_classification(seen, self.trained, best.tolist(), scores[best].clip(0).astype(float).tolist())

    def _objects(self, seen: PreparedImage, outputs: Outputs) -> PredictionResult:
        masks = outputs[3] if len(outputs) > 3 else None
        draw = None if masks is None else partial(self._drawn, masks, seen)
        return to_detections(seen, self.trained, to_network_detections(outputs, seen.label), draw)

    def _drawn(self, masks: np.ndarray, seen: PreparedImage, indices: np.ndarray, corners: np.ndarray) -> Iterator[bytes]:
        from hotcoco.mask import encode

        settings, h, w = self.trained.recipe.model, seen.header.height, seen.header.width
        for location, box in zip(indices, corners):
            mask = paste_mask(masks[location], box, h, w, settings.detect.mask_threshold, settings.parity.mask_paste)
            yield encode(np.asfortranarray(mask, np.uint8))["counts"]


def _read(exif: Exif, rules: dict[str, Any], data: bytes, name: str) -> tuple[Header, GraphInput]:
    header = read_header(data, name, exif)
    try:
        pixels, size, _ = to_input(data, rules)
    except Exception as reason:  # Pillow's format plugins raise many types where a file is damaged
        raise broken_image_message(name, reason) from reason
    return header, GraphInput(pixels, size)


def _seen(read: Callable[[bytes, str], tuple[Header, GraphInput]], photo: Photo) -> PreparedImage:
    data, name = encode_photo(photo)
    header, (pixels, size) = read(data, name)
    return PreparedImage(photo, header, read_orientation(data), pixels, size)
