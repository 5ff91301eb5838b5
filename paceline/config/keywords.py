"""Keywords of the Python call: run controls and fields of a recipe, checked as flags are."""

from __future__ import annotations

import difflib
import numbers
import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from paceline._utils.errors import UserError
from paceline._utils.names import flatten
from paceline.config.bounds import checked, hints_of
from paceline.config.habits import elsewhere
from paceline.config.recipe import NO_FLAG, Recipe
from paceline.config.run import Controls, fill
from paceline.config.submission import Submission

# Keywords of the call itself.
OWN = ("data", "out", "system", "changes")


def controls_and_changes(
    recipe: Recipe, keywords: Mapping[str, Any], changes: Mapping[str, Any]
) -> tuple[Controls, dict[str, Any]]:
    """What the call's keywords ask of the run, and every change of the recipe: dotted names, as `override` takes them.

    changes  dotted names that were given as such
    Raises UserError for a keyword that is neither, naming its nearest neighbours, and for a value of another type.
    """
    if not isinstance(changes, Mapping) or not all(isinstance(name, str) for name in changes):
        raise UserError('changes is a dict of dotted names, as changes={"optim.lr": 0.01}.')
    hints = hints_of(Controls)
    of_recipe = {entry.name for entry in fields(recipe)} - {NO_FLAG}
    controls: dict[str, Any] = {}
    of_mlperf = {name.partition(".")[2]: value for name, value in changes.items() if name.startswith("mlperf.")}
    if of_mlperf and "mlperf" in keywords:
        raise UserError("mlperf is given as a keyword and in changes: give it once.")
    if of_mlperf:
        keywords = {**keywords, "mlperf": of_mlperf}
    changed = {name: _plain(value) for name, value in changes.items() if not name.startswith("mlperf.")}
    for name, value in keywords.items():
        if name == "mlperf":
            controls[name] = _submission(value)
        elif name == "sink" and isinstance(value, str):
            controls[name] = (value,)
        elif name in hints:
            controls[name] = checked(hints[name], _plain(value), name)
        elif name not in of_recipe:
            raise UserError(f"there is no keyword {name!r}.{_nearest(name, recipe)}")
        elif name in changes:
            raise UserError(f"{name} is given as a keyword and in changes: give it once.")
        else:
            changed[name] = _plain(value)
    return Controls(**controls), changed


def _submission(value: Any) -> Submission:
    """mlperf=... as a dict of its fields, or as a Submission."""
    facts = asdict(value) if isinstance(value, Submission) else value
    known = [entry.name for entry in fields(Submission)]
    if not isinstance(facts, Mapping):
        raise UserError(f'mlperf is {value!r:.60}: must be a dict of its fields, as mlperf={{"submitter": "Us"}}.')
    if unknown := [name for name in facts if name not in known]:
        raise UserError(f"mlperf has no field {unknown[0]!r:.60}. Known: {', '.join(known)}.")
    return fill(Submission(), {name: _plain(one) for name, one in facts.items()}, "mlperf")


def _plain(value: Any) -> Any:
    """Paths as text, and other libraries' numbers (numpy's) as Python's."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else value


def _nearest(name: str, recipe: Recipe) -> str:
    below = {name: name.rpartition(".")[2] for name in flatten(recipe) if "." in name}
    of_recipe = (entry.name for entry in fields(recipe) if entry.name != NO_FLAG)
    whole = [*OWN, *(entry.name for entry in fields(Controls)), *of_recipe]
    same, _ = elsewhere(name.replace("_", "-"), [f"--{one.replace('_', '-')}" for one in (*whole, *below)])
    near = [flag.removeprefix("--").replace("-", "_") for flag in same]
    near = near or [dotted for dotted, last in below.items() if last == name]
    near = near or difflib.get_close_matches(name, [*whole, *below], n=2, cutoff=0.5)
    ways = [f'changes={{"{one}": ...}}' if "." in one else f"{one}=..." for one in near[:3]]
    hint = f" Did you mean {' or '.join(ways)}?" if ways else ""
    return f"{hint} Keywords: {', '.join(dict.fromkeys(whole))}; fields below these, as optim.lr, go into changes."
