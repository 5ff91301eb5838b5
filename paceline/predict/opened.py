"""A verb's first word, opened for answers: a run's folder, a file of weights or ONNX, or the name of published weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paceline import predict
from paceline.config.reporting import Reporter
from paceline.training.named_run import means_weights, named_recipe, weights_of

if TYPE_CHECKING:
    from paceline.predict.photo_predictor import PhotoPredictor


def open_named(path: Path, *, checkpoint: str, workload: str, recipe: str, reporter: Reporter) -> PhotoPredictor:
    """Open what `check_named` let pass; weights in the network that they fit, published ones downloaded first.

    Raises UserError as `paceline.load`, `weights_of` and `named_recipe`.
    """
    if not means_weights(path, recipe):
        return predict.load(path, checkpoint=checkpoint, workload=workload, say=reporter.line)
    from paceline.predict.predictor import Predictor
    from paceline.training.trained import open_alone
    from paceline.weights.weight_file import run_beside

    fitting, given = named_recipe(recipe)
    file = weights_of(path, reporter)
    if (
        path.is_dir() and not fitting and (run := run_beside(file))
    ):  # RUN/checkpoints/best: the run, as --checkpoint has it
        return predict.load(run, checkpoint=file.parent.name, say=reporter.line)
    return Predictor(open_alone(file, recipe=fitting, given=given, reporter=reporter))
