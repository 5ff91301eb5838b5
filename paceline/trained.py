"""A trained run, opened for use: its recipe, its classes, and its model with a checkpoint's weights."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paceline.checkpoint.read import find_checkpoint, load_checkpoint
from paceline.config.errors import RecipeError, UserError
from paceline.config.recipe import Recipe
from paceline.config.run import fill, read_run
from paceline.config.system import System
from paceline.machine import autocast_for
from paceline.state import load_model
from paceline.tasks import BUILDERS, SETTINGS


@dataclass(frozen=True)
class Trained:
    """Everything inference needs; nothing of the training data."""

    folder: Path
    recipe: Recipe
    classes: tuple[str, ...]
    model: nn.Module  # in eval mode, on `device`
    device: torch.device
    checkpoint: str  # the checkpoint's folder name
    step: int
    facts: Mapping[str, Any]  # of run.json

    @property
    def category_ids(self) -> tuple[int, ...]:
        """Ids of the training set's annotation file, as `classes`; 1..K where the run does not name them."""
        ids = self.facts.get("data", {}).get("category_ids")
        return tuple(ids or range(1, len(self.classes) + 1))

    def autocast(self) -> AbstractContextManager:
        """The number format that the run was evaluated in, where this device is of its kind; float32 elsewhere."""
        system = fill(System(), self.facts["system"], "system")
        if system.accelerator != self.device.type:
            system = replace(system, precision="fp32")
        return autocast_for(system, self.device)()


def open_trained(
    folder: Path, *, checkpoint: str = "best", device: torch.device | None = None, model: nn.Module | None = None
) -> Trained:
    """Open a run folder.

    checkpoint  best, last or step-N
    device      None: CUDA where torch sees one, else the CPU
    model       the run's model as its task builds it; None: what our task of that name builds
    Raises UserError for a folder that is no run, CheckpointError for a checkpoint that is missing or damaged.
    """
    facts = read_run(folder)
    recipe = saved_recipe(facts, str(folder))
    classes = tuple(facts.get("classes", ()))
    if not classes:
        raise UserError(f"{folder}: run.json names no classes; the run did not get as far as training.")
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    path = find_checkpoint(folder / "checkpoints", checkpoint)
    snapshot = load_checkpoint(path)
    if model is None:
        model = BUILDERS[recipe.task](recipe, len(classes))
    if facts["system"].get("channels_last"):
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's stubs
    tensors = dict(snapshot.tensors["model"])
    tensors.update(snapshot.tensors.get("average", {}))  # where weights are averaged, the average is the model
    load_model(model, tensors)
    model = model.to(device).eval()
    return Trained(folder, recipe, classes, model, device, path.name, int(snapshot.facts["step"]), facts)


def saved_recipe(facts: Mapping[str, Any], where: str) -> Recipe:
    """The recipe in run.json, for a built-in task; the Python file of a recipe of one's own is not needed for that.

    where   the run, for the message
    Raises RecipeError for another task, and for keys of another version.
    """
    name = facts["recipe"].get("task")
    if name not in SETTINGS:
        raise RecipeError(f"{where}: its task {name!r} is not one of ours ({', '.join(SETTINGS)}).")
    model, data_treatment = SETTINGS[name]
    return fill(Recipe(task=name, model=model, input=data_treatment), facts["recipe"], "recipe")
