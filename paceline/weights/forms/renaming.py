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
        groups = GROUP.findall(pattern)
        pieces = [re.escape(piece) for piece in re.split(r"\\\d", ours)]
        mine = "".join(piece + group for piece, group in zip(pieces, [*groups, ""], strict=True))
        plain = re.split(GROUP, pattern.replace(r"\.", "."))
        theirs = "".join(piece + f"\\{number}" for number, piece in enumerate(plain[:-1], start=1)) + plain[-1]
        back.append((mine, theirs))
    return back
