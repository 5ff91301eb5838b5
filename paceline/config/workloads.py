"""The built-in workloads, as far as they can be told without torch: what their recipes hold, and which of those cannot be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.config.classification import PhotoInput, ResNetModel, check_classification
from paceline.config.detection import BoxInput, SSDModel, check_detection
from paceline.config.errors import RecipeError
from paceline.config.instances import InstanceInput, MaskRCNNModel, check_instances
from paceline.config.recipe import Recipe, check_recipe
from paceline.config.run import fill, run_file

CLASS_FOLDERS = "train/CLASS/*.jpg and val/CLASS/*.jpg"
BOXES = (
    "annotations in COCO's, Pascal VOC's or YOLO's form beside its images (annotations/instances_train2017.json and "
    "train2017/, data.yaml, or Annotations/ and JPEGImages/)"
)


@dataclass(frozen=True)
class Workload:
    """One workload, for menus and messages."""

    about: str  # what it is, in a line
    model: Any  # the network's part of a recipe, with its defaults
    input: Any  # the data treatment's part, with its defaults
    check: Callable[[Recipe], None]  # raises RecipeError for a recipe that cannot be
    headline: str  # the metric that decides which checkpoint is best; larger is better
    data: str  # what a data folder holds


WORKLOADS: dict[str, Workload] = {
    "classification": Workload(
        "ResNet: classes of photos", ResNetModel(), PhotoInput(), check_classification, "top1", CLASS_FOLDERS
    ),
    "ssd": Workload("SSD: objects by their boxes", SSDModel(), BoxInput(), check_detection, "box_ap", BOXES),
    "maskrcnn": Workload(
        "Mask R-CNN: objects by their boxes and masks",
        MaskRCNNModel(),
        InstanceInput(),
        check_instances,
        "mask_ap",
        f"{BOXES}, with polygons or run lengths",
    ),
}


def saved_recipe(facts: Mapping[str, Any], path: Path) -> Recipe:
    """The recipe in run.json, for a built-in task; the Python file of a recipe of one's own is not needed for that.

    path   the run folder or run.json, for the message
    Raises RecipeError for another task, for keys of another version, and for values that cannot be meant.
    """
    name = facts["recipe"].get("task")
    if not isinstance(name, str) or name not in WORKLOADS:
        raise RecipeError(f"{run_file(path)}: its task {name!r} is not one of ours ({', '.join(WORKLOADS)}).")
    workload = WORKLOADS[name]
    try:
        recipe = fill(Recipe(task=name, model=workload.model, input=workload.input), facts["recipe"], "recipe")
        check_recipe(recipe)
        workload.check(recipe)
    except RecipeError as problem:
        raise RecipeError(f"{run_file(path)}: {problem}") from None
    return recipe
