"""Bind a task to one recipe and one dataset, with a data module and an evaluator.

A data module (datamodule.py) makes batches from records, and an evaluator computes metrics from predictions. Each task defines both
(task.py of each network).

Notation:
    n: number of images
    K: number of classes
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from paceline.config.recipe import Recipe
from paceline.config.system import System
from paceline.data.batch import Batch
from paceline.models.memory_estimate import MemoryEstimate, estimate_recipe_memory

if TYPE_CHECKING:
    from paceline.models.datamodule import DataModule
    from paceline.models.weights.load import WeightReport
    from paceline.models.workload import WorkloadSpec


@dataclass(frozen=True)
class InputRank:
    """Describe a rank among those that share the samples, and the resources of its loaders."""

    rank: int
    world: int
    device: torch.device
    threads: int  # loader threads


@dataclass(frozen=True)
class EvalResult:
    """Hold the result of one evaluation."""

    metrics: Mapping[str, float]  # by the names that targets use; in [0, 1]
    images: int  # images scored, each exactly once
    predictions: Mapping[str, Any]  # JSON content of RUN/predictions/step-N.json
    approximated: Mapping[str, int] = field(default_factory=dict)  # what an accelerator left open, by name; on rank 0
    best_f1: Mapping[str, float] = field(default_factory=dict)  # of boxes: the threshold with the best F1; on rank 0
    # Draws the photos anew, for the metrics' intervals; takes seconds. {} on other ranks than 0.
    draws: Callable[[], Mapping[str, np.ndarray]] = dict

    def record(self) -> dict[str, Any]:
        """Return the result for another rank in JSON types, without `draws`.

        The draws stay on the rank that scored the images.
        """
        return {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "draws"}


class Network(Protocol):
    """Define the module that `NetworkFactory.build` returns.

    It is an nn.Module. A call returns the training losses, and `predict` returns the outputs of inference.
    """

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """Return the training losses, in one of the forms of `paceline/data/batch.py`."""
        ...

    def predict(self, batch: Batch) -> Any:
        """Return the outputs for scoring: a tensor with one row per image, or a named tuple of such tensors."""
        ...


class MetricShard(Protocol):
    """Accumulate the part of an evaluation that one rank computes, in compact form and in host memory."""

    def add(self, batch: Batch, outputs: Any) -> None:
        """Add one batch and its outputs. Copy what you keep: the loader overwrites the batch."""
        ...

    def pack(self) -> bytes: ...


class Evaluator(ABC):
    """Score the predictions of a model on the validation images of one data module.

    Args:
        data (DataModule): the data module.

    Attributes:
        facts (Mapping[str, Any]): metadata of the ground truth for run.json.
    """

    facts: Mapping[str, Any] = {}  # about the ground truth, for run.json

    def __init__(self, data: Any) -> None:
        self.data = data

    @abstractmethod
    def new_score(self) -> MetricShard:
        """Start an evaluation on this rank.

        Returns:
            MetricShard: object without images. `add` adds a batch, and `pack` converts it to bytes for `summarize`.
        """

    @abstractmethod
    def summarize(self, packed: Sequence[bytes]) -> EvalResult:
        """Compute the metrics from the shards of all ranks.

        Args:
            packed (Sequence[bytes]): result of `MetricShard.pack` of each rank.

        Returns:
            EvalResult: metrics, number of images, and predictions.

        Raises:
            RuntimeError: unless every validation image was scored exactly once.
        """


@dataclass(frozen=True)
class Task:
    """Bind a workload to one recipe and one dataset."""

    workload: WorkloadSpec
    data: DataModule
    evaluator: Evaluator

    @property
    def recipe(self) -> Recipe:
        """Recipe: the recipe of the data module."""
        return self.data.recipe

    @property
    def facts(self) -> dict[str, Any]:
        """dict[str, Any]: metadata of the dataset for run.json."""
        return {**self.data.facts, **self.evaluator.facts}

    def build(self, device: torch.device) -> nn.Module:
        """Return the initialized network with its loss.

        Weights are initialized on the CPU, so every machine gets the same ones.
        """
        network, generator = self.workload.network, torch.Generator().manual_seed(self.recipe.seed)
        model = network.build(self.recipe, len(self.data.classes))
        network.initialize(self.recipe, model, generator)
        self.data.setup(model)
        return model.to(device)

    def load_weights(self, model: nn.Module, path: Path) -> WeightReport:
        """Copy a weight file into the model, in place.

        Raises CheckpointError if the file does not fit. The model is then unchanged.
        """
        return self.workload.network.load_weights(model, path, self.data.labels())

    def memory(self, system: System) -> MemoryEstimate:
        """Estimate the memory of a training step on one rank.

        The largest tensor, which accelerators need, is that of the largest possible input.
        """
        shapes = self.data.shapes
        result = estimate_recipe_memory(
            self.workload, self.recipe, system, len(self.data.classes), shapes.largest_of_data()
        )
        wider = max(math.prod(shapes.widest()), result.pixels)
        return replace(result, largest=-(-result.largest * wider // result.pixels))
