"""Predict on images.

`paceline.load` opens a run and returns a `Predictor`. The class of its results depends on the task. This package finds and reads
images, runs a trained network or an exported graph on batches of them, and writes the results. The subpackage drawing/ draws results.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paceline._utils.reporter import LOGGED, Reporter
from paceline.config.model_card import GRAPHS
from paceline.config.run import read_run, refuse_synthetic

if TYPE_CHECKING:
    from paceline.inference.predictor import Predictor


def load(
    run: str | Path, *, checkpoint: str = "best", task_file: str = "", recipe: str = "", allow_code_execution: bool = False
) -> Predictor:
    """Open a run, a weight file, or an exported graph for prediction.

    Messages go to ``logging.getLogger("paceline")``. Examples are a warning if the run has no best checkpoint yet, and the network
    that a weight file was identified as (level INFO).

    Example::

        predictor = paceline.load("runs/first")
        result = predictor.predict("cat.jpg")
        print(result.summary())
        result.draw().save("answer.jpg")

    Args:
        run (str or Path): one of:

            - a run folder, finished or not, such as `TrainResult.run_dir` or RUN of ``paceline train --output-dir RUN``
            - a file that ``paceline export`` wrote: .safetensors, .onnx, .xml, or .pt2. The formats .onnx and .xml do not require
              torch.
            - a weight file from another project, or the name of published weights (see docs/how-to/use-pretrained-weights.md)
        checkpoint (str): ``"best"``, ``"last"``, or ``"step-N"``. If no evaluation has selected a best checkpoint yet, the last one
            is opened. It applies only to runs, because a file contains one model. Default: ``"best"``
        task_file (str): file with the custom task of a run: ``"./file.py:name"``. The file is executed as Python code.
        recipe (str): recipe of a weight file, with flags if needed, such as ``"resnet50 --input.eval-resize-size 235"``.
            Default: identified from the tensors
        allow_code_execution (bool): must be True to open a .pt2 file. Such a file can execute arbitrary code when it is opened, so
            open it only if you trust its source. Default: False

    Returns:
        Predictor: call `Predictor.predict` or `Predictor.predict_iter` on images.

    Raises:
        PacelineError: if `run` is not a run, was trained on synthetic batches, or requires a package that is not installed.
        CheckpointError: if a checkpoint is missing or damaged, or if the file does not match a network of paceline.
    """
    options = {"checkpoint": checkpoint, "workload": task_file, "recipe": recipe}
    return open_predictor(Path(run), LOGGED, allow_code_execution=allow_code_execution, **options)


def open_predictor(
    path: Path, reporter: Reporter, *, checkpoint: str, workload: str, recipe: str, allow_code_execution: bool = False
) -> Predictor:
    """Open what `load` accepts, for commands. Messages go to `reporter`.

    `load` describes the other arguments and the errors.
    """
    if path.suffix in GRAPHS and path.is_file():
        from paceline.inference.graph.graph_model import GraphPredictor, open_graph

        options = {"checkpoint": checkpoint, "workload": workload, "recipe": recipe}
        return GraphPredictor(open_graph(path, allow_code_execution=allow_code_execution, **options))
    from paceline.training.run_arguments import is_weights_argument, parse_named_recipe, resolve_weights

    weights = is_weights_argument(path, recipe)
    if not weights:
        refuse_synthetic(read_run(path), path, "predict with")
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
        refuse_synthetic(read_run(path), path, "predict with")
    return TorchPredictor(open_trained(path, checkpoint=checkpoint, workload=workload, reporter=reporter))
