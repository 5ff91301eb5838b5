"""The workloads, by name; and one of your own, from its file. Importing it imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from paceline._utils.errors import RecipeError
from paceline._utils.user_code import is_in_file, load_from_file
from paceline.config.recipe import Recipe, check_recipe
from paceline.config.run import RunRecord, from_json, run_file
from paceline.models.maskrcnn.workload import MASK_RCNN
from paceline.models.resnet.workload import RESNET
from paceline.models.ssd.workload import SSD
from paceline.models.workload import WorkloadSpec

WORKLOADS: dict[str, WorkloadSpec] = {"classification": RESNET, "detection": SSD, "instance-segmentation": MASK_RCNN}


def get_workload(task: str) -> WorkloadSpec:
    """The workload that a recipe's `task` names: one of WORKLOADS, or `./file.py:name`, which is run as Python.

    Such a name must come from the user, never from a file's content: see `load_saved_recipe`.
    Raises RecipeError where there is none.
    """
    if not is_in_file(task):
        if task not in WORKLOADS:
            known = ", ".join(WORKLOADS)
            raise RecipeError(f"--task {task}: not found. Choose one of {known}, or a custom task: ./file.py:name")
        return WORKLOADS[task]
    result = load_from_file(task, "workload")
    if not isinstance(result, WorkloadSpec):
        raise RecipeError(f"{task}: must be a paceline.models.workload.WorkloadSpec, got a {type(result).__name__}.")
    return result


def load_saved_recipe(facts: RunRecord, path: Path, *, named: str, again: Callable[[str], str]) -> Recipe:
    """The recipe in run.json. The recipe's own Python file is not needed for that; its workload's is.

    path   the run folder or run.json, for the message
    named  the workload that the command line names instead of the one in run.json
    again  the name of a file's workload -> the command that trusts it, for a message
    Raises RecipeError for a task that is not ours or not named, for keys of another version, for invalid values.
    """
    if named and not (isinstance(named, str) and is_in_file(named)):
        raise RecipeError(f"--task-file {named!r:.80}: must name the file and the task: ./file.py:name")
    name = named or facts.recipe.get("task")
    if not isinstance(name, str) or (name not in WORKLOADS and not is_in_file(name)):
        raise RecipeError(f"{run_file(path)}: its task {name!r} is not a task of paceline ({', '.join(WORKLOADS)}).")
    if is_in_file(name) and not named:
        shown = name if name.isprintable() else "FILE.py:NAME"
        raise RecipeError(
            f"{run_file(path)}: its task {name!r} is Python code, which is not run by default. If you trust it:\n  "
            f"{again(shown)}"
        )
    workload = get_workload(name)
    try:
        template = Recipe(task=name, model=workload.model, input=workload.input)
        recipe = from_json(template, {**facts.recipe, "task": name}, "recipe")
        check_recipe(recipe)
        workload.network.check(recipe)
    except RecipeError as problem:
        raise RecipeError(f"{run_file(path)}: {problem}") from None
    return recipe


def gradient_sizes(workload: str) -> list[int]:
    """Numbers in each trained parameter of a workload's usual network, in the network's order."""
    import torch

    parts = WORKLOADS[workload]
    recipe = Recipe(task=workload, model=parts.model, input=parts.input)
    with torch.device("meta"):
        network = parts.network.build(recipe, parts.classes)
    return [parameter.numel() for parameter in network.parameters() if parameter.requires_grad]
