"""Published tables: JSON files beside the module that reads them, each row checked and made a frozen dataclass."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from paceline._utils.errors import RecipeError
from paceline.config.constraints import check_bounds, convert_checked, get_hints

Row = TypeVar("Row")


def read_rows(file: Path, kind: type[Row]) -> tuple[Row, ...]:
    """The rows of a file that holds a list. Raises RecipeError naming file, row and key for a row that does not fit `kind`."""
    return tuple(_row(kind, facts, f"{file.name}[{number}]") for number, facts in enumerate(_parsed(file, list)))


def read_menu(file: Path, kind: type[Row]) -> dict[str, Row]:
    """The rows of a file that holds a table, by their names; otherwise as `read_rows`."""
    return {name: _row(kind, facts, f"{file.name}: {name}") for name, facts in _parsed(file, dict).items()}


def read_single(file: Path, kind: type[Row]) -> Row:
    """A file that is one row, with rows inside it; otherwise as `read_rows`."""
    return _row(kind, _parsed(file, dict), file.name)


def _parsed(file: Path, kind: type) -> Any:
    try:
        result = json.loads(file.read_text("utf-8"))
    except ValueError as problem:
        raise RecipeError(f"{file}: this table is damaged ({problem}). Install paceline again.") from None
    if type(result) is not kind:
        raise RecipeError(f"{file}: this table must be a {kind.__name__}.")
    return result


def _row(kind: Any, facts: Any, where: str) -> Any:
    facts, hints = convert_checked(dict, facts, where), get_hints(kind)
    needed = {entry.name for entry in fields(kind) if entry.default is MISSING and entry.default_factory is MISSING}  # type: ignore[arg-type]
    if wrong := sorted((facts.keys() - hints.keys()) | (needed - facts.keys())):
        raise RecipeError(f"{where}: {'unknown' if wrong[0] in facts else 'missing'} key {wrong[0]!r}.")
    row = kind(**{name: _value(hints[name], value, f"{where}: {name}") for name, value in facts.items()})
    check_bounds(row, f"{where}: --")
    return row


def _value(hint: Any, value: Any, where: str) -> Any:
    """A row, a tuple of rows, or a mapping; anything else as `convert_checked` returns it."""
    parts = get_args(hint)
    if is_dataclass(hint):
        return _row(hint, value, where)
    if get_origin(hint) is tuple and _has_rows(parts[0]):
        return tuple(_value(parts[0], facts, f"{where}[{index}]") for index, facts in enumerate(value))
    if get_origin(hint) is Mapping:
        return {
            name: _value(parts[1], facts, f"{where}: {name}") for name, facts in convert_checked(dict, value, where).items()
        }
    return convert_checked(hint, value, where)


def _has_rows(hint: Any) -> bool:
    return is_dataclass(hint) or any(map(_has_rows, get_args(hint)))
