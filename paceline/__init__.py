"""Train image classifiers, object detectors, and instance-segmentation models.

Importing this package has no side effects and does not import torch. ``train`` and ``load`` import it when you call them.

Example::

    import paceline

    result = paceline.train("classify-demo", data="photos", output_dir="runs/first")
    predictor = paceline.load(result.run_dir)
    predictor.predict("cat.jpg").draw().show()

Functions:
    train: Train a recipe and return a `TrainResult`. `TrainOptions` lists its keyword arguments.
    load: Open a run, a weight file, or an exported graph, and return a `Predictor`.

Results of a `Predictor`:
    ClassificationResult: The most probable classes of an image.
    DetectionResult: The objects in an image, with boxes, class indices, class names, scores, and masks.
    FailedImage: An image that could not be read.

Input of a `Predictor`:
    Video: The frames of a video file or a camera. Each item is a `Frame`.

Errors:
    PacelineError: Base class of all errors that you can fix. The message states the problem and the fix.
    RecipeError, DataError, CheckpointError: Subclasses of `PacelineError`.

``load`` logs its messages to ``logging.getLogger("paceline")``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from paceline._utils.version import __version__

if TYPE_CHECKING:
    from paceline._utils.errors import CheckpointError, DataError, PacelineError, RecipeError
    from paceline.api import TrainOptions, train
    from paceline.inference import load
    from paceline.inference.image_paths import FailedImage
    from paceline.inference.predictor import Predictor
    from paceline.inference.results import ClassificationResult, DetectionResult, PredictionResult
    from paceline.inference.video import Frame, Video
    from paceline.training.eval_history import TrainResult

__all__ = [
    "CheckpointError", "ClassificationResult", "DataError", "DetectionResult", "FailedImage", "Frame", "PacelineError",
    "PredictionResult", "Predictor", "RecipeError", "TrainOptions", "TrainResult", "Video", "__version__", "load", "train",
]  # fmt: skip

# Module -> its public names. A module is imported when one of its names is used: most of them import torch or numpy.
_MODULES = {
    "_utils.errors": ("CheckpointError", "DataError", "PacelineError", "RecipeError"),
    "api": ("TrainOptions", "train"),
    "inference": ("load",),
    "inference.image_paths": ("FailedImage",),
    "inference.predictor": ("Predictor",),
    "inference.results": ("ClassificationResult", "DetectionResult", "PredictionResult"),
    "inference.video": ("Frame", "Video"),
    "training.eval_history": ("TrainResult",),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"paceline.{module}"), name)
    raise AttributeError(f"module 'paceline' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
