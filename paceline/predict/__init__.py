"""Prediction on photos: `paceline.load(RUN).predict("cat.jpg")`, for each task in its own kind of result."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.predict.boxes import BoxPredictor
    from paceline.predict.classes import ClassPredictor
    from paceline.predict.instances import InstancePredictor

__all__ = ["load"]


def load(
    run: str | Path, *, checkpoint: str = "best", say: Callable[[str], object] = warnings.warn
) -> ClassPredictor | BoxPredictor | InstancePredictor:
    """Open a run folder for prediction: `paceline.load("runs/first").predict("cat.jpg")`.

    run         the folder that `paceline.train` named in its Ending, or `paceline train --out RUN`
    checkpoint  best, last or step-N; where no evaluation has chosen a best one yet, the last one is taken
    say         told that in words; a warning unless another is named
    return      a predictor: .predict(photos), .stream(photos), .classes
    Raises UserError for a folder that is no run, CheckpointError (a UserError) for a checkpoint that is missing or damaged.
    """
    from paceline.trained import open_trained  # a package that loads torch when it is used, and not before

    trained = open_trained(Path(run), checkpoint=checkpoint, say=say)
    if trained.recipe.task == "classification":
        from paceline.predict.classes import ClassPredictor

        return ClassPredictor(trained)
    if trained.recipe.task == "ssd":
        from paceline.predict.boxes import BoxPredictor

        return BoxPredictor(trained)
    from paceline.predict.instances import InstancePredictor

    return InstancePredictor(trained)
