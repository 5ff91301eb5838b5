"""Prediction on photos: `paceline.load(RUN).predict(["cat.jpg"])`, for each task in its own kind of answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from paceline.predict.boxes import BoxPredictor, Found
from paceline.predict.classes import Answer, ClassPredictor
from paceline.predict.instances import FoundObjects, InstancePredictor
from paceline.predict.photos import Photo, find_photos
from paceline.trained import Trained, open_trained

__all__ = [
    "Answer",
    "BoxPredictor",
    "ClassPredictor",
    "Found",
    "FoundObjects",
    "InstancePredictor",
    "Photo",
    "find_photos",
    "load",
]

Predictor = ClassPredictor | BoxPredictor | InstancePredictor
# By the recipe's task.
PREDICTORS: dict[str, Callable[[Trained], Predictor]] = {
    "classification": ClassPredictor,
    "ssd": BoxPredictor,
    "maskrcnn": InstancePredictor,
}


def load(run: str | Path, *, checkpoint: str = "best") -> Predictor:
    """Open a run folder for prediction.

    checkpoint  best, last or step-N
    Raises UserError for a folder that is no run, CheckpointError for a damaged checkpoint.
    """
    trained = open_trained(Path(run), checkpoint=checkpoint)
    return PREDICTORS[trained.recipe.task](trained)
