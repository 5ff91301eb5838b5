"""A program's command line by its own table, with argparse's habits: unique prefixes, `--flag=value`, `-j6`, several values."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any

from paceline._utils.errors import PacelineError
from paceline.tools.migrate.table import FlagTranslation, ReferenceProgram


class FlagError(PacelineError):
    """A line of an original that its own program would refuse."""

    def __init__(self, text: str, unknown: int = 1) -> None:
        super().__init__(text)
        self.unknown = unknown  # flags of the line that the program does not have


def _numbers(text: str) -> str:
    """GluonCV's texts of numbers and commas, in parentheses or not, stay texts."""
    for part in text.strip("()").split(","):
        float(part or 0)
    return text


def _shape(text: str) -> str:
    channels, height, width = map(int, text.split(","))
    if min(channels, height, width) < 1 or height != width:
        raise ValueError(text)
    return text


# Each raises ValueError for a text that is no such value; their results are the values in a Call.
KINDS: dict[str, Callable[[str], Any]] = {
    "int": int,
    "ints": int,
    "float": float,
    "str": str,
    "number": lambda text: float(text) if text else None,  # an empty text of GluonCV's is the default
    "list of numbers": _numbers,
    "pow2 or list of epochs": lambda text: text if "pow" in text else _numbers(text),
    "channels and two equal sides": _shape,
}


def read_flags(program: ReferenceProgram, words: Sequence[str]) -> dict[str, Any]:
    """-> first name of each flag on the line -> its value. Words that belong to no flag are left out, as the programs do.

    Raises PacelineError for an unknown flag, one that may be several, or a value of another type.
    """
    overrides: dict[str, Any] = {}
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if not word.startswith("-") or _is_number(word):
            if any(word in one.names for one in program.flags):  # a subcommand
                overrides[word] = True
            continue
        name, equals, value = word.partition("=")
        entry = _find(program, name, words) if name.startswith("--") else None
        if entry is None:
            short = next((one for one in program.flags if word[:2] in one.names), None)
            entry = next((one for one in program.flags if name in one.names), short)
            if entry is None:
                raise _unknown(program, name, words)
            if name not in entry.names:  # -j6
                value, equals = word[2:].removeprefix("="), "="
        if entry.kind == "bool":
            overrides[entry.names[0]] = True
            continue
        several = entry.kind == "ints"
        values = [value] if equals else []
        while waiting and not equals and (several or not values):
            if waiting[0].startswith("-") and not _is_number(waiting[0]):
                break
            values.append(waiting.pop(0))
        if not values and not several:
            raise FlagError(f"{name}: its value is missing.")
        read = tuple(_typed(entry.kind, one, name) for one in values)
        overrides[entry.names[0]] = read if several else read[0]
    return overrides


def _find(program: ReferenceProgram, name: str, words: Sequence[str]) -> FlagTranslation:
    """The flag of that name or unique prefix. Raises FlagError for an unknown one, naming its neighbors."""
    names = {one: entry for entry in program.flags for one in entry.names}
    if name in names:
        return names[name]
    result = {one: entry for one, entry in names.items() if one.startswith(name)}
    if len({entry.names for entry in result.values()}) == 1:
        return next(iter(result.values()))
    if result:
        raise FlagError(f"{name}: may be {' or '.join(sorted(result))} of {program.files[0]}. Write one of them out.")
    raise _unknown(program, name, words)


def _unknown(program: ReferenceProgram, name: str, words: Sequence[str]) -> FlagError:
    names = [one for entry in program.flags for one in entry.names]
    near = difflib.get_close_matches(name, names, n=3)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    flags = [word.partition("=")[0] for word in words if word.startswith("--")]
    unknown = 1 + sum(not any(one.startswith(flag) for one in names) for flag in flags)
    return FlagError(f"{program.files[0]} of {program.of} has no flag {name}.{hint}", unknown)


def _typed(kind: str, text: str, name: str) -> Any:
    try:
        return KINDS[kind](text)
    except ValueError:
        unset = f" {text} is set nowhere in the input: put {text.strip('${}')}=VALUE before it." if "$" in text else ""
        raise FlagError(f"{name} {text}: is no {'int' if kind == 'ints' else kind}.{unset}") from None


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
