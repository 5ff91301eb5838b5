"""A file of weights in the place of a run, as predict and eval take it: which words mean one, and which recipe was named with it."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paceline.checkpoint.layout import INDEX
from paceline.cli.choose import choose_recipe
from paceline.cli.flags import parse_recipe
from paceline.config.errors import RecipeError
from paceline.config.recipe import Recipe
from paceline.weights.forms.published import PUBLISHED


@dataclass(frozen=True)
class NoMore:
    """No flags beside the recipe's own."""


def means_weights(path: Path) -> bool:
    """Whether the first word of a command means weights and no run: a file, a folder of arrays, a checkpoint, a published name."""
    if path.is_file():
        return path.suffix != ".json"
    if path.is_dir():
        named = (path / INDEX).is_file() or any(path.glob("*.npy")) or any(path.glob("*.index"))
        return named and not (path / "run.json").is_file()
    return str(path) in PUBLISHED or path.with_name(f"{path.name}.index").is_file()


def weights_of(path: Path, say: Callable[[str], None]) -> Path:
    """The file to read; published weights are brought into the cache.

    Raises CheckpointError as `weights_file`, and for weights that made-up batches trained; DataError where they cannot be brought.
    """
    from paceline.training.building import refuse_synthetic_weights, weights_file
    from paceline.weights.forms.bring import bring_to_cache, is_published

    name = str(path)
    if is_published(name):
        return bring_to_cache(name, say=say)
    file = weights_file(name)
    refuse_synthetic_weights(file, name)
    return file


def named_recipe(words: str) -> tuple[dict[str, Recipe], frozenset[str]]:
    """--recipe 'NAME [--model.x VALUE ...]' -> the recipe by those words, and its fields that were set by hand; ({}, none) of "".

    Raises RecipeError for a recipe that is not there, UserError for a flag that it has not.
    """
    try:
        name, *flags = shlex.split(words) or [""]
    except ValueError as problem:
        raise RecipeError(f"--recipe {words}: {problem}.") from None
    if not name:
        return {}, frozenset()
    if not flags:
        return {name: choose_recipe(name)}, frozenset()
    asked = parse_recipe([name, *flags], NoMore(), verb="weights check FILE --recipe")
    return {words: asked.recipe}, asked.given
