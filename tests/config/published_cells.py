"""A cell of a published table: a value, and where it stands: a fact sheet's section, a source file, or `ours` with the reason.

The sheets (A: ResNet-50, B: Mask R-CNN, one of SSD) are lists of facts gathered from the systems' public sources. They are no
part of this repository; their paragraphs are cited by number.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Cell:
    """One value of a recipe's field."""

    value: Any
    source: str


Table = dict[str, Cell]


def sheet(section: str, /, **values: Any) -> Table:
    """Cells that a sheet's section or a source file gives; __ in a name is the dot of a field within a field."""
    return {name.replace("__", "."): Cell(value, section) for name, value in values.items()}


def ours(reason: str, /, **values: Any) -> Table:
    """Cells that no source gives, or that ours fill otherwise, and why."""
    return sheet(f"ours: {reason}", **values)


def joined(*parts: Table) -> Table:
    """Parts of one table; of a field in several, the last one's."""
    return {name: cell for part in parts for name, cell in part.items()}


def leaves(node: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values of all fields of a dataclass, those within its fields in their place."""
    for entry in dataclasses.fields(node):
        value = getattr(node, entry.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, f"{above}{entry.name}.")
        else:
            yield f"{above}{entry.name}", value


def same(found: Any, wanted: Any) -> bool:
    """Equal, numbers to nine digits, and truth values only to truth values."""
    if isinstance(wanted, tuple) or isinstance(found, tuple):
        return (
            isinstance(found, tuple)
            and isinstance(wanted, tuple)
            and len(found) == len(wanted)
            and all(map(same, found, wanted))
        )
    if isinstance(wanted, bool) or isinstance(found, bool) or isinstance(wanted, str):
        return type(found) is type(wanted) and found == wanted
    return isinstance(found, int | float) and math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-12)


def differences(recipe: Any, table: Mapping[str, Cell]) -> list[str]:
    """Fields of a recipe that are not as its table has them, fields without a cell, and cells without a field; a line each."""
    found = dict(leaves(recipe))
    lines = [f"{name}: its published_*.py has no cell for it" for name in found if name not in table]
    lines += [f"{name}: the recipe has no such field" for name in table if name not in found]
    for name, cell in table.items():
        if name in found and not same(found[name], cell.value):
            lines.append(f"{name}: {found[name]!r}, but {cell.value!r} by {cell.source}")
    return lines
