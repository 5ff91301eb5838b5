"""A request read back from a run.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.cli.choose import choose_recipe
from paceline.config.errors import RecipeError
from paceline.config.recipe import Recipe
from paceline.config.run import Controls, fill, read_run
from paceline.config.system import System


def saved_recipe(path: Path) -> tuple[str, Recipe, dict[str, Any]]:
    """(recipe name, recipe as it was trained, all facts) of a run folder or run.json.

    A recipe of one's own is read back without its Python file, unless its task is one's own too.
    Raises RecipeError when that file is gone, UserError when `path` is no run.
    """
    facts = read_run(path)
    from paceline.tasks import SETTINGS
    from paceline.trained import saved_recipe as of_built_in_task

    name = facts["name"]
    if facts["recipe"].get("task") in SETTINGS:
        return name, of_built_in_task(facts, str(path)), facts
    try:
        template = choose_recipe(name)
    except RecipeError as problem:
        raise RecipeError(f"{path}: its recipe {name!r} is not to be had any more. {problem}") from None
    return name, fill(template, facts["recipe"], "recipe"), facts


def saved_request(path: Path) -> tuple[tuple[str, Recipe, str, System], Controls, dict[str, Any]]:
    """What a run.json asked for, as the starting point of the same command again, and all facts; --out is asked anew."""
    name, recipe, facts = saved_recipe(path)
    system = fill(System(), facts["system"], "system")
    controls = fill(Controls(), {**facts["controls"], "out": ""}, "controls")
    return (name, recipe, facts.get("system_name", "auto"), system), controls, facts
