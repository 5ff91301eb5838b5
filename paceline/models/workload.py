"""A workload: everything the package needs to know about a kind of learning, as a description and three parts.

`NetworkFactory` builds the network. A data module (datamodule.py) makes batches, and has an evaluator. `Reporting` has what logs,
reports and answers need.
`paceline.models.registry.WORKLOADS` is the menu of ours; one of your own is a `WorkloadSpec` in any Python file, named as
`./file.py:name`. Methods import what they use, so the menu needs no torch. They get the recipe as it is trained, so their results
depend on nothing else.

Letters: n images   H, W pixels   K classes
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from paceline._utils.errors import RecipeError
from paceline.config.plan import BatchPlan
from paceline.config.recipe import Recipe
from paceline.data.index.manifest import Kind
from paceline.models.mllog_keys import resnet_log_entries

if TYPE_CHECKING:
    import numpy as np
    import torch
    from PIL import Image

    from paceline.config.run import RunSpec
    from paceline.data.index.manifest import Manifest
    from paceline.models.datamodule import DataModule
    from paceline.models.task import Task
    from paceline.models.weights.classes import Labels
    from paceline.models.weights.load import WeightReport

REPORT = Path(__file__).parents[1] / "tools" / "report"  # the folder of templates


class NetworkFactory(ABC):
    """Builds the network of a recipe."""

    no_compile: str = ""  # why torch.compile is not for it; "" = it is
    no_exact: str = ""  # why torch has no deterministic form of it on an accelerator; "" = it has
    # It contains the workspaces of convolutions. Counted without them, a step takes 0.83 to 1.0 of the estimate
    # (tests/simulated). On an H200 in fp32, workspaces took 0.04 GiB in ResNet-50 and 0.01 GiB in SSD (results/gpu); of
    # Mask R-CNN's they were not measured.
    working_share: float = 0.35  # what an accelerator's step takes besides kept activations, as a part of them

    def check(self, recipe: Recipe) -> None:  # noqa: B027  # what it does not refuse is right
        """Raises RecipeError for a recipe that cannot be."""

    def check_plan(self, recipe: Recipe, plan: BatchPlan) -> None:  # noqa: B027
        """Raises RecipeError for a plan that would train something else."""

    def exact_in_triton(self, recipe: Recipe) -> bool:
        """Whether, where `no_exact` has a reason, --system.kernels triton does away with it."""
        return False

    def largest(self, recipe: Recipe) -> tuple[int, int]:
        """H, W of the largest training input of any data set; by default the input's square."""
        return recipe.input.image_size, recipe.input.image_size

    def eval_shape(self, recipe: Recipe, height: int, width: int) -> tuple[int, int]:
        """H, W of the evaluation input of a photo of this height and width."""
        return self.largest(recipe)

    @abstractmethod
    def build(self, recipe: Recipe, classes: int) -> Any:
        """A `paceline.models.task.Network` for so many classes, its weights not drawn; also on torch's meta device."""

    @abstractmethod
    def initialize(self, recipe: Recipe, model: Any, generator: torch.Generator) -> None:
        """Draw the weights of `build`'s model, on the CPU."""

    def load_weights(self, model: Any, path: Path, labels: Labels) -> WeightReport:
        """Load a weight file for the classes of the data; only our own checkpoints, unless a workload reads more.

        Raises CheckpointError where it does not fit; the model is then unchanged.
        """
        from paceline.models.weights.load import load_same_network

        return load_same_network(model, path, labels)


@dataclass(frozen=True)
class Reporting:
    """What logs, reports and answers say."""

    headline: str  # the metric that decides which checkpoint is best; larger is better
    metrics: Sequence[str]  # of an evaluation, which targets may use
    template: str  # of its part of a report: a jinja file, in paceline/pages/ or absolute
    benchmark: str = ""  # MLPerf's name of it; "" = it has none
    ruleset: str = ""  # the last rules of that benchmark, as the compliance checker numbers them
    log_facts: Callable[[RunSpec], dict[str, Any]] = (
        resnet_log_entries  # keys and values of mllog between init_start and init_stop
    )
    log_tensors: Callable[[Sequence[str]], Sequence[str]] = (
        list  # names of parameters -> those that the ruleset has for them
    )

    def __post_init__(self) -> None:
        """Raises RecipeError for fields that contradict each other, and for a method in the place of a field."""
        for name in ("log_facts", "log_tensors"):
            if getattr(type(self), name) is not getattr(Reporting, name):  # the field would hide the method
                raise RecipeError(f"Reporting.{name}: must be passed as a function, Reporting({name}=...), not a method.")
        if self.headline not in self.metrics:
            raise RecipeError(f"Reporting.headline {self.headline!r}: must be in metrics ({', '.join(self.metrics)}).")
        if not (REPORT / self.template).is_file():  # an absolute path replaces REPORT
            raise RecipeError(f"Reporting.template {self.template}: file not found. Use its absolute path.")

    def rules(self, recipe: Any) -> tuple[str, str]:
        """The benchmark of MLPerf that a recipe is, and its rules; "" and "" where it is none."""
        return self.benchmark, self.ruleset

    def measured(self, recipe: Any) -> Sequence[str]:
        """The metrics of a recipe's evaluation, that which decides the best checkpoint first."""
        return (self.headline, *(name for name in self.metrics if name != self.headline))

    def log_accuracy(self, metrics: Mapping[str, float]) -> Any:
        """eval_accuracy of an evaluation's metrics."""
        return metrics[self.headline]

    def picture(self, pixels: np.ndarray, label: Any, classes: Sequence[str]) -> tuple[Image.Image, str] | None:
        """A training sample, (H, W, 3) uint8 with its label, as a picture and its caption; None: by `inference/drawing/boxes.py`."""
        return None

    def answers(self, outputs: Any, photos: Sequence[Any], trained: Any) -> Sequence[Any] | None:
        """Results for photos from the network's outputs; None: by paceline/inference/trained_model.py."""
        return None

    def section(self, predictions: Mapping[str, Any], data: Path, exif: Any) -> Mapping[str, Any] | None:
        """The template's `pictures` from a predictions file; None: by tools/report. data: folder of relative files."""
        return None


@dataclass(frozen=True, eq=False, kw_only=True)
class WorkloadSpec:
    """From a recipe's fields to a report's pictures."""

    about: str  # what it is, in a line
    start: str = ""  # the recipe to begin with
    layout: str  # what a data folder holds, for messages
    kind: Kind  # of its data: "class-folder" or "boxes"
    classes: int = 80  # K where neither data nor recipe determine it
    finds_objects: bool  # else it names whole photos
    photos_at_once: int = 8  # of one forward in prediction
    # The workload's own parts of a recipe, as defaults
    model: Any
    input: Any
    network: NetworkFactory
    data: Callable[[], type[DataModule]]  # imports the data module's class
    reporting: Reporting

    def __post_init__(self) -> None:
        """Raises RecipeError for an unknown kind of data."""
        if self.kind not in get_args(Kind):
            raise RecipeError(f"WorkloadSpec.kind {self.kind!r}: must be {' or '.join(get_args(Kind))}.")

    def open(self, recipe: Recipe, manifest: Manifest, *, limit_train: int = 0, limit_val: int = 0) -> Task:
        """The task on this data set, or on this many of its images; 0 = all. Raises DataError for unusable data."""
        from paceline.models.task import Task

        data = self.data()(recipe, manifest, (limit_train, limit_val))
        return Task(self, data, data.evaluator(data))
