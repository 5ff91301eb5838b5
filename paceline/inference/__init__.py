"""Prediction on photos: `paceline.load(RUN).predict("cat.jpg")`, for each task in its own kind of result.

Finding photos, taking any kind of object as one, batches of them through a trained network, reading its outputs, and the folder of
answers belong here; drawing/ draws them.

load                  open a run or a file and return a Predictor: .predict(photos), .stream(photos)
ClassificationResult  the best classes of one image: .names, .scores, .draw(), .save(path)
DetectionResult       its objects: .boxes, .names, .scores, .mask(i), .only(classes), .crop(), .draw(), .to_coco(image_id),
                      .to_supervision()
FailedImage           an image that could not be read, in a stream
Video                 a video's frames, for a stream
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline._utils.reporter import Lines
from paceline.config.model_card import GRAPHS
from paceline.config.run import read_run, refuse_synthetic

if TYPE_CHECKING:
    from paceline.inference.image_paths import FailedImage
    from paceline.inference.predictor import Predictor
    from paceline.inference.results import ClassificationResult, DetectionResult, PredictionResult
    from paceline.inference.video import Frame, Video

__all__ = [
    "ClassificationResult",
    "DetectionResult",
    "FailedImage",
    "Frame",
    "PredictionResult",
    "Predictor",
    "Video",
    "load",
]

# Where each of them lies; loaded when it is asked for, because some load torch.
_FILES = {
    "ClassificationResult": "results",
    "DetectionResult": "results",
    "FailedImage": "image_paths",
    "Frame": "video",
    "PredictionResult": "results",
    "Predictor": "predictor",
    "Video": "video",
}


def load(
    run: str | Path,
    *,
    checkpoint: str = "best",
    workload: str = "",
    say: Callable[[str], object] = warnings.warn,
    recipe: str = "",
    trust: bool = False,
) -> Predictor:
    """Open a run folder, a file of weights, or a graph, for prediction: `paceline.load("runs/first").predict("cat.jpg")`.

    run         the folder that `paceline.train` reported in its TrainResult, or `paceline train --out RUN`; or a file that `paceline
                export` wrote, .safetensors, .onnx or .xml (which need no torch), or .pt2; or weights, anybody's, a file or the
                name of published ones (docs/weights.md)
    checkpoint  best, last or step-N; where no evaluation has chosen a best one yet, the last one is taken
    workload    of a run whose workload is your own, its file: "./file.py:name", which is run as Python
    say         takes a line on that; a warning unless another function is given
    recipe      of weights: the recipe that they fit, with flags; "": found from them
    trust       of a .pt2: whoever made it may run code here, which opening one can do
    return      a predictor: .predict(photos), .stream(photos), .classes
    Raises PacelineError for a folder that is no run and for a run on synthetic batches, CheckpointError (a PacelineError) for a
    checkpoint that is missing or damaged, and for a file that no network of ours answers with.
    """
    path, reporter = Path(run), Lines(say)
    if path.suffix in GRAPHS and path.is_file():
        from paceline.inference.graph.graph_model import GraphPredictor, open_graph

        return GraphPredictor(open_graph(path, trust=trust, checkpoint=checkpoint, workload=workload, recipe=recipe))
    from paceline.training.run_arguments import is_weights_argument, parse_named_recipe, resolve_weights

    weights = is_weights_argument(path, recipe)
    if not weights:
        refuse_synthetic(read_run(path), path, "answer with")
    # Packages that load torch when they are used, and not before.
    from paceline.inference.trained_model import TorchPredictor, open_trained, open_weights_only
    from paceline.models.weights.weight_file import find_run_folder

    if weights:
        fitting, explicit = parse_named_recipe(recipe)
        file = resolve_weights(path, reporter)
        beside = find_run_folder(file) if path.is_dir() and not fitting else None
        if not beside:
            return TorchPredictor(open_weights_only(file, recipe=fitting, explicit=explicit, reporter=reporter))
        path, checkpoint = beside, file.parent.name  # RUN/checkpoints/best: the run, as --checkpoint has it
        refuse_synthetic(read_run(path), path, "answer with")
    return TorchPredictor(open_trained(path, checkpoint=checkpoint, workload=workload, reporter=reporter))


def __getattr__(name: str) -> Any:
    if name in _FILES:
        return getattr(import_module(f"{__name__}.{_FILES[name]}"), name)
    raise AttributeError(f"module 'paceline.inference' has no attribute {name!r}")
