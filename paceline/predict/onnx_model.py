"""An ONNX file that `paceline export` wrote, opened: from photos in its input to its outputs. Imports no torch.

Whoever made the file, nothing in it runs but ONNX's own operators: onnxruntime knows no others unless a library is handed to it,
and numbers that lie in other files are not read.
Letters: n photos   H, W pixels of the input   K classes   D places for objects   S side of a mask
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from paceline.config.card import NCHW
from paceline.config.commands import to_install
from paceline.config.errors import CheckpointError, UserError
from paceline.config.plain_file import read_plain
from paceline.config.printable import short
from paceline.config.recipe import Recipe
from paceline.config.run import read_run, saved_classes
from paceline.predict.reader import as_input
from paceline.store.header import Header, read_header, undecodable
from paceline.tasks.workload import Workload
from paceline.tasks.workloads import WORKLOADS, saved_recipe

# Outputs by name.
CLASSES, BOXES = ("probabilities",), ("boxes", "scores", "labels")
MOST_BYTES = 2 << 30  # a file of Protocol Buffers has no more
# Of one photo: probabilities (K,); or boxes (D, 4), scores (D,), labels (D,), and masks (D, S, S) of a network that has them.
Outputs: TypeAlias = tuple[np.ndarray, ...]


class Input(NamedTuple):
    """A photo in a graph's input."""

    pixels: np.ndarray  # (H, W, 3) uint8
    size: tuple[int, int]  # height and width of the photo in it


def calls(photos: Sequence[Input], count: int, input: str, sized: bool) -> Iterator[list[np.ndarray]]:
    """A graph's arguments, `count` photos a call; the last call is filled up with its last photo.

    input  uint8 or float; sized: whether it takes sizes
    """
    for first in range(0, len(photos), count):
        part = list(photos[first : first + count])
        part += part[-1:] * (count - len(part))
        images = np.stack([photo.pixels for photo in part])
        if input == "float":
            images = np.ascontiguousarray(images.transpose(0, 3, 1, 2), np.float32) / np.float32(255)
        yield [images, *([np.array([photo.size for photo in part], np.int64)] if sized else [])]


@dataclass(frozen=True)
class OnnxModel:
    """What `training/trained.py` has of a run, without torch."""

    folder: Path  # the file
    workload: Workload
    recipe: Recipe
    classes: tuple[str, ...]
    checkpoint: str  # the file's name
    step: int
    facts: Mapping[str, Any]  # of its card
    session: Any  # onnxruntime's

    @property
    def category_ids(self) -> tuple[int, ...]:
        """Ids of the training set's annotation file, as `classes`; 1..K where the card does not name them."""
        return tuple(self.facts["data"].get("category_ids") or range(1, len(self.classes) + 1))

    @property
    def rules(self) -> dict[str, Any]:
        """How a photo becomes its input, as `reader.as_input` takes it."""
        return {**self.facts["graph"], "task": self.recipe.task, "input": asdict(self.recipe.input)}

    def read(self, data: bytes, name: str) -> tuple[Header, Input]:
        """An encoded photo as the graph takes it: an evaluation's very pixels. Raises DataError where it cannot be decoded.

        name  the file, for the message
        """
        header = read_header(data, name, self.recipe.input.exif)
        try:
            pixels, size, _ = as_input(data, self.rules)
        except Exception as reason:  # Pillow's format plugins raise many types where a file is damaged
            raise undecodable(name, reason) from reason
        return header, Input(pixels, size)

    def outputs(self, photos: Sequence[Input]) -> list[Outputs]:
        """Of each photo. Raises CheckpointError where the graph fails, or gives what its card does not say."""
        graph, found = self.facts["graph"], []
        names = [one.name for one in self.session.get_inputs()]
        count = graph["batch"] or max(1, len(photos))
        layout = "float" if graph["layout"] == NCHW else "uint8"
        for arguments in calls(photos, count, layout, sized=len(names) > 1):
            try:
                outputs = self.session.run(None, dict(zip(names, arguments)))
            except Exception as problem:  # onnxruntime's errors are of no common type
                raise CheckpointError(f"{self.folder}: its graph fails ({_reason(problem)}).") from None
            if not _as_said(outputs, count, len(self.classes)):
                raise CheckpointError(f"{self.folder}: its answers are not for the classes and outputs that it names.")
            found += list(zip(*outputs))
        return found[: len(photos)]


def detections(outputs: Outputs, size: tuple[int, int]) -> np.ndarray:
    """-> (D, 6) float32 as networks here have them: left, top, right, bottom as fractions of the photo, score, class 1..K, or 0.

    size  height and width of the photo in the input
    """
    boxes, scores, labels = outputs[:3]
    extent = np.array([size[1], size[0]] * 2, np.float32)
    return np.column_stack((boxes / extent, scores, labels + 1)).astype(np.float32)


def open_onnx(path: Path, *, checkpoint: str = "best", workload: str = "") -> OnnxModel:
    """Open a file with a card. Neither checkpoint nor workload can be named for one.

    Raises UserError for those and where onnxruntime is not installed, CheckpointError for a file that is none of ours.
    """
    for flag, value, usual in (("--checkpoint", checkpoint, "best"), ("--workload", workload, "")):
        if value != usual:
            raise UserError(f"{flag} {value}: for a run, and {path} holds one model, whole. Leave it away.")
    if find_spec("onnxruntime") is None:
        raise UserError(f"{path}: is read by onnxruntime, which is not installed. {to_install('export')}")
    facts = read_run(path)
    task = facts["recipe"].get("task")
    if task not in WORKLOADS:
        raise CheckpointError(f"{path}: its task {short(task)} is not one of ours ({', '.join(WORKLOADS)}).")
    recipe = saved_recipe(facts, path, named="", again=str)
    classes, own, session = saved_classes(facts, path), WORKLOADS[task], _session(path)
    graph = facts["graph"]
    shape = graph["height"], graph["width"]
    fits = task == "maskrcnn" or shape == own.eval_shape(recipe, 1, 1)
    if not fits or not _is_ours(session, graph, recipe):
        raise CheckpointError(
            f"{path}: it does not take and give what its card says; it was not written by `paceline export`."
        )
    return OnnxModel(path, own, recipe, classes, path.name, int(facts.get("step", 0)), facts, session)


def _session(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is raised all the same
    # Numbers in other files are looked for below this, where nothing can be.
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.devnull)
    try:
        content = read_plain(path, MOST_BYTES)
    except OSError as problem:
        raise CheckpointError(f"{path}: cannot be read ({problem.strerror}).") from None
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as problem:  # onnxruntime's errors are of no common type
        raise CheckpointError(f"{path}: onnxruntime does not open it ({_reason(problem)}).") from None


def _is_ours(session: Any, graph: Mapping[str, Any], recipe: Recipe) -> bool:
    """Whether inputs and outputs are those of docs/export.md, in the card's sizes."""
    shape = [graph["height"], graph["width"]]
    photos = ("tensor(float)", [3, *shape]) if graph["layout"] == NCHW else ("tensor(uint8)", [*shape, 3])
    wanted = {"photos": photos, **({"sizes": ("tensor(int64)", [2])} if recipe.task == "maskrcnn" else {})}
    inputs = {one.name: (one.type, list(one.shape[1:])) for one in session.get_inputs()}
    of_photos = [one.shape[0] for one in session.get_inputs() if one.shape]
    outputs = [(one.name, one.type) for one in session.get_outputs()]
    names = CLASSES if recipe.task == "classification" else BOXES
    names = (*names, "masks") if getattr(recipe.model, "masks", False) else names
    batch = graph.get("batch")
    return (
        inputs == wanted
        and next(iter(inputs)) == "photos"
        and all(count == batch if batch else not isinstance(count, int) for count in of_photos)
        and outputs == [(name, "tensor(int64)" if name == "labels" else "tensor(float)") for name in names]
    )


def _as_said(outputs: Sequence[np.ndarray], count: int, classes: int) -> bool:
    if len(outputs) == 1:
        return outputs[0].shape == (count, classes)
    boxes, scores, labels, *masks = outputs
    places = labels.shape
    return (
        len(places) == 2
        and places[0] == count
        and scores.shape == places
        and boxes.shape == (*places, 4)
        and labels.max(initial=-1) < classes
        and all(one.ndim == 4 and one.shape[:2] == places and one.shape[2] == one.shape[3] for one in masks)
    )


def _reason(problem: Exception) -> str:
    """onnxruntime's words, without numbers, file names and lines of its own source."""
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(problem).partition("\n")[0])
    return short(text, 160).rstrip(". ")
