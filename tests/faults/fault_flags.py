"""Flags of a command line, of which later ones outweigh earlier ones."""

from __future__ import annotations


def outweigh(flags: str) -> list[str]:
    """The words of `flags`; of a flag given twice the later values count, at the place of the first."""
    given: dict[str, list[str]] = {}
    for word in flags.split():
        if word.startswith("--"):
            name, given[word] = word, []
        else:
            given[name].append(word)
    return [word for name, values in given.items() for word in (name, *values)]
