"""A program's command line by its own table, with argparse's habits: unique prefixes, `--flag=value`, `-j6`, several values."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from paceline.config.errors import UserError
from paceline.recipes.migrate.table import Entry, Program


class FlagError(UserError):
    """A line of an original that its own program would refuse."""

    def __init__(self, text: str, unknown: int = 1) -> None:
        super().__init__(text)
        self.unknown = unknown  # flags of the line that the program does not have


def read_flags(program: Program, words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """-> (first name of each flag on the line -> its value, the words that belong to none).

    Raises UserError for an unknown flag, one that may be several, or a value of another type.
    """
    given: dict[str, Any] = {}
    rest: list[str] = []
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if not word.startswith("-") or _is_number(word):
            if any(word in one.names for one in program.flags):  # a subcommand
                given[word] = True
            else:
                rest.append(word)
            continue
        name, equals, value = word.partition("=")
        entry = find(program, name, words) if name.startswith("--") else None
        if entry is None:
            short = next((one for one in program.flags if word[:2] in one.names), None)
            entry = next((one for one in program.flags if name in one.names), short)
            if entry is None:
                raise FlagError(_unknown(program, name), _strangers(program, words))
            if name not in entry.names:  # -j6
                value, equals = word[2:].removeprefix("="), "="
        if entry.kind is bool:
            given[entry.names[0]] = True
            continue
        several = isinstance(entry.kind, list)
        values = [value] if equals else []
        while (
            waiting
            and not equals
            and (several or not values)
            and (not waiting[0].startswith("-") or _is_number(waiting[0]))
        ):
            values.append(waiting.pop(0))
        if not values and not several:
            raise FlagError(f"{name}: its value is missing.")
        kind = entry.kind[0] if several else entry.kind
        read = tuple(_typed(kind, one, name) for one in values)
        given[entry.names[0]] = read if several else read[0]
    return given, rest


def find(program: Program, name: str, words: Sequence[str] = ()) -> Entry:
    """The flag of that name or unique prefix. Raises UserError for an unknown one, naming its neighbours."""
    spelt = {one: entry for entry in program.flags for one in entry.names}
    if name in spelt:
        return spelt[name]
    found = {one: entry for one, entry in spelt.items() if one.startswith(name)}
    if len({entry.names for entry in found.values()}) == 1:
        return next(iter(found.values()))
    if found:
        raise FlagError(f"{name}: may be {' or '.join(sorted(found))} of {program.files[0]}. Write one of them out.")
    raise FlagError(_unknown(program, name), _strangers(program, words))


def _strangers(program: Program, words: Sequence[str]) -> int:
    """How many flags of a line are not the program's."""
    spelt = [one for entry in program.flags for one in entry.names]
    flags = [word.partition("=")[0] for word in words if word.startswith("--")]
    return 1 + sum(not any(one.startswith(flag) for one in spelt) for flag in flags)


def _unknown(program: Program, name: str) -> str:
    near = difflib.get_close_matches(name, [one for entry in program.flags for one in entry.names], n=3)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return f"{program.files[0]} of {program.of} has no flag {name}.{hint}"


def _typed(kind: Any, text: str, name: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        unset = (
            f" {text} is set nowhere in what was given: put {text.strip('${}')}=VALUE before it." if "$" in text else ""
        )
        raise FlagError(f"{name} {text}: is no {kind.__name__}.{unset}") from None


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
