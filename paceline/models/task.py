"""A task: a workload bound to one recipe and one data set. It has two halves, the data module and the evaluator.

A data module (datamodule.py) makes batches of records; an evaluator makes metrics of predictions. Each workload defines its own of
both (task.py of each network). Letters: n images   K classes
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
    """A rank's place among those that share the samples, and what its loaders need."""

    rank: int
    world: int
    device: torch.device
    threads: int  # loader threads


@dataclass(frozen=True)
class EvalResult:
    """The result of one evaluation."""

    metrics: Mapping[str, float]  # by the names that targets use; in [0, 1]
    images: int  # images scored, each exactly once
    predictions: Mapping[str, Any]  # JSON content of RUN/predictions/step-N.json
    approximated: Mapping[str, int] = field(default_factory=dict)  # what an accelerator left open, by name; on rank 0
    best_f1: Mapping[str, float] = field(default_factory=dict)  # of boxes: the threshold with the best F1; on rank 0
    # Draws the photos anew, for the metrics' intervals; takes seconds. {} on other ranks than 0.
    draws: Callable[[], Mapping[str, np.ndarray]] = dict

    def record(self) -> dict[str, Any]:
        """For another rank, in JSON's types: all but the draws, which stay where the photos were scored."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "draws"}


class Network(Protocol):
    """The result of `NetworkFactory.build`: an nn.Module whose forward is the training loss and whose `predict` is inference."""

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """Training losses, in one of the forms of `paceline/data/batch.py`."""
        ...

    def predict(self, batch: Batch) -> Any:
        """Raw outputs for scoring: a tensor with a row for each image, or a named tuple of such tensors."""
        ...


class MetricShard(Protocol):
    """This rank's share of an evaluation; compact, on the host."""

    def add(self, batch: Batch, outputs: Any) -> None:
        """Add one forward. Its batch is the loader's memory, which the next one overwrites: copy what is kept."""
        ...

    def pack(self) -> bytes: ...


class Evaluator(ABC):
    """Scores a model's predictions on the validation images of one data module."""

    facts: Mapping[str, Any] = {}  # about the ground truth, for run.json

    def __init__(self, data: Any) -> None:
        self.data = data

    @abstractmethod
    def new_score(self) -> MetricShard:
        """An empty score."""

    @abstractmethod
    def summarize(self, packed: Sequence[bytes]) -> EvalResult:
        """Join the ranks' shares. Raises RuntimeError unless every validation image was scored exactly once."""


@dataclass(frozen=True)
class Task:
    """A workload bound to one recipe and one data set."""

    workload: WorkloadSpec
    data: DataModule
    evaluator: Evaluator

    @property
    def recipe(self) -> Recipe:
        """The data module's."""
        return self.data.recipe

    @property
    def facts(self) -> dict[str, Any]:
        """What run.json says about the data."""
        return {**self.data.facts, **self.evaluator.facts}

    def build(self, device: torch.device) -> nn.Module:
        """The initialized network with its loss, drawn on the CPU so that every machine gets the same weights."""
        network, generator = self.workload.network, torch.Generator().manual_seed(self.recipe.seed)
        model = network.build(self.recipe, len(self.data.classes))
        network.initialize(self.recipe, model, generator)
        self.data.setup(model)
        return model.to(device)

    def load_weights(self, model: nn.Module, path: Path) -> WeightReport:
        """Copy a weight file into the model, in place. Raises CheckpointError where it does not fit; the model is then unchanged."""
        return self.workload.network.load_weights(model, path, self.data.labels())

    def memory(self, system: System) -> MemoryEstimate:
        """The need of a training step on one rank; its largest tensor, for accelerators, is that of the widest possible input."""
        shapes = self.data.shapes
        result = estimate_recipe_memory(
            self.workload, self.recipe, system, len(self.data.classes), shapes.largest_of_data()
        )
        wider = max(math.prod(shapes.widest()), result.pixels)
        return replace(result, largest=-(-result.largest * wider // result.pixels))
