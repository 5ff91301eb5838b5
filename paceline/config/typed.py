"""Values read back from JSON, checked against the annotations of the dataclass that they are for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from paceline.config.errors import RecipeError

NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text", dict: "a table"}


@cache
def hints_of(kind: type) -> dict[str, Any]:
    """Field -> annotation; {} where the annotations of a class of one's own name what its module no longer has."""
    try:
        return get_type_hints(kind)
    except NameError:
        return {}


def checked(hint: Any, value: Any, where: str) -> Any:
    """`value` as a field annotated with `hint` has it: lists as tuples, whole numbers as floats where floats are wanted.

    where   the key, for the message
    Annotations beyond plain types, Literal and tuple are not looked into.
    Raises RecipeError naming the key, the value and what it must be.
    """
    if get_origin(hint) is Literal:
        if not any(type(value) is type(choice) and value == choice for choice in get_args(hint)):
            raise _wrong(where, value, f"one of {', '.join(map(str, get_args(hint)))}")
        return value
    if get_origin(hint) is tuple:
        return _checked_tuple(get_args(hint), value, where)
    if hint is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise _wrong(where, value, "a number of this size") from None
    if hint in NAMES and type(value) is not hint:
        raise _wrong(where, value, NAMES[hint])
    return _frozen(value)


def check_kinds(facts: Mapping[str, Any], kinds: Mapping[str, type], where: str) -> None:
    """Those of `kinds` that are in `facts` must be of their type.

    Raises RecipeError naming the key.
    """
    for name, kind in kinds.items():
        if name in facts and type(facts[name]) is not kind:
            raise _wrong(f"{where}: {name}", facts[name], NAMES.get(kind, "a list"))


def _checked_tuple(parts: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise _wrong(where, value, "a list")
    if len(parts) == 2 and parts[1] is Ellipsis:
        parts = (parts[0],) * len(value)
    if len(parts) != len(value):
        raise _wrong(where, value, f"a list of {len(parts)}")
    return tuple(checked(part, entry, f"{where}[{place}]") for place, (part, entry) in enumerate(zip(parts, value)))


def _frozen(value: Any) -> Any:
    return tuple(_frozen(entry) for entry in value) if isinstance(value, list) else value


def _wrong(where: str, value: Any, wanted: str) -> RecipeError:
    text = json.dumps(value, default=repr)
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    return RecipeError(f"{where} is {shown}: must be {wanted}.")
