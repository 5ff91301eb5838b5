"""The recipe and the system of a name: from the menu, or from a Python file of the user's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from paceline._utils.errors import PacelineError, RecipeError
from paceline._utils.text import suggest_name
from paceline._utils.user_code import is_in_file, list_functions, load_from_file
from paceline.config.recipe import Recipe
from paceline.config.system import System
from paceline.models.workload import WorkloadSpec

# Only names of published rows have it: workload@submitter-machine-batch.
MARK = "@"


def choose_recipe(name: str) -> Recipe:
    """The recipe called `name`: from the menu, a published row, or `path/to/file.py:function`; of a workload there, with a recipe's
    defaults.

    Raises RecipeError naming the nearest neighbours.
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
    result = _choose(name, RECIPES, (Recipe, WorkloadSpec), "recipe")
    return Recipe(task=name, model=result.model, input=result.input) if isinstance(result, WorkloadSpec) else result


def choose_system(name: str) -> System:
    """The system called `name`: from the menu, or `path/to/file.py:function`.

    Raises RecipeError naming the nearest neighbours.
    """
    from paceline.distributed.device.systems import SYSTEMS

    return _choose(name, SYSTEMS, (System,), "system")


def is_folder(word: str) -> bool:
    """Whether a command's first word is a folder; the name of a recipe always means the recipe."""
    from paceline.config.recipes import RECIPES

    return word not in RECIPES and Path(word).is_dir()


def _refuse_path(name: str, noun: str) -> None:
    """Refuse a Python file without its function, or another path. The file's functions are listed, not run."""
    if is_in_file(name):
        return
    path = Path(name).expanduser()
    if not name.endswith(".py"):
        gone = "" if path.exists() else " there is no such file or folder;"
        raise RecipeError(f"{name}:{gone} a {noun} of your own is a function in a Python file: ./file.py:function")
    if not path.is_file():
        raise RecipeError(f"{name}: there is no such file.")
    there = list_functions(path)
    if not there:
        raise RecipeError(f"{name}: name the function after a colon, {name}:function; this file has none.")
    raise RecipeError(f"{name}: name the function: {' or '.join(f'{name}:{function}' for function in there)}")


def _choose(name: str, menu: Mapping[str, Callable[[], Any]], kinds: tuple[type, ...], noun: str) -> Any:
    if name.endswith(".py") or "/" in name:
        _refuse_path(name, noun)
    own = is_in_file(name)
    maker = load_from_file(name, noun) if own else menu.get(name)
    if maker is None:
        known = f"Known: {', '.join(menu)}."
        raise RecipeError(
            f"there is no {noun} {name!r}. {suggest_name(name, menu) or known} One of your own: ./file.py:function"
        )
    try:
        thing = maker() if callable(maker) else maker
    except PacelineError:
        raise
    except (Exception, SystemExit) as problem:
        if not own:
            raise
        raise RecipeError(f"{name}: calling it fails ({type(problem).__name__}: {problem}).") from problem
    if not isinstance(thing, kinds):
        raise RecipeError(f"{name}: returned {type(thing).__name__}, not a {kinds[0].__name__}.")
    return thing
