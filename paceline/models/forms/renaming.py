"""Names by pattern, both ways: a table of (their pattern, our template), and its inverse."""

from __future__ import annotations

import re
from collections.abc import Sequence

# (a regular expression of plain text, groups and escaped dots; what it becomes, with \1 for its first group)
Rules = Sequence[tuple[str, str]]

GROUP = re.compile(r"\([^()]*\)")


def renamed(name: str, rules: Rules) -> str | None:
    """The first rule whose pattern is the whole name decides; None where there is none."""
    for pattern, ours in rules:
        if found := re.fullmatch(pattern, name):
            return found.expand(ours)
    return None


def inverse(rules: Rules) -> list[tuple[str, str]]:
    """Rules for the way back: groups of both sides stand in one order."""
    back = []
    for pattern, ours in rules:
        groups = iter(GROUP.findall(pattern))
        mine = re.sub(r"\\\d", lambda _: next(groups), re.escape(ours).replace(r"\\", "\\"))
        numbers = iter(range(1, 10))
        theirs = GROUP.sub(lambda _: f"\\{next(numbers)}", pattern).replace(r"\.", ".")
        back.append((mine, theirs))
    return back
