"""The tasks, and how a recipe and a data set become one.

A workload's modules are imported when it is used: reading this menu takes no torch, and no workload brings another's libraries.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.config.errors import RecipeError, UserError
from paceline.config.python_file import from_file, is_in_file
from paceline.config.recipe import DATA_CLASSES, Recipe
from paceline.config.run import Controls
from paceline.config.system import System
from paceline.config.workloads import WORKLOADS
from paceline.data.manifest import Manifest

if TYPE_CHECKING:
    from torch import nn

    from paceline.dist.world import World
    from paceline.tasks.classification import Classification
    from paceline.tasks.maskrcnn import InstanceSegmentation
    from paceline.tasks.memory import MemoryEstimate
    from paceline.tasks.ssd import Detection
    from paceline.tasks.task import Task

Say = Callable[[str], None]


def prepared_once(world: World, prepare: Callable[[], Path]) -> Manifest:
    """The manifest in the folder that `prepare` returns; each node's first rank prepares, the others find it done."""
    if world.local_rank == 0:
        prepare()
    world.barrier()
    return Manifest.load(prepare())


def _checked(
    task: str,
    recipe: Recipe,
    controls: Controls,
    world: World,
    say: Say,
    prepared: Callable[[], None],
    manifest: Manifest | None,
    ensure: Callable[..., Path],
) -> Manifest:
    """The manifest that a built-in task opens, once its recipe is known to be possible and its data prepared by `ensure`."""
    CHECKS[task](recipe)
    if manifest is None:
        root = data_root(controls.data, task, say)
        manifest = prepared_once(world, lambda: ensure(root, say=say))
    prepared()
    return manifest


def open_classification(
    recipe: Recipe,
    controls: Controls,
    world: World,
    *,
    say: Say,
    prepared: Callable[[], None] = lambda: None,
    manifest: Manifest | None = None,
) -> Classification:
    """Class-folder data, prepared once on each node by its first rank.

    prepared  called when that is done, before anything is opened or built
    manifest  of data to score on, which is prepared already; None: the training data that `controls` names
    Raises RecipeError for a recipe that cannot be, DataError for data that cannot be used.
    """
    from paceline.prepare.folder import ensure_prepared
    from paceline.tasks.classification import Classification

    manifest = _checked("classification", recipe, controls, world, say, prepared, manifest, ensure_prepared)
    return Classification(recipe, manifest, limit_train=controls.limit_train, limit_val=controls.limit_val)


def open_detection(
    recipe: Recipe,
    controls: Controls,
    world: World,
    *,
    say: Say,
    prepared: Callable[[], None] = lambda: None,
    manifest: Manifest | None = None,
) -> Detection:
    """COCO-style data, prepared once on each node by its first rank.

    prepared  as above
    Raises RecipeError for a recipe that cannot be, DataError for data that cannot be used.
    """
    from paceline.prepare.box_folder import ensure_boxes_prepared
    from paceline.tasks.ssd import Detection

    manifest = _checked("ssd", recipe, controls, world, say, prepared, manifest, ensure_boxes_prepared)
    return Detection(recipe, manifest, limit_train=controls.limit_train, limit_val=controls.limit_val)


def open_instances(
    recipe: Recipe,
    controls: Controls,
    world: World,
    *,
    say: Say,
    prepared: Callable[[], None] = lambda: None,
    manifest: Manifest | None = None,
) -> InstanceSegmentation:
    """COCO-style data with masks, prepared once on each node by its first rank.

    prepared  as above
    Raises RecipeError for a recipe that cannot be, DataError for data that cannot be used.
    """
    from paceline.prepare.box_folder import ensure_boxes_prepared
    from paceline.tasks.maskrcnn import InstanceSegmentation

    manifest = _checked("maskrcnn", recipe, controls, world, say, prepared, manifest, ensure_boxes_prepared)
    return InstanceSegmentation(recipe, manifest, limit_train=controls.limit_train, limit_val=controls.limit_val)


def _when_called(module: str, name: str) -> Callable[..., Any]:
    """A function of a task's module, which is imported at the first call."""

    def call(*arguments: Any, **named: Any) -> Any:
        return getattr(importlib.import_module(f"paceline.tasks.{module}"), name)(*arguments, **named)

    return call


TASKS: dict[str, Callable[..., Task]] = {
    "classification": open_classification,
    "ssd": open_detection,
    "maskrcnn": open_instances,
}
# What the two typed parts of a task's recipe are, with their defaults; and what refuses one that cannot be.
SETTINGS: dict[str, tuple[Any, Any]] = {name: (workload.model, workload.input) for name, workload in WORKLOADS.items()}
CHECKS: dict[str, Callable[[Recipe], None]] = {name: workload.check for name, workload in WORKLOADS.items()}
# (recipe, system, classes=N) -> what a training step needs on one rank.
MEMORY: dict[str, Callable[..., MemoryEstimate]] = {
    "classification": _when_called("classification", "classifier_memory"),
    "ssd": _when_called("ssd", "detector_memory"),
    "maskrcnn": _when_called("maskrcnn", "segmenter_memory"),
}
# (recipe, classes) -> the network of a recipe for so many classes, for checkpoints.
BUILDERS: dict[str, Callable[[Recipe, int], nn.Module]] = {
    "classification": _when_called("classification", "build_classifier"),
    "ssd": _when_called("ssd", "build_detector"),
    "maskrcnn": _when_called("maskrcnn", "build_segmenter"),
}


def check_request(recipe: Recipe, data: str) -> None:
    """Refuse what can be refused before anything is opened; a task of one's own looks for itself.

    data  as Controls.data
    Raises RecipeError for an unknown task or a recipe that cannot be, UserError for a data folder that is not there.
    """
    if is_in_file(recipe.task):
        return
    if recipe.task not in WORKLOADS:
        raise RecipeError(
            f"--task {recipe.task}: there is no such task. Known: {', '.join(WORKLOADS)}. One of your own: ./file.py:function"
        )
    CHECKS[recipe.task](recipe)
    if data:
        data_folder(data, recipe.task)


def open_task(
    recipe: Recipe,
    controls: Controls,
    world: World,
    *,
    say: Say,
    prepared: Callable[[], None] = lambda: None,
    manifest: Manifest | None = None,
) -> Task:
    """The recipe's task on the asked data: one of TASKS, or a function like them in a Python file of one's own.

    prepared  called once the data are prepared, before anything is opened or built; a task of one's own may prepare later
    manifest  of data to score on, for our own tasks; None: the data that `controls` names
    Raises RecipeError for an unknown task, DataError for data that cannot be used.
    """
    if is_in_file(recipe.task):
        prepared()
        return from_file(recipe.task, "task")(recipe, controls, world, say=say)
    check_request(recipe, "" if manifest is not None else controls.data)
    return TASKS[recipe.task](recipe, controls, world, say=say, prepared=prepared, manifest=manifest)


def network_memory(recipe: Recipe, system: System, classes: int = 0) -> MemoryEstimate:
    """The memory estimate of a recipe without its data.

    classes  0 = those of the data set that the recipe was written for
    """
    if recipe.task not in MEMORY:
        raise RecipeError(
            f"--task {recipe.task}: the memory of this task is not known without its data ({', '.join(MEMORY)} is)."
        )
    CHECKS[recipe.task](recipe)
    classes = classes or DATA_CLASSES.get(recipe.target_data, 0)
    return MEMORY[recipe.task](recipe, system, **({"classes": classes} if classes else {}))


def data_folder(data: str, task: str) -> Path:
    """The folder that --data names. Raises UserError, with what a built-in task's data folder holds, where it is not there."""
    root = Path(data).expanduser()
    if not root.is_dir():
        raise UserError(f"--data {data}: there is no such folder. Name one that holds {WORKLOADS[task].data}.")
    return root


def data_root(data: str, task: str, say: Say) -> Path:
    """The asked data set's folder; without one, the built-in shapes, rendered into the cache on first use.

    Raises UserError when the folder is not there.
    """
    if data:
        return data_folder(data, task)
    from paceline.prepare.shapes import shapes_folder

    started: list[int] = []

    def tell(done: int, total: int) -> None:
        if not started:
            say(f"rendering the built-in shapes ({total:,} pictures, once) into the cache")
            started.append(done)

    return shapes_folder("classes" if task == "classification" else "boxes", progress=tell)
