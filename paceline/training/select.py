"""The recipe of a name: from the menu, or from a Python file of the user's."""

from __future__ import annotations

from pathlib import Path

from paceline._utils.errors import RecipeError
from paceline._utils.text import suggest_name
from paceline._utils.user_code import choose_named, is_in_file
from paceline.config.recipe import Recipe
from paceline.models.workload import WorkloadSpec

# Only names of published rows have it: workload@submitter-machine-batch.
MARK = "@"


def choose_recipe(name: str) -> Recipe:
    """The recipe called `name`: from the menu, a published row, or `path/to/file.py:function`; of a workload there, with a recipe's
    defaults.

    Raises RecipeError naming the nearest neighbors.
    """
    from paceline.config.recipes import RECIPES

    if MARK in name and not is_in_file(name):
        from paceline.config.recipes.published_rows import ROWS

        if name not in ROWS:
            hint = suggest_name(name, ROWS)
            raise RecipeError(
                f"there is no row {name!r}. {f'{hint} ' if hint else ''}`paceline list rows` prints them all."
            )
        return ROWS[name].make()
    result = choose_named(name, RECIPES, (Recipe, WorkloadSpec), "recipe")
    return Recipe(task=name, model=result.model, input=result.input) if isinstance(result, WorkloadSpec) else result


def is_folder(word: str) -> bool:
    """Whether a command's first word is a folder; the name of a recipe always means the recipe."""
    from paceline.config.recipes import RECIPES

    return word not in RECIPES and Path(word).is_dir()
