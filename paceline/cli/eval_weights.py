"""`paceline eval WEIGHTS`: a file of weights in the network that it fits, for the classes of the data that it is scored on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline._utils.commands import format_command
from paceline._utils.errors import CheckpointError, PacelineError
from paceline._utils.text import join_names
from paceline.cli.printing import Printer
from paceline.config.recipe import Recipe
from paceline.models.weights.classes import count_class_rows
from paceline.models.weights.download import is_published
from paceline.models.weights.identify import apply_author_settings, find_matching_recipes, identify_network
from paceline.models.weights.load import is_counter, map_class_rows
from paceline.models.weights.weight_file import open_weights
from paceline.training.run_arguments import resolve_weights

if TYPE_CHECKING:
    from torch import nn

    from paceline.models.task import Task


def match_weights(
    printer: Printer, weights: Path, requested: Mapping[str, Recipe], explicit: Collection[str], world: int
) -> tuple[Path, str, Recipe]:
    """-> the file to read, the recipe of its network in words, and that recipe.

    requested  the recipe that was named, by its name, and `explicit` its fields that were set by hand; {} = found from the file
    world   number of ranks
    Raises PacelineError for published weights that several ranks would bring at once, CheckpointError as `identify_network`.
    """
    if world > 1 and not weights.exists() and is_published(str(weights)):
        bring = format_command("weights", "download", str(weights), "--output-dir", "DIR")
        raise PacelineError(f"{weights}: multiple ranks must not download it. Download it once, and use the file:  {bring}")
    path = resolve_weights(weights, printer)
    file = open_weights(path)
    # A named recipe is built for the data's classes, whatever the file's are; what it lacks is found then.
    fit = (
        next(find_matching_recipes(file, apply_author_settings(file, requested, explicit), explicit))
        if requested
        else identify_network(file, {})
    )
    return path, fit.called, fit.recipe


def load_weighted_network(task: Task, path: Path, called: str, device: Any) -> nn.Module:
    """The task's network with a file's weights, in eval mode.

    Raises CheckpointError for weights that leave a part of the network as it was drawn: a score would mean nothing.
    """
    model, file = task.build(device), open_weights(path)
    report = task.load_weights(model, path)
    lacking = [name for name in (*report.missing, *report.reinitialised) if not is_counter(name)]
    rows = map_class_rows(file, task.data.labels(), len(file.classes))
    new = [name for name, index in zip(rows.ours, rows.places) if index is None] if rows is not None and rows.any else []
    if lacking or new:
        what = f"{join_names(new, 3)}" if new else f"{len(lacking)} tensors of {called} ({join_names(lacking, 2)})"
        count = count_class_rows(file.ours.tensors) or len(file.classes)
        raise CheckpointError(
            f"{path}: {f'has {count:,} classes' if count else 'its classes are unknown'}, the dataset {len(task.data.classes):,}. "
            f"Missing in the file: {what}. Use the dataset or the --recipe that it was trained for."
        )
    return model.eval()


def describe_class_source(path: Path, task: Task) -> str:
    """Whose classes the rows of the heads are taken for, in words."""
    if open_weights(path).classes:
        return f"class order, by the names in the weights: {join_names(task.data.classes, 12)}"
    return f"class order of the dataset, because the weights have no class names: {join_names(task.data.classes, 12)}"
