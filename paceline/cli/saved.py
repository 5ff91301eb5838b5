"""A request read back from a run.json."""

from __future__ import annotations

from pathlib import Path

from paceline.cli.choose import choose_recipe
from paceline.config.errors import RecipeError
from paceline.config.recipe import Recipe
from paceline.config.run import Controls, fill, read_run
from paceline.config.system import System


def saved_recipe(path: Path) -> tuple[str, Recipe, dict]:
    """(recipe name, recipe as it was trained, all facts) of a run folder or run.json.

    Raises RecipeError when the recipe's own file is gone, UserError when the file is no run.
    """
    facts = read_run(path)
    name = facts["name"]
    try:
        template = choose_recipe(name)
    except RecipeError as problem:
        raise RecipeError(f"{path}: its recipe {name!r} is not to be had any more. {problem}") from None
    return name, fill(template, facts["recipe"], "recipe"), facts


def saved_request(path: Path) -> tuple[tuple[str, Recipe, str, System], Controls]:
    """What a run.json asked for, as the starting point of the same command again; --out is asked anew."""
    name, recipe, facts = saved_recipe(path)
    system = fill(System(), facts["system"], "system")
    controls = fill(Controls(), {**facts["controls"], "out": ""}, "controls")
    return (name, recipe, facts.get("system_name", "auto"), system), controls
