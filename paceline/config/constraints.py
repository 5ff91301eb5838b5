"""Values of dataclass fields, checked against the annotations: types of values read from JSON, and bounds beside the fields.

    momentum: Annotated[BelowOne, Help("momentum coefficient")] = 0.9
    multiple: Annotated[int, Ge(32), MultipleOf(32)] = 32

--help and refusals take their words from the annotation. A rule between two fields is checked by a function of their module.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from paceline._utils.errors import RecipeError
from paceline._utils.text import shorten

NAMES = {bool: "true or false", int: "an integer", float: "a number", str: "text", dict: "a table"}


@cache
def get_hints(kind: type) -> dict[str, Any]:
    """Field -> annotation; {} where the annotations of a class of one's own name what its module no longer has."""
    try:
        return get_type_hints(kind)
    except NameError:
        return {}


@cache
def get_annotations(kind: type) -> dict[str, Any]:
    """Field -> annotation, with what Annotated adds; {} as for `get_hints`."""
    try:
        return get_type_hints(kind, include_extras=True)
    except NameError:
        return {}


@cache
def get_help_texts(kind: type) -> dict[str, str]:
    """Field -> the text of its Help."""
    extras = {name: getattr(hint, "__metadata__", ()) for name, hint in get_annotations(kind).items()}
    return {name: extra.text for name, result in extras.items() for extra in result if isinstance(extra, Help)}


def convert_checked(hint: Any, value: Any, where: str) -> Any:
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
            raise _wrong(where, value, "a finite number") from None
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
        raise _wrong(where, value, f"a list of {len(parts)} values")
    return tuple(convert_checked(part, entry, f"{where}[{index}]") for index, (part, entry) in enumerate(zip(parts, value)))


def _frozen(value: Any) -> Any:
    return tuple(_frozen(entry) for entry in value) if isinstance(value, list) else value


def _wrong(where: str, value: Any, wanted: str) -> RecipeError:
    return RecipeError(f"{where}: must be {wanted}, got {shorten(json.dumps(value, default=repr), 60)}.")


# The names and fields are those of the package annotated-types. It is not asked for: this package needs only the standard library, and
# machines that only measure have no more.
@dataclass(frozen=True)
class Help:
    """What a field's flag does, as --help has it."""

    text: str  # one line, at most 90 characters


@dataclass(frozen=True)
class Gt:
    """Greater than a number."""

    gt: float  # the number


@dataclass(frozen=True)
class Ge:
    """That number, or greater."""

    ge: float  # the number


@dataclass(frozen=True)
class Lt:
    """Less than a number."""

    lt: float  # the number


@dataclass(frozen=True)
class Le:
    """That number, or less."""

    le: float  # the number


@dataclass(frozen=True)
class MultipleOf:
    """A whole multiple."""

    multiple_of: int  # of what


@dataclass(frozen=True)
class MinLen:
    """At least so many entries."""

    min_length: int  # how many


AboveZero = Annotated[float, Gt(0), Lt(math.inf)]
ZeroOrMore = Annotated[float, Ge(0), Lt(math.inf)]
Finite = Annotated[float, Gt(-math.inf), Lt(math.inf)]
Fraction = Annotated[float, Ge(0), Le(1)]
Share = Annotated[float, Gt(0), Le(1)]
BelowOne = Annotated[float, Ge(0), Lt(1)]
Count = Annotated[int, Ge(1)]
Whole = Annotated[int, Ge(0)]


def check_bounds(node: Any, above: str = "--", *, of: type | None = None) -> None:
    """Refuse the first field whose value is outside the bounds of its annotation, in groups of fields below it too.

    node    a dataclass
    above   what stands before a field's name in its flag: "--", "--system."
    of      a class that it inherits from, whose fields alone are looked at; None = all
    Raises RecipeError with flag, value and bounds.
    """
    for entry in fields(of or node):
        value, flag = getattr(node, entry.name), above + entry.name.rstrip("_").replace("_", "-")
        bounds = _bounded(type(node)).get(entry.name, ())
        if is_dataclass(value):
            check_bounds(value, f"{flag}.")
        elif not all(_holds(bound, value) for bound in bounds):
            raise RecipeError(f"{flag} {format_value(value)}: must be {_format_bounds(bounds)}.")


def format_bounds(kind: type, name: str) -> str:
    """A field's bounds for its help: "in [0, 1)", "1 or more"; "" where it has none."""
    return _format_bounds(_bounded(kind).get(name, ())).removesuffix(" and finite")


def format_value(value: Any) -> str:
    """A value as a person would write it behind its flag."""
    if isinstance(value, tuple):
        return " ".join(map(format_value, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


@cache
def _bounded(kind: type) -> dict[str, tuple[Any, ...]]:
    """Field -> its bounds, of the fields that have some."""
    return {name: bounds for name, hint in get_annotations(kind).items() if (bounds := tuple(_bounds(hint)))}


def _bounds(hint: Any) -> Iterator[Any]:
    """The bounds in an annotation; those of a tuple's entries, which are of one kind, first."""
    if get_origin(hint) is tuple:
        yield from _bounds(get_args(hint)[0])
    elif get_origin(hint) is Annotated:
        inner, *notes = get_args(hint)
        yield from _bounds(inner)
        yield from (note for note in notes if isinstance(note, Gt | Ge | Lt | Le | MultipleOf | MinLen))


def _holds(bound: Any, value: Any) -> bool:
    if isinstance(bound, MinLen):
        return len(value) >= bound.min_length
    if isinstance(value, tuple):
        return all(_holds(bound, entry) for entry in value)
    match bound:
        case Gt(limit):
            return value > limit
        case Ge(limit):
            return value >= limit
        case Lt(limit):
            return value < limit
        case Le(limit):
            return value <= limit
    return value % bound.multiple_of == 0


def _format_bounds(bounds: tuple[Any, ...]) -> str:
    low = high = None
    before = ""
    for bound in bounds:
        match bound:
            case Gt() | Ge():
                low = bound
            case Lt() | Le():
                high = bound
            case MultipleOf(step):
                before += f"a multiple of {step}, "
            case MinLen(least):
                before = f"{least} or more values, each {before}"
    return before + _range(low, high) if bounds else ""


def _range(low: Gt | Ge | None, high: Lt | Le | None) -> str:
    bottom: Any = -math.inf if low is None else low.gt if isinstance(low, Gt) else low.ge
    top: Any = math.inf if high is None else high.lt if isinstance(high, Lt) else high.le
    if bottom == -math.inf:
        return "finite" if top == math.inf else f"{top:,g} or less"
    if top == math.inf:
        start = f"above {bottom:,g}" if isinstance(low, Gt) else f"{bottom:,g} or more"
        return f"{start} and finite" if high is not None else start
    if isinstance(low, Ge) and isinstance(high, Le) and top > 1:
        return f"from {bottom:,} to {top:,}"
    return f"in {'[' if isinstance(low, Ge) else '('}{bottom:,}, {top:,}{']' if isinstance(high, Le) else ')'}"


# Published tables: JSON files beside the module that reads them, each row checked and made a frozen dataclass.

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
        raise RecipeError(f"{file}: invalid JSON ({problem}). Reinstall paceline.") from None
    if type(result) is not kind:
        raise RecipeError(f"{file}: must contain a {kind.__name__}. Reinstall paceline.")
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
