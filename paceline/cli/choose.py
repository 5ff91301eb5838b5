"""Names on the command line: a recipe or a system from the menu, or from a Python file of one's own."""

from __future__ import annotations

import difflib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from paceline.config.errors import RecipeError
from paceline.config.recipe import Recipe
from paceline.config.system import System

Thing = TypeVar("Thing")


def choose_recipe(name: str) -> Recipe:
    """The recipe called `name`: from the menu, or `path/to/file.py:function`.

    Raises RecipeError naming the nearest neighbours.
    """
    from paceline.recipes import RECIPES

    return _choose(name, RECIPES, Recipe, "recipe")


def choose_system(name: str) -> System:
    """The system called `name`: from the menu, or `path/to/file.py:function`.

    Raises RecipeError naming the nearest neighbours.
    """
    from paceline.systems import SYSTEMS

    return _choose(name, SYSTEMS, System, "system")


def _choose(name: str, menu: Mapping[str, Callable[[], Thing]], kind: type[Thing], noun: str) -> Thing:
    maker = from_file(name, noun) if ".py:" in name else menu.get(name)
    if maker is None:
        near = difflib.get_close_matches(name, menu, n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(near)}?" if near else f"Known: {', '.join(menu)}."
        raise RecipeError(f"there is no {noun} {name!r}. {hint} One of your own: ./file.py:function")
    thing = maker() if callable(maker) else maker
    if not isinstance(thing, kind):
        raise RecipeError(f"{name}: returned {type(thing).__name__}, not a {kind.__name__}.")
    return thing


def from_file(where: str, noun: str) -> Any:
    """The object called after the colon in the Python file before it.

    Raises RecipeError when either is missing or the file does not import.
    """
    path, _, attribute = where.rpartition(":")
    file = Path(path)
    if not file.is_file():
        raise RecipeError(f"{where}: there is no file {path}.")
    spec = importlib.util.spec_from_file_location(f"paceline_site_{file.stem}", file)
    assert spec is not None and spec.loader is not None  # a .py file always has a loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses in the file look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as problem:
        raise RecipeError(f"{where}: {path} does not import ({type(problem).__name__}: {problem}).") from problem
    if not hasattr(module, attribute):
        raise RecipeError(f"{where}: {path} has no {noun} {attribute!r}.")
    return getattr(module, attribute)
