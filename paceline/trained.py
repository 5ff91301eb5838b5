"""A trained run, opened for use: its recipe, its classes, and its model with a checkpoint's weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paceline.checkpoint.read import find_checkpoint, load_checkpoint
from paceline.config.classification import PhotoInput, ResNetModel
from paceline.config.errors import UserError
from paceline.config.recipe import Recipe
from paceline.config.run import fill, read_run
from paceline.state import load_model
from paceline.tasks.classification import build_classifier


@dataclass(frozen=True)
class Trained:
    """Everything inference needs; nothing of the training data."""

    folder: Path
    recipe: Recipe
    classes: tuple[str, ...]
    class_order_hash: str
    model: nn.Module  # in eval mode, on `device`
    device: torch.device
    checkpoint: str  # the checkpoint's folder name
    step: int
    facts: Mapping[str, Any]  # of run.json


def open_trained(folder: Path, *, checkpoint: str = "best", device: torch.device | None = None) -> Trained:
    """Open a run folder.

    checkpoint  best, last or step-N
    device      None: CUDA where torch sees one, else the CPU
    Raises UserError for a folder that is no run, CheckpointError for a checkpoint that is missing or damaged.
    """
    facts = read_run(folder)
    recipe = saved_recipe(facts)
    classes = tuple(facts.get("classes", ()))
    if not classes:
        raise UserError(f"{folder}: run.json names no classes; the run did not get as far as training.")
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    path = find_checkpoint(folder / "checkpoints", checkpoint)
    snapshot = load_checkpoint(path)
    model = build_classifier(recipe, len(classes))
    tensors = dict(snapshot.tensors["model"])
    tensors.update(snapshot.tensors.get("average", {}))  # where weights are averaged, the average is the model
    load_model(model, tensors)
    model = model.to(device).eval()
    hash_ = facts.get("data", {}).get("class_order_hash", "")
    return Trained(folder, recipe, classes, hash_, model, device, path.name, int(snapshot.facts["step"]), facts)


def saved_recipe(facts: Mapping[str, Any]) -> Recipe:
    """The recipe in run.json; its own Python file is not needed for that.

    Raises RecipeError for keys of another version.
    """
    empty = Recipe(task=facts["recipe"]["task"], model=ResNetModel(), input=PhotoInput())
    return fill(empty, facts["recipe"], "recipe")
