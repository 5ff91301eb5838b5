"""Pin what a message must hold however its sentences are written: flags, files, numbers, names, commands.

A fact is found as a whole word or number: "3" is not in "13", "3,000" or "/3.jpg", and "--val" is not in "--val-fraction".
Parametrized tests write several facts in one text, "--nodes 0 ... 65,536".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

Problem = TypeVar("Problem", bound=BaseException)


@contextmanager
def raises(error: type[Problem] | tuple[type[Problem], ...], *wanted: object) -> Iterator[pytest.ExceptionInfo[Problem]]:
    """Assert that the block raises this error, with all these facts in its message."""
    __tracebackhide__ = True
    with pytest.raises(error) as caught:
        yield caught
    check_text(str(caught.value), *wanted)


def check_text(text: str | Iterable[str], *wanted: object) -> bool:
    """Assert that the text, or the lines together, hold each of these facts.

    Raises:
        AssertionError: names the missing facts and prints the whole text.
    """
    __tracebackhide__ = True
    text = text if isinstance(text, str) else "\n".join(text)
    missing = [fact for fact in _facts(wanted) if not re.search(_whole(fact), text)]
    assert not missing, f"expected {missing} in:\n{text}"
    return True


def check_line(text: str | Iterable[str], *wanted: object) -> bool:
    """Assert that one line of the text holds all of these facts."""
    __tracebackhide__ = True
    lines = text.splitlines() if isinstance(text, str) else list(text)
    found = any(re.search(has(*wanted), line) for line in lines)
    assert found, f"expected one line with {_facts(wanted)} in:\n" + "\n".join(lines)
    return True


def check_lines(lines: Iterable[str], *wanted: tuple[object, ...]) -> bool:
    """Assert that there are as many lines as tuples, and that each line holds the facts of its tuple."""
    __tracebackhide__ = True
    lines = list(lines)
    assert len(lines) == len(wanted), f"expected {len(wanted)} lines, got {len(lines)}:\n" + "\n".join(lines)
    return all(check_text(line, *each) for line, each in zip(lines, wanted, strict=True))


def has(*wanted: object) -> str:
    """Return a pattern, as for `pytest.warns(match=)`: the text holds all of these facts, in any order."""
    return r"(?s)\A" + "".join(f"(?=.*{_whole(fact)})" for fact in _facts(wanted))


def _facts(wanted: Iterable[object]) -> list[str]:
    return [fact for each in wanted for fact in str(each).split(" ... ")]


def _whole(fact: str) -> str:
    """Return the pattern of one fact."""
    if re.fullmatch(r"[\d.,]*\d", fact):
        return rf"(?<![\w/.-])(?<!\d,){re.escape(fact)}(?![\w/-]|[.,]\w)"
    before = r"(?<!\w)" if re.match(r"\w", fact) else ""
    after = r"(?![\w-])" if fact.startswith("-") else r"(?!\w)" if re.search(r"\w$", fact) else ""
    # A word of prose may begin a sentence.
    return before + (f"(?i:{fact})" if fact.isalpha() and fact.islower() else re.escape(fact)) + after
