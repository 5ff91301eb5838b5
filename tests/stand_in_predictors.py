"""Predictors of networks that a test makes up, the photos they are shown, and `paceline predict` with one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from paceline.config.recipe import Recipe
from paceline.config.run import RunRecord
from paceline.inference.trained_model import TorchPredictor, TrainedModel
from paceline.models.registry import WORKLOADS


def predictor_of(
    recipe: Recipe,
    network: torch.nn.Module,
    *,
    classes: Sequence[str] = ("cat", "dog"),
    facts: Mapping[str, Any] | None = None,
) -> TorchPredictor:
    """As `paceline.load` makes one of a run; facts: of its run.json."""
    run = Path("run"), WORKLOADS[recipe.task], recipe, tuple(classes), network, torch.device("cpu"), "step-000001", 1
    return TorchPredictor(TrainedModel(*run, RunRecord(**(facts or {}))))


def take_for_a_run_s(monkeypatch: pytest.MonkeyPatch, make: Callable[[], TorchPredictor]) -> None:
    """`paceline predict RUN` answers with this predictor, whatever folder RUN is."""
    monkeypatch.setattr("paceline.training.run_arguments.open_run", lambda *_, **__: ({}, None))
    monkeypatch.setattr("paceline.inference.open_predictor", lambda *_, **__: make())


def gray(path: Path, size: tuple[int, int], shade: int = 255) -> Path:
    """A photo of one shade; size: width, height."""
    Image.new("RGB", size, (shade, shade, shade)).save(path)
    return path


def pixels_of(path: Path) -> np.ndarray:
    """(H, W, 3) int."""
    with Image.open(path) as picture:
        return np.asarray(picture).astype(int)
