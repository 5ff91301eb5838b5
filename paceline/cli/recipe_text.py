"""A recipe's values for people: in groups, with units, and how they differ from another recipe's."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import groupby, zip_longest
from typing import Any, get_args

from paceline._utils.names import flatten
from paceline._utils.text import WORDS
from paceline.config.constraints import format_value, get_hints
from paceline.config.recipe import NO_FLAG, Recipe, differing_fields
from paceline.config.recipes import RECIPES, find_base
from paceline.config.recipes.published_rows import ROWS
from paceline.models.registry import get_workload

# Field -> unit. Those of schedule and eval count in the unit that their group names.
UNITS: dict[str, str] = dict.fromkeys(
    ("global_batch_size", "max_images", "bn_batch_size", "model.loss_normalizer_images"), " images"
)
UNITS |= dict.fromkeys(
    [
        f"input.{name}"
        for name in ("image_size", "min_size", "max_size", "size_divisor", "eval_crop_size", "eval_resize_size")
    ],
    " px",
)
UNITS |= {
    "model.rpn.anchor_sizes": " px",
    "input.hue": " turns",
    "input.min_object_area": " px2",
    "input.min_box_area": " px2",
}
COUNTED = {"epochs": " epochs", "fraction": " of the run", "steps": " steps"}
LENGTHS = [f"schedule.{name}" for name in ("warmup", "decay_start", "decay_end", "milestones")]
LENGTHS += [f"eval.{name}" for name in ("start", "every", "at")]
# Group, name and texts of a field.
Cell = tuple[str, str, Sequence[str]]


def base_recipe(name: str, recipe: Recipe) -> tuple[str, Recipe]:
    """What a recipe is compared with, and its name: as the menu has it where it was changed, else what it is built on."""
    own = RECIPES.get(name) or (ROWS[name].make if name in ROWS else None)
    if own is not None and (made := own()) != recipe:
        return name, made
    if result := find_base(name, recipe.task):
        return result, RECIPES[result]()
    workload = get_workload(recipe.task)
    return "the defaults", Recipe(task=recipe.task, model=workload.model, input=workload.input)


def differing_cells(one: Recipe, other: Recipe) -> list[Cell]:
    """The fields in which two recipes differ, with both values; a dash where one of them has no such field."""
    return [_cell(name, one, other) for name in _in_groups(differing_fields(one, other))]


def list_cells(recipe: Recipe, other: Recipe) -> list[Cell]:
    """All fields, with a star before those whose value `other` has not."""
    changed, names = differing_fields(recipe, other), _in_groups(flatten(recipe))
    result = (_cell(name, recipe) for name in names)
    return [
        (group, f"{'*' if name in changed else ' '} {label}", texts) for name, (group, label, texts) in zip(names, result)
    ]


def format_grid(result: Iterable[Cell], width: int) -> list[str]:
    """Groups in a column of their own, `name value` beside them as often as fits; a value that is too long has its own lines."""
    lines, result = [], list(result)
    indent = max(len(group) for group, _, _ in result) + 1
    for group, some in groupby(result, key=lambda cell: cell[0]):
        some = list(some)
        most, room, rows = max(len(name) for _, name, _ in some) + 2, width - indent, [[]]
        whole = [f"{name:<{most}}{text}" for _, name, (text,) in some]
        wide = max((len(cell) for cell in whole if len(cell) <= room // 2 - 2), default=room)
        for cell in whole:
            if len(rows[-1]) == max(1, (room + 3) // (wide + 3)) or max(map(len, (cell, *rows[-1]))) > wide:
                rows.append([])
            rows[-1].append(cell)
        text = []
        for line in ("   ".join(f"{cell:<{wide}}" for cell in row).rstrip() for row in rows if row):
            text += [line] if len(line) <= room else textwrap.wrap(line, room, subsequent_indent=" " * most, **WORDS)
        lines += [f"{head:<{indent}}{line}" for head, line in zip_longest([group], text, fillvalue="")]
    return lines


def format_recipe_table(result: Iterable[Cell], heads: Sequence[str], width: int) -> list[str]:
    """A line a field, a column each for the values of two recipes, whose names stand above."""
    result, lines = list(result), []
    indent, most = (max([len(cell[location]) for cell in result]) + 2 for location in (0, 1))
    wide = max(len(text) for texts in (heads, *(texts for _, _, texts in result)) for text in texts)
    wide, above = min(wide, (width - indent - most - 3) // 2), ""
    for group, name, texts in [("", "", heads), *result]:
        parts = [textwrap.wrap(text, wide) or [""] for text in texts]
        first = f"{group if group != above else '':<{indent}}{name:<{most}}"
        for start, left, right in zip_longest([first], *parts, fillvalue=""):
            lines.append(f"{start:<{indent + most}}{left:<{wide + 3}}{right}".rstrip())
        above = group
    return lines


def _group(name: str) -> str:
    return name.rpartition(".")[0]


def _in_groups(names: Iterable[str]) -> list[str]:
    """The names group by group as they come first, those of no group before all."""
    names = [name for name in names if name != NO_FLAG]
    groups = ["", *dict.fromkeys(map(_group, names))]
    return sorted(names, key=lambda name: groups.index(_group(name)))


def _cell(name: str, *recipes: Recipe) -> Cell:
    return (
        _group(name) or "recipe",
        name.rpartition(".")[2].replace("_", "-"),
        [_text(name, recipe) for recipe in recipes],
    )


def _text(name: str, recipe: Recipe) -> str:
    """One value in words, with its unit; a dash where the recipe has no such field."""
    *path, last = name.split(".")
    try:
        node = reduce(getattr, path, recipe)
        value: Any = getattr(node, last)
    except AttributeError:
        return "-"
    unit = COUNTED[getattr(recipe, path[0]).unit] if name in LENGTHS else UNITS.get(name, "")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        kinds = get_args(get_hints(type(node)).get(last))
        between = " to " if len(kinds) == 2 and Ellipsis not in kinds else ", "
        return f"{between.join(map(format_value, value))}{unit}" if value else "none"
    text = f"{value:,}" if isinstance(value, int) else format_value(value) or "none"
    return f"{text}{unit.removesuffix('s') if text == '1' else unit}"
