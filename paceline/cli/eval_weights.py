"""`paceline eval WEIGHTS`: a file of weights in the network that it fits, for the classes of the data that it is scored on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline._utils.commands import command
from paceline._utils.errors import CheckpointError, UserError
from paceline._utils.text import some
from paceline.cli.printing import Printer
from paceline.config.recipe import Recipe
from paceline.models.weights.classes import row_count
from paceline.models.weights.download import is_published
from paceline.models.weights.identify import answering, fits, with_rules
from paceline.models.weights.load import class_rows_of, is_counter
from paceline.models.weights.weight_file import open_weights
from paceline.training.run_arguments import weights_of

if TYPE_CHECKING:
    from torch import nn

    from paceline.models.task import Task


def fitted(
    printer: Printer, weights: Path, asked: Mapping[str, Recipe], given: Collection[str], world: int
) -> tuple[Path, str, Recipe]:
    """-> the file to read, the recipe of its network in words, and that recipe.

    asked   the recipe that was named, by its name, and `given` its fields that were set by hand; {} = found from the file
    world   number of ranks
    Raises UserError for published weights that several ranks would bring at once, CheckpointError as `answering`.
    """
    if world > 1 and not weights.exists() and is_published(str(weights)):
        bring = command("weights", "get", str(weights), "--out", "DIR")
        raise UserError(f"{weights}: bring it first, once for all ranks, and name its file:  {bring}")
    path = weights_of(weights, printer)
    file = open_weights(path)
    # A named recipe is built for the data's classes, whatever the file's are; what it lacks is found then.
    fit = next(fits(file, with_rules(file, asked, given), given)) if asked else answering(file, {})
    return path, fit.called, fit.recipe


def with_weights(task: Task, path: Path, called: str, device: Any) -> nn.Module:
    """The task's network with a file's weights, in eval mode.

    Raises CheckpointError for weights that leave a part of the network as it was drawn: a score would mean nothing.
    """
    model, file = task.build(device), open_weights(path)
    report = task.load_weights(model, path)
    lacking = [name for name in (*report.missing, *report.reinitialised) if not is_counter(name)]
    rows = class_rows_of(file, task.data.labels(), len(file.classes))
    new = [name for name, place in zip(rows.ours, rows.places) if place is None] if rows is not None and rows.any else []
    if lacking or new:
        what = f"the data's {some(new, 3)}" if new else f"{len(lacking)} tensors of {called} ({some(lacking, 2)})"
        count = row_count(file.ours.tensors) or len(file.classes)
        raise CheckpointError(
            f"{path}: {f'it has {count:,} classes' if count else 'its classes are unknown'}, and the data {len(task.data.classes):,}; "
            f"{what} are not in it, so it cannot be scored. Name the data, or the --recipe, that it was trained for."
        )
    return model.eval()


def classes_of(path: Path, task: Task) -> str:
    """Whose classes the rows of the heads are taken for, in words."""
    if open_weights(path).classes:
        return f"the weights name their classes, and rows follow the names: {_in_order(task.data.classes)}"
    return f"the weights name no classes; taken in the data's order: {_in_order(task.data.classes)}"


def _in_order(classes: Sequence[str]) -> str:
    """The first class names, which show the order to who knows it."""
    return ", ".join(classes[:12]) + (", ..." if len(classes) > 12 else "")
