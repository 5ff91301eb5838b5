"""A workload: one frozen value that holds all that the house asks of one. `paceline.tasks.workloads.WORKLOADS` is the menu of ours;
one of your own is a `Workload` in any Python file, named as `./file.py:name`.

Reading this file, or a workload made of `lazily` named functions, takes no torch: a part is imported when it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from paceline.config.errors import RecipeError
from paceline.config.lazily import lazily
from paceline.config.plan import Plan
from paceline.config.recipe import Recipe
from paceline.store.manifest import Kind

if TYPE_CHECKING:
    import numpy as np
    import torch
    from PIL import Image
    from torch import nn

    from paceline.batch import Batch
    from paceline.config.run import Run
    from paceline.input.draw import Draw
    from paceline.store.header import Header
    from paceline.weights.class_rows import Labels
    from paceline.weights.load import WeightReport


REPORT = Path(__file__).parents[1] / "pages"  # where templates lie
LOAD_OWN, MLLOG_FACTS = lazily("paceline.weights.load:load_own"), lazily("paceline.tasks.mlperf:mllog_facts")
OWN_NAMES, HEADLINE = lazily("paceline.tasks.mlperf:own_names"), lazily("paceline.tasks.mlperf:headline")


def accept(*_: Any) -> None:
    """Refuse nothing."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is learned, from the words of a recipe to the pictures of a report. Letters: n images   H, W pixels   K classes

    Functions whose type begins with Recipe get the recipe as it is trained, so what is built follows from it alone.
    """

    # In menus and messages
    about: str  # what it is, in a line
    start: str = ""  # the recipe to begin with
    data: str  # what a data folder holds

    # In a recipe: the two parts that are the workload's own, with their defaults, and what cannot be
    model: Any
    input: Any
    check: Callable[[Recipe], None] = accept  # raises RecipeError for a recipe that cannot be
    check_plan: Callable[[Recipe, Plan], None] = accept  # raises RecipeError for a plan that would train something else

    # Data: how they are prepared and opened
    kind: Kind  # "class-folder" or "boxes"
    open: Callable[..., Any]  # (workload, recipe, manifest, limit_train=N, limit_val=N) -> the Task; 0 = all

    # The network: a `paceline.tasks.task.Model`
    build: Callable[[Recipe, int], nn.Module]  # for so many classes, its weights not drawn; also on torch's meta device
    initialise: Callable[[Recipe, nn.Module, torch.Generator], None]  # draw the weights, on the CPU
    # Somebody's file into the network, for the classes of the data; only its own checkpoints, unless it says more
    load_weights: Callable[[nn.Module, Path, Labels], WeightReport] = LOAD_OWN
    classes: int = 80  # K where neither data nor recipe tell
    no_compile: str = ""  # why torch.compile is not for it; "" = it is
    no_exact: str = ""  # why an accelerator has no deterministic form of it; "" = it has

    # Its input
    largest: Callable[[Recipe], tuple[int, int]]  # H, W of the largest training input, whatever the data
    made_up: Callable[[Recipe, int, tuple[int, int], int], Batch]  # n images of H x W with so many object slots
    batch: Callable[..., Batch]  # (images (n, 3, H, W), labels of n, indices (n,), least=0 slots) -> the batch
    eval_shape: Callable[[Recipe, int, int], tuple[int, int]]  # photo's height, width -> H, W of its evaluation input
    draw_eval: Callable[[Recipe, Header, str, tuple[int, int]], Draw]  # header, name, H x W -> what is rendered

    # Its numbers
    headline: str  # the metric that decides which checkpoint is best; larger is better
    metrics: Sequence[str]  # of an evaluation, which targets may use

    # MLPerf's log of it
    benchmark: str = ""  # MLPerf's name of it; "" = it has none
    ruleset: str = ""  # the last rules of that benchmark, as the compliance checker numbers them
    log_facts: Callable[[Run], dict[str, Any]] = MLLOG_FACTS  # keys and values between init_start and init_stop
    log_accuracy: Callable[[Workload, Mapping[str, float]], Any] = HEADLINE  # an evaluation's metrics -> eval_accuracy
    log_tensors: Callable[[Sequence[str]], Sequence[str]] = OWN_NAMES  # parameters' names -> those of the ruleset

    # What people see
    finds_objects: bool  # else it names whole photos
    photos_at_once: int = 8  # of one forward in prediction
    answers: Callable[..., Sequence[Any]]  # (outputs, photos, trained) -> results, see paceline/predict/found.py
    picture: Callable[[np.ndarray, Any, Sequence[str]], tuple[Image.Image, str]]  # pixels, label, names -> captioned
    section: Callable[
        ..., Mapping[str, Any]
    ]  # (predictions, folder of relative files, exif) -> what the template draws, as `pictures`
    template: str  # its jinja file, in paceline/report/ or absolute

    # `paceline bench KIND --task NAME`: kind -> what measures it
    bench: Mapping[str, Callable[..., Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises RecipeError for a value that no run could use."""
        if self.headline not in self.metrics:
            raise RecipeError(
                f"workload: its headline {self.headline!r} is none of its metrics, {', '.join(self.metrics)}."
            )
        if self.kind not in get_args(Kind):
            raise RecipeError(f"workload: kind {self.kind!r}: its data are {' or '.join(get_args(Kind))}.")
        if not (REPORT / self.template).is_file():  # an absolute path stands for itself
            raise RecipeError(
                f"workload: template {self.template}: there is no such file. Name it with its whole path."
            )
