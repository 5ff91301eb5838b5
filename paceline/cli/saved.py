"""A request read back from a run.json: as data. Python files that it names run only where this command line names them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.cli.choose import choose_recipe
from paceline.cli.voice import complain
from paceline.config.errors import RecipeError
from paceline.config.python_file import is_in_file, same_file
from paceline.config.recipe import Recipe, check_recipe
from paceline.config.run import Controls, check_controls, fill, read_run, saved_system
from paceline.config.system import System
from paceline.config.workloads import saved_recipe as of_built_in_task

# More images than any data set has.
MOST_IMAGES = 2**40


@dataclass(frozen=True)
class Named:
    """What this command line names in place of what a run.json names."""

    recipe: str = ""  # --recipe ./file.py:function
    task: str = ""  # --task ./file.py:function
    again: str = ""  # the command, for a message: paceline eval RUN


def saved_recipe(path: Path, named: Named, *, edited: bool = False) -> tuple[str, Recipe, dict[str, Any]]:
    """(recipe name, recipe as it was trained, all facts) of a run folder or run.json.

    edited   whether a run.json that was edited by hand may be taken, with a line that says so
    A recipe of one's own is read back without its Python file, unless its task is one's own too: then files that `named`
    does not name are not imported.
    Raises RecipeError when such a file is gone or not named, UserError when `path` is no run.
    """
    facts = read_run(path, changed=complain if edited else None)
    name, task = named.recipe or facts["name"], named.task or facts["recipe"].get("task")
    facts = {**facts, "recipe": {**facts["recipe"], "task": task}}
    if not isinstance(task, str) or not is_in_file(task):
        return facts["name"], of_built_in_task(facts, path), facts
    _refuse_unnamed(path, facts["name"], facts["recipe"]["task"], named)
    try:
        template = choose_recipe(name)
    except RecipeError as problem:
        raise RecipeError(f"{path}: its recipe {name!r} is not to be had any more. {problem}") from None
    recipe = fill(replace(template, task=task), facts["recipe"], "recipe")
    check_recipe(recipe)
    return name, recipe, facts


def saved_request(
    path: Path, words: Sequence[str], verb: str
) -> tuple[tuple[str, Recipe, str, System], Controls, dict[str, Any], list[str]]:
    """What a run.json asked for, as the starting point of the same command again; all facts; and the words left over.

    words   what follows the run on the command line: --recipe is taken out, --task stays, a flag of every recipe
    --out is asked anew.
    """
    recipe_file, rest = _take(words, "--recipe")
    named = Named(recipe_file, _take(words, "--task")[0], f"paceline {verb} {shlex.quote(str(path))}")
    name, recipe, facts = saved_recipe(path, named, edited=True)
    controls = fill(Controls(), {**facts["controls"], "out": "", "quiet": False, "json": False}, f"{path}: controls")
    check_controls(controls)
    return (name, recipe, facts.get("system_name", "auto"), saved_system(facts, path)), controls, facts, rest


def saved_count(facts: Mapping[str, Any], name: str) -> int:
    """A number of images in a run.json's plan. Raises RecipeError for what is not a whole number above 0."""
    number = facts["plan"].get(name)
    if type(number) is not int or not 1 <= number <= MOST_IMAGES:
        raise RecipeError(f"run.json: plan.{name} is {json.dumps(number)[:60]}: must be a whole number above 0.")
    return number


def _refuse_unnamed(path: Path, name: str, task: str, named: Named) -> None:
    """Of the Python files that the run's recipe and task come from, each must be one that the command line names."""
    theirs = {"recipe": name, "task": task}
    given = {"recipe": named.recipe, "task": named.task}
    missing = [
        what
        for what, where in theirs.items()
        if is_in_file(where) and not given[what] and not any(same_file(where, other) for other in given.values())
    ]
    if not missing:
        return
    if len(missing) == 2 and same_file(name, task):
        missing = ["task"]  # one file, which is named by either
    wanted = {what: given[what] or theirs[what] for what in theirs if given[what] or what in missing}
    flags = [f"--{what} {shlex.quote(where if where.isprintable() else '?')}" for what, where in wanted.items()]
    whose = " and ".join(f"{what} {theirs[what]!r}" for what in missing)
    raise RecipeError(
        f"{path}: its {whose}: Python code that a run names is not run unasked. Where you trust it:\n"
        f"  {' '.join([named.again, *flags])}"
    )


def _take(words: Sequence[str], flag: str) -> tuple[str, list[str]]:
    """The value of `flag` among the words, empty where it is not there, and the other words."""
    value, rest, words = "", [], list(words)
    while words:
        word = words.pop(0)
        if word == flag:
            if not words:
                raise RecipeError(f"{flag}: name one, e.g. {flag} ./file.py:function")
            value = words.pop(0)
        elif word.startswith(f"{flag}="):
            value = word.partition("=")[2]
        else:
            rest.append(word)
    return value, rest
