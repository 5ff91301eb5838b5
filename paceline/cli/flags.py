"""Flags are the fields of dataclasses. The recipe is picked first; then exactly its flags are offered, its values as defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from paceline.cli.choose import choose_recipe, choose_system
from paceline.config.errors import RecipeError
from paceline.config.recipe import Recipe, check_batch_and_lr, check_recipe
from paceline.config.system import System, check_system

Fields = TypeVar("Fields")


@dataclasses.dataclass(frozen=True)
class Asked:
    """What one command line asked for."""

    name: str  # the recipe's name
    recipe: Recipe
    system_name: str
    system: System
    controls: Any  # the verb's own dataclass
    given: frozenset[str]  # dotted names of the fields set by hand


def parse(arguments: Sequence[str], default: Fields, *, prog: str, description: str = "") -> Fields:
    """Flags of one dataclass, with `default`'s values. Prints a message and exits with 2 on bad flags."""
    import tyro

    return tyro.cli(
        type(default), default=default, args=list(arguments), prog=f"paceline {prog}", description=description or None
    )


def parse_recipe(
    arguments: Sequence[str],
    controls: Any,
    *,
    verb: str,
    base: tuple[str, Recipe, str, System] | None = None,
    description: str = "",
) -> Asked:
    """`RECIPE [--system NAME] [--flags]`: the recipe's fields flat, the system's under --system., `controls` flat.

    base   (recipe name, recipe, system name, system) when they come from a run instead of from the menu
    Raises RecipeError for an unknown recipe or system, or for a changed batch without its learning rate.
    """
    import tyro

    words = list(arguments)
    if base is None:
        name = _first_word(words, verb)
        recipe = choose_recipe(name)
        system_name, words = _take_system(words[1:])
        system = choose_system(system_name or "auto")
    else:
        name, recipe, system_name, system = base
        asked_system, words = _take_system(words)
        if asked_system:
            system_name, system = asked_system, choose_system(asked_system)
    flat = tyro.conf.arg(name="")
    flags = dataclasses.make_dataclass(
        "Flags",
        [
            ("recipe", Annotated[Recipe[type(recipe.model), type(recipe.input)], flat]),
            ("system", System),
            ("controls", Annotated[type(controls), flat]),
        ],
    )
    parsed = tyro.cli(
        flags,
        default=flags(recipe, system, controls),
        args=words,
        prog=f"paceline {verb} {name}",
        description=description or _first_paragraph(name),
    )
    given = frozenset(word[2:].split("=")[0].replace("-", "_") for word in words if word.startswith("--"))
    changed = _settle_length(parsed.recipe, given)
    check_batch_and_lr(recipe, changed, set(given))
    check_recipe(changed)
    check_system(parsed.system)
    return Asked(name, changed, system_name or "auto", parsed.system, parsed.controls, given)


def _settle_length(recipe: Recipe, given: frozenset[str]) -> Recipe:
    """--epochs on a recipe counted in images (or the reverse) replaces its length instead of contradicting it."""
    if "epochs" in given and "images_seen" not in given and recipe.epochs:
        return dataclasses.replace(recipe, images_seen=0)
    if "images_seen" in given and "epochs" not in given and recipe.images_seen:
        return dataclasses.replace(recipe, epochs=0.0)
    return recipe


def _first_word(words: list[str], verb: str) -> str:
    from paceline.recipes import RECIPES

    if not words or words[0].startswith("-"):
        menu = "\n".join(f"  {name}" for name in RECIPES)
        raise RecipeError(f"name a recipe first: paceline {verb} RECIPE [flags]\n{menu}\nEach answers --help.")
    return words[0]


def _take_system(words: list[str]) -> tuple[str, list[str]]:
    """Take `--system NAME` out of the words; the system must be known before its fields can be offered as flags."""
    name, rest = "", []
    position = 0
    while position < len(words):
        word = words[position]
        if word == "--system":
            if position + 1 == len(words):
                raise RecipeError("--system: name one, e.g. --system h100x8.")
            name = words[position + 1]
            position += 1
        elif word.startswith("--system="):
            name = word.partition("=")[2]
        else:
            rest.append(word)
        position += 1
    return name, rest


def _first_paragraph(name: str) -> str:
    """The recipe function's docstring opens the recipe's --help."""
    import inspect

    from paceline.recipes import RECIPES

    text = inspect.getdoc(RECIPES[name]) if name in RECIPES else None
    return (text or name).split("\n\n")[
        0
    ] + "\n\n--system NAME picks where it runs: auto, cpu, gpu, h100x8, h200x8, a100x8, v100x8."
