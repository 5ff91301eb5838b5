"""Prediction on photos: `paceline.load(RUN).predict("cat.jpg")`, for each task in its own kind of result.

Finding photos, taking any kind of object as one, batches of them through a trained network, reading its outputs, and the folder of
answers belong here; drawing belongs to pages/.

load        open a run or a file -> Predictor: .predict(photos), .stream(photos)
Answer      the best classes of one photo: .names, .scores, .draw(), .save(path)
Found       its objects: .boxes, .names, .scores, .mask(i), .only(classes), .crop(), .draw(), .to_coco(image_id), .to_supervision()
Unreadable  a photo without an answer, in a stream
Video       a video's frames, for a stream
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.config.card import has_card
from paceline.config.onnx_file import GRAPHS, refuse_graph
from paceline.config.reporting import Lines
from paceline.config.run import read_run, refuse_synthetic

if TYPE_CHECKING:
    from paceline.predict.folders import Unreadable
    from paceline.predict.photo_predictor import PhotoPredictor
    from paceline.predict.predictor import Predictor
    from paceline.predict.results import Answer, Found, Result
    from paceline.predict.video import Frame, Video

__all__ = ["Answer", "Found", "Frame", "Predictor", "Result", "Unreadable", "Video", "load"]

# Where each of them lies; loaded when it is asked for, because some load torch.
_FILES = {
    "Answer": "results",
    "Found": "results",
    "Frame": "video",
    "Predictor": "predictor",
    "Result": "results",
    "Unreadable": "folders",
    "Video": "video",
}


def load(
    run: str | Path, *, checkpoint: str = "best", workload: str = "", say: Callable[[str], object] = warnings.warn
) -> PhotoPredictor:
    """Open a run folder, a file of weights, or an ONNX file, for prediction: `paceline.load("runs/first").predict("cat.jpg")`.

    run         the folder that `paceline.train` named in its Ending, or `paceline train --out RUN`; or a file that `paceline
                export` wrote, .safetensors or .onnx (which needs no torch); or a file of weights, anybody's, whose network is found
                from it (docs/weights.md)
    checkpoint  best, last or step-N; where no evaluation has chosen a best one yet, the last one is taken
    workload    of a run whose workload is your own, its file: "./file.py:name", which is run as Python
    say         takes a line on that; a warning unless another function is given
    return      a predictor: .predict(photos), .stream(photos), .classes
    Raises UserError for a folder that is no run and for a run on synthetic batches, CheckpointError (a UserError) for a
    checkpoint that is missing or damaged, and for a file that no network of ours answers with.
    """
    if Path(run).is_file() and Path(run).suffix in GRAPHS:
        refuse_graph(Path(run), "load")
        from paceline.predict.onnx_model import open_onnx
        from paceline.predict.onnx_predictor import OnnxPredictor

        return OnnxPredictor(open_onnx(Path(run), checkpoint=checkpoint, workload=workload))
    if Path(run).is_file() and Path(run).suffix != ".json" and not has_card(Path(run)):
        from paceline.predict.predictor import Predictor
        from paceline.training.trained import open_alone

        return Predictor(open_alone(Path(run), reporter=Lines(say)))
    refuse_synthetic(read_run(Path(run)), Path(run), "answer with")
    # Packages that load torch when they are used, and not before.
    from paceline.predict.predictor import Predictor
    from paceline.training.trained import open_trained

    return Predictor(open_trained(Path(run), checkpoint=checkpoint, workload=workload, reporter=Lines(say)))


def __getattr__(name: str) -> Any:
    if name in _FILES:
        return getattr(import_module(f"{__name__}.{_FILES[name]}"), name)
    raise AttributeError(f"module 'paceline.predict' has no attribute {name!r}")
