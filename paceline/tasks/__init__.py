"""The tasks, and how a recipe and a data set become one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from paceline.config.classification import PhotoInput, ResNetModel, check_classification
from paceline.config.detection import BoxInput, SSDModel, check_detection
from paceline.config.errors import RecipeError, UserError
from paceline.config.instances import InstanceInput, MaskRCNNModel, check_instances
from paceline.config.python_file import from_file, is_in_file
from paceline.config.recipe import Recipe
from paceline.config.run import Controls
from paceline.config.system import System
from paceline.data.manifest import Manifest
from paceline.dist.world import World
from paceline.prepare.box_folder import ensure_boxes_prepared
from paceline.prepare.folder import ensure_prepared
from paceline.tasks.classification import Classification, build_classifier, classifier_memory
from paceline.tasks.maskrcnn import InstanceSegmentation, build_segmenter, segmenter_memory
from paceline.tasks.memory import MemoryEstimate
from paceline.tasks.ssd import Detection, build_detector, detector_memory
from paceline.tasks.task import Task

Say = Callable[[str], None]


def prepared_once(world: World, prepare: Callable[[], Path]) -> Manifest:
    """The manifest in the folder that `prepare` returns; each node's first rank prepares, the others find it done."""
    if world.local_rank == 0:
        prepare()
    world.barrier()
    return Manifest.load(prepare())


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
    check_classification(recipe)
    manifest = manifest or prepared_once(
        world, lambda: ensure_prepared(data_root(controls.data, "classes", say), say=say)
    )
    prepared()
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
    check_detection(recipe)
    manifest = manifest or prepared_once(
        world, lambda: ensure_boxes_prepared(data_root(controls.data, "boxes", say), say=say)
    )
    prepared()
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
    check_instances(recipe)
    manifest = manifest or prepared_once(
        world, lambda: ensure_boxes_prepared(data_root(controls.data, "boxes", say), say=say)
    )
    prepared()
    return InstanceSegmentation(recipe, manifest, limit_train=controls.limit_train, limit_val=controls.limit_val)


TASKS: dict[str, Callable[..., Task]] = {
    "classification": open_classification,
    "ssd": open_detection,
    "maskrcnn": open_instances,
}
# What the two typed parts of a task's recipe are, for reading one back from run.json.
SETTINGS: dict[str, tuple[Any, Any]] = {
    "classification": (ResNetModel(), PhotoInput()),
    "ssd": (SSDModel(), BoxInput()),
    "maskrcnn": (MaskRCNNModel(), InstanceInput()),
}
MEMORY: dict[str, Callable[[Recipe, System], MemoryEstimate]] = {
    "classification": classifier_memory,
    "ssd": detector_memory,
    "maskrcnn": segmenter_memory,
}
CHECKS: dict[str, Callable[[Recipe], None]] = {
    "classification": check_classification,
    "ssd": check_detection,
    "maskrcnn": check_instances,
}
# The network of a recipe for so many classes, for checkpoints.
BUILDERS: dict[str, Callable[[Recipe, int], nn.Module]] = {
    "classification": build_classifier,
    "ssd": build_detector,
    "maskrcnn": build_segmenter,
}


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
    maker = TASKS.get(recipe.task)
    if maker is None:
        raise RecipeError(
            f"--task {recipe.task}: there is no such task. Known: {', '.join(TASKS)}. One of your own: ./file.py:function"
        )
    return maker(recipe, controls, world, say=say, prepared=prepared, manifest=manifest)


def network_memory(recipe: Recipe, system: System) -> MemoryEstimate:
    """The memory estimate of a recipe without its data (ImageNet's 1000 classes where the class count matters)."""
    if recipe.task not in MEMORY:
        raise RecipeError(
            f"--task {recipe.task}: the memory of this task is not known without its data ({', '.join(MEMORY)} is)."
        )
    CHECKS[recipe.task](recipe)
    return MEMORY[recipe.task](recipe, system)


def data_root(data: str, kind: str, say: Say) -> Path:
    """The asked data set's folder; without one, the built-in shapes, rendered into the cache on first use.

    Raises UserError when the folder is not there.
    """
    if data:
        root = Path(data).expanduser()
        if not root.is_dir():
            raise UserError(f"--data {data}: there is no such folder. Name one that holds train/ and val/.")
        return root
    from paceline.prepare.shapes import shapes_folder

    started: list[int] = []

    def tell(done: int, total: int) -> None:
        if not started:
            say(f"rendering the built-in shapes ({total:,} pictures, once) into the cache")
            started.append(done)

    return shapes_folder("classes" if kind == "classes" else "boxes", progress=tell)
