"""The words of a launch that are for `train`: all but the flags of the launch itself."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields, is_dataclass
from typing import Any


def without(arguments: Sequence[str], flags: Any, kind: type, more: Collection[str]) -> tuple[str, ...]:
    """The words without the fields of dataclass `kind` and those called `more`, and without their values.

    flags   the parsed flags: which fields are nested, and which take no value, is seen by theirs
    A value never starts with two dashes unless it is joined to its flag by =, so it ends at the next flag.
    """
    names = {field.name for field in fields(kind)} | set(more)
    kept: list[str] = []
    inside = False
    for word in arguments:
        if word.startswith("--"):
            name = word[2:].partition("=")[0].replace("-", "_")
            top, _, _ = name.partition(".")
            inside = (top in names and is_dataclass(getattr(flags, top, None)) == ("." in name)) or (
                name.startswith("no_") and name[3:] in names
            )
            if not inside:
                kept.append(word)
        elif not inside:
            kept.append(word)
    return tuple(kept)
