"""The protocol of a task: the only thing that knows both data and model. The loop, evaluation and prediction know tasks alone.

A task of your own is a function `(recipe, controls, world, *, say) -> Task`, as those in paceline.tasks.TASKS, in any Python
file, named in the recipe as `./file.py:function`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor, nn

    from paceline.batch.batch import Batch
    from paceline.batch.detection import Objects
    from paceline.batch.instances import InstanceObjects
    from paceline.config.plan import Plan
    from paceline.config.system import System
    from paceline.models.weights import WeightReport


@dataclass(frozen=True)
class Place:
    """Where one rank stands, as far as input needs to know."""

    rank: int
    world: int
    device: torch.device
    threads: int  # loader threads


@dataclass(frozen=True)
class Evaluation:
    """What one evaluation found."""

    metrics: Mapping[str, float]  # by the names that targets use; in [0, 1]
    images: int  # images scored, each exactly once
    predictions: Mapping[str, Any]  # JSON content of RUN/predictions/step-N.json


class Model(Protocol):
    """What a task builds: an nn.Module whose forward is the training loss and whose `predict` is inference."""

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """Training losses, each a float32 scalar summed over the batch's images; the one named "loss" is minimised."""
        ...

    def predict(self, batch: Batch) -> Any:
        """Raw outputs for scoring: tensors, or a tuple of them."""
        ...


class Loader(Protocol):
    """Batches in step order: (step, one batch per forward). Closed by its context."""

    wait_seconds: float  # time the consumer has waited for data so far

    def __iter__(self) -> Iterable[tuple[int, Sequence[Batch]]]: ...

    def close(self) -> None: ...


class Score(Protocol):
    """Collects what this rank's share of an evaluation needs; compact, on the host."""

    def add(self, batch: Batch, outputs: Any) -> None: ...

    def pack(self) -> bytes: ...


class Task(Protocol):
    """One workload bound to one recipe and one data set.

    It may also have `check_plan(plan)`, which raises RecipeError for a plan that would train something else than the recipe says,
    and `samples_of_step(step)`, -> epochs and image numbers of a whole step, where its order is not the plain stream's. An
    attribute `compiles` that is false keeps torch.compile from its model, one `exact_on_cuda` that is false refuses --exact there.
    """

    benchmark: str  # MLPerf's name of the workload
    is_target_data: bool  # whether the recipe's quality target was set for this data
    headline: str  # the metric that decides which checkpoint is best; larger is better
    metrics: Sequence[str]  # names of all metrics of an evaluation, which targets may use
    train_images: int
    val_images: int
    classes: Sequence[str]  # readable names, by class index
    facts: Mapping[str, Any]  # about the data, for run.json

    def build(self, device: torch.device) -> nn.Module:
        """The freshly initialised model (see `Model`); the same weights for the same recipe on every machine."""
        ...

    def load_weights(self, model: nn.Module, path: Path) -> WeightReport:
        """Start from somebody's weights: copy a file into the model, in place.

        Raises CheckpointError where it does not fit; the model is then unchanged.
        """
        ...

    def memory(self, system: System) -> Any:
        """What a training step needs on one rank: a paceline.tasks.memory.MemoryEstimate."""
        ...

    def train_loader(self, plan: Plan, system: System, place: Place, *, first: int, one_batch: bool) -> Any:
        """Endless batches from step `first` on; with `one_batch`, step 0's again and again."""
        ...

    def sample(self, epoch: int, number: int) -> tuple[np.ndarray, int | Objects | InstanceObjects]:
        """One training image exactly as the network sees it in this epoch, for preview.

        number  0..train_images-1
        -> (H, W, 3) uint8 pixels, and the class, the objects with boxes as fractions of these pixels, or objects with masks, in pixels
        """
        ...

    def val_loader(self, batch: int, system: System, place: Place) -> Any:
        """This rank's share of the validation images, once, in batches of at most `batch`."""
        ...

    def new_score(self) -> Score: ...

    def summarise(self, packed: Sequence[bytes]) -> Evaluation:
        """Join the ranks' shares. Raises RuntimeError unless every validation image was scored exactly once."""
        ...

    def images_of_step(self, plan: Plan, step: int) -> list[str]:
        """Files of the whole global batch of a step."""
        ...

    def warm_up_batch(self, plan: Plan, device: torch.device) -> Batch:
        """A batch for a step whose result is thrown away: made up without reading an image, as large as any that this run brings.

        A task whose batches vary in shape has an attribute `shapes_vary`, true: such a step then comes first in every run.
        """
        ...
