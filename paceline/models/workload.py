"""Define a task: a description, a network factory, a data module, and the settings of its reports.

`NetworkFactory` builds the network. A data module (datamodule.py) makes batches and has an evaluator. `Reporting` configures logs,
reports, and predictions. `paceline.models.registry.WORKLOADS` contains the built-in tasks. A custom task is a `WorkloadSpec` in any
Python file, which users select with `./file.py:name`. Methods import the packages that they use, so listing the tasks does not import
torch. They receive the recipe of the run, so their results depend only on it.

Notation:
    n: number of images
    H, W: height and width in pixels
    K: number of classes
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
    """Build the network of a recipe. Subclass it for a custom task.

    Attributes:
        no_compile (str): reason why the network does not support `torch.compile`. Empty: it does.
        no_exact (str): reason why torch has no deterministic implementation of the network on an accelerator. Empty: it has one.
        working_share (float): memory of a step on an accelerator in addition to saved activations, as a fraction of them.
    """

    no_compile: str = ""  # why torch.compile is not for it; "" = it is
    no_exact: str = ""  # why torch has no deterministic form of it on an accelerator; "" = it has
    # It contains the workspaces of convolutions. Counted without them, a step takes 0.83 to 1.0 of the estimate
    # (tests/simulated). On an H200 in fp32, workspaces took 0.04 GiB in ResNet-50 and 0.01 GiB in SSD (results/gpu); of
    # Mask R-CNN's they were not measured.
    working_share: float = 0.35  # what an accelerator's step takes besides kept activations, as a part of them

    def check(self, recipe: Recipe) -> None:  # noqa: B027  # what it does not refuse is right
        """Check the settings of the network.

        The default implementation accepts every recipe.

        Args:
            recipe (Recipe): recipe to check.

        Raises:
            RecipeError: if the recipe is invalid.
        """

    def check_plan(self, recipe: Recipe, plan: BatchPlan) -> None:  # noqa: B027
        """Check that the batch plan does not change the training.

        The default implementation accepts every plan.

        Args:
            recipe (Recipe): recipe of the run.
            plan (BatchPlan): how the global batch is split into ranks and micro-batches.

        Raises:
            RecipeError: if training with this plan would not be equivalent to the recipe.
        """

    def exact_in_triton(self, recipe: Recipe) -> bool:
        """Return True if custom kernels make the network deterministic on an accelerator.

        It is used if `no_exact` is set and the run uses ``--system.kernels triton``.

        Args:
            recipe (Recipe): recipe of the run.

        Returns:
            bool: False by default.
        """
        return False

    def largest(self, recipe: Recipe) -> tuple[int, int]:
        """Return the size of the largest training input for any dataset.

        Args:
            recipe (Recipe): recipe of the run.

        Returns:
            tuple[int, int]: height and width in pixels. Default: a square with the side `recipe.input.image_size`
        """
        return recipe.input.image_size, recipe.input.image_size

    def eval_shape(self, recipe: Recipe, height: int, width: int) -> tuple[int, int]:
        """Return the size of the network input when an image of the given size is evaluated.

        Args:
            recipe (Recipe): recipe of the run.
            height (int): height of the image in pixels.
            width (int): width of the image in pixels.

        Returns:
            tuple[int, int]: height and width of the input in pixels. Default: the result of `largest`
        """
        return self.largest(recipe)

    @abstractmethod
    def build(self, recipe: Recipe, classes: int) -> Any:
        """Build the network without initializing its weights. It must also work on torch's meta device.

        Args:
            recipe (Recipe): recipe of the run.
            classes (int): number of classes K.

        Returns:
            paceline.models.task.Network: module whose forward pass returns the losses and whose `predict` returns the outputs.
        """

    @abstractmethod
    def initialize(self, recipe: Recipe, model: Any, generator: torch.Generator) -> None:
        """Initialize the weights of a network that `build` returned, on the CPU.

        Args:
            recipe (Recipe): recipe of the run.
            model (nn.Module): network to initialize in place.
            generator (torch.Generator): source of all random numbers.
        """

    def load_weights(self, model: Any, path: Path, labels: Labels) -> WeightReport:
        """Load a weight file into a network, and match the classes of the dataset with those of the file.

        The default implementation accepts only files of the same network, such as its checkpoints. Override it to accept others.

        Args:
            model (nn.Module): network whose weights are replaced in place.
            path (Path): weight file.
            labels (Labels): classes of the dataset.

        Returns:
            WeightReport: which tensors were used, missing, or unexpected.

        Raises:
            CheckpointError: if the file does not fit the network. The network is then unchanged.
        """
        from paceline.models.weights.load import load_same_network

        return load_same_network(model, path, labels)


@dataclass(frozen=True)
class Reporting:
    """Configure the metrics, logs, reports, and predictions of a task.

    Attributes:
        headline (str): primary metric, which selects the best checkpoint. Larger is better.
        metrics (Sequence[str]): metrics of an evaluation, which a target can use.
        template (str): Jinja template of the task in a report: a file in paceline/tools/report/, or an absolute path.
        benchmark (str): name of the benchmark in MLPerf. Empty: none.
        ruleset (str): version of the newest rules of that benchmark, as the compliance checker numbers them.
        log_facts (Callable): function of the run that returns the keys and values of mllog between init_start and init_stop.
        log_tensors (Callable): function that maps the names of parameters to the names of tensors that the rules use.
    """

    headline: str  # the metric that decides which checkpoint is best; larger is better
    metrics: Sequence[str]  # of an evaluation, which targets may use
    template: str  # of its part of a report: a jinja file, in paceline/tools/report/ or absolute
    benchmark: str = ""  # MLPerf's name of it; "" = it has none
    ruleset: str = ""  # the last rules of that benchmark, as the compliance checker numbers them
    log_facts: Callable[[RunSpec], dict[str, Any]] = (
        resnet_log_entries  # keys and values of mllog between init_start and init_stop
    )
    log_tensors: Callable[[Sequence[str]], Sequence[str]] = (
        list  # names of parameters -> those that the ruleset has for them
    )

    def __post_init__(self) -> None:
        """Raise RecipeError for contradictory fields, and for a method that would hide a function field."""
        for name in ("log_facts", "log_tensors"):
            if getattr(type(self), name) is not getattr(Reporting, name):  # the field would hide the method
                raise RecipeError(f"Reporting.{name}: must be passed as a function, Reporting({name}=...), not a method.")
        if self.headline not in self.metrics:
            raise RecipeError(f"Reporting.headline {self.headline!r}: must be in metrics ({', '.join(self.metrics)}).")
        if not (REPORT / self.template).is_file():  # an absolute path replaces REPORT
            raise RecipeError(f"Reporting.template {self.template}: file not found. Use its absolute path.")

    def rules(self, recipe: Any) -> tuple[str, str]:
        """Return the MLPerf benchmark of a recipe and the version of its rules.

        Args:
            recipe (Recipe): recipe of the run.

        Returns:
            tuple[str, str]: `benchmark` and `ruleset`. Both are "" if the recipe is not an MLPerf benchmark.
        """
        return self.benchmark, self.ruleset

    def measured(self, recipe: Any) -> Sequence[str]:
        """Return the metrics that an evaluation of a recipe computes.

        Args:
            recipe (Recipe): recipe of the run.

        Returns:
            Sequence[str]: names of the metrics, starting with the one that selects the best checkpoint.
        """
        return (self.headline, *(name for name in self.metrics if name != self.headline))

    def log_accuracy(self, metrics: Mapping[str, float]) -> Any:
        """Return the value of `eval_accuracy` in the MLPerf log.

        Args:
            metrics (Mapping[str, float]): metrics of an evaluation.

        Returns:
            Any: a value for JSON. Default: the primary metric
        """
        return metrics[self.headline]

    def picture(self, pixels: np.ndarray, label: Any, classes: Sequence[str]) -> tuple[Image.Image, str] | None:
        """Draw a training sample for ``paceline preview``.

        Args:
            pixels (ndarray): network input, shape (H, W, 3), uint8.
            label (Any): label of the sample.
            classes (Sequence[str]): class names.

        Returns:
            tuple[PIL.Image.Image, str] or None: image and caption. None: use the default drawing (inference/drawing/boxes.py).
        """
        return None

    def answers(self, outputs: Any, photos: Sequence[Any], trained: Any) -> Sequence[Any] | None:
        """Convert the outputs of the network to prediction results.

        Args:
            outputs (Any): outputs of `predict` of the network for a batch.
            photos (Sequence[PreparedImage]): images of the batch.
            trained (TrainedModel): the opened model.

        Returns:
            Sequence[PredictionResult] or None: one result per image. None: use the default (inference/trained_model.py).
        """
        return None

    def section(self, predictions: Mapping[str, Any], data: Path, exif: Any) -> Mapping[str, Any] | None:
        """Return the variable `pictures` of the report template.

        Args:
            predictions (Mapping[str, Any]): content of a predictions file.
            data (Path): folder that the file names of the images are relative to.
            exif (Exif): how the run treated the EXIF orientation of images.

        Returns:
            Mapping[str, Any] or None: values for the template. None: use the default (paceline/tools/report).
        """
        return None


@dataclass(frozen=True, eq=False, kw_only=True)
class WorkloadSpec:
    """Describe a task: the settings of its recipes, its network, its data, and its reports.

    Attributes:
        about (str): description on one line.
        start (str): name of the recipe to start with.
        layout (str): content of a dataset folder, for messages.
        kind (str): type of the dataset: ``"class-folder"`` or ``"boxes"``.
        classes (int): number of classes K if neither the dataset nor the recipe determines it. Default: 80
        finds_objects (bool): True for detectors, False for classifiers of complete images.
        photos_at_once (int): default maximum number of images per forward pass in prediction. Default: 8
        model, input (dataclass): default values of the fields `model` and `input` of a recipe.
        network (NetworkFactory): builds the network.
        data (Callable): function that imports and returns the subclass of `DataModule`.
        reporting (Reporting): configuration of metrics, logs, and reports.
    """

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
        """Raise RecipeError if the type of the dataset is unknown."""
        if self.kind not in get_args(Kind):
            raise RecipeError(f"WorkloadSpec.kind {self.kind!r}: must be {' or '.join(get_args(Kind))}.")

    def open(self, recipe: Recipe, manifest: Manifest, *, limit_train: int = 0, limit_val: int = 0) -> Task:
        """Open a dataset for a recipe.

        Args:
            recipe (Recipe): recipe of the run.
            manifest (Manifest): index of the prepared dataset.
            limit_train (int): maximum number of training images, evenly spaced. Default: 0 (all)
            limit_val (int): maximum number of validation images, evenly spaced. Default: 0 (all)

        Returns:
            Task: this task with the recipe, the data module, and the evaluator.

        Raises:
            DataError: if the dataset cannot be used.
        """
        from paceline.models.task import Task

        data = self.data()(recipe, manifest, (limit_train, limit_val))
        return Task(self, data, data.evaluator(data))
