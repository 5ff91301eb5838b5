"""The single changes that scripts/mutate.py plants: what may be replaced by what in one Python file.

An operator, a comparison, `and` or `or`, a `not`, a sign, a number, True or False, min or max and their like, two arguments or
elements beside each other. Left alone is what decides no result: docstrings, annotations, decorators, messages (`raise`,
f-strings), assertions, the types of an `except`.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import io
import itertools
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

OPERATORS = {
    "+": "-", "-": "+", "*": "+", "/": "*", "//": "/", "%": "*", "**": "*", "<<": ">>", ">>": "<<", "&": "|", "|": "&", "^": "&",
    "+=": "-=", "-=": "+=", "*=": "+=", "/=": "*=", "//=": "*=", "%=": "+=", "|=": "&=", "&=": "|=", ">>=": "<<=", "<<=": ">>=",
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==",
    "is": "is not", "is not": "is", "in": "not in", "not in": "in", "and": "or", "or": "and",
}  # fmt: skip
NAMES = {
    "min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "amin": "amax", "amax": "amin",
    "argmin": "argmax", "argmax": "argmin", "floor": "ceil", "ceil": "floor", "all": "any", "any": "all",
}  # fmt: skip
Place = tuple[int, int]  # line from 1, column from 0


@dataclass(frozen=True)
class Change:
    """`was` at `start` becomes `became`; `file` is relative to the package."""

    file: str
    start: Place
    end: Place
    was: str
    became: str
    at_import: bool  # outside of functions: whoever imports the file has it
    key: str  # the same while the line's text is the same, wherever it stands

    def planted(self, text: str) -> str:
        lines = text.splitlines(keepends=True)
        first, last = self.start[0] - 1, self.end[0] - 1
        lines[first : last + 1] = [lines[first][: self.start[1]] + self.became + lines[last][self.end[1] :]]
        return "".join(lines)


def changes_of(file: str, text: str) -> list[Change]:
    """Every change of a file, in the order of its text; with a few it is no Python any more (see `sample`)."""
    lines, seen, found = text.splitlines(), dict[str, int](), list[Change]()
    for start, end, became, at_import in sorted(_Finder(text).found):
        change = Change(file, start, end, _between(lines, start, end), became, at_import, "")
        line = lines[start[0] - 1]
        key = f"{file} {line.strip()} {start[1] - len(line) + len(line.lstrip())} {became}"
        seen[key] = seen.get(key, 0) + 1
        found.append(Change(*list(vars(change).values())[:-1], key=f"{key} {seen[key]}"))
    return found


def sample(changes: list[Change], count: int, seed: int, package: Path) -> list[Change]:
    """Draw `count` changes that leave valid Python, from each folder of the package in turn.

    A change of another line moves none of them, and a longer sample begins with the shorter one.
    """
    by_chance = sorted(changes, key=lambda change: hashlib.sha256(f"{seed} {change.key}".encode()).digest())
    turns: dict[str, Iterator[int]] = defaultdict(itertools.count)
    in_turn = [(next(turns[change.file.split("/")[0]]), change) for change in by_chance]
    by_chance = [change for _, change in sorted(in_turn, key=lambda pair: pair[0])]
    chosen: list[Change] = []
    for change in by_chance:
        if len(chosen) == count:
            break
        with contextlib.suppress(SyntaxError):
            compile(change.planted((package / change.file).read_text()), change.file, "exec")
            chosen.append(change)
    return chosen


def asked_for(only: str, package: Path) -> list[Change]:
    """FILE:LINE, all changes of a line; or FILE:LINE: WAS -> BECAME, which may be any text of that line."""
    match = re.fullmatch(r"([^:]+):(\d+)(?:: ?(.+?) -> (.*))?", only)
    if match is None:
        raise SystemExit(f"--only {only}: is neither FILE:LINE nor FILE:LINE: WAS -> BECAME")
    file, number = match[1], int(match[2])
    text = (package / file).read_text()
    on_line = [change for change in changes_of(file, text) if change.start[0] == number]
    if match[3] is None:
        return on_line
    alike = [c for c in on_line if [" ".join(c.was.split()), " ".join(c.became.split())] == [match[3], match[4]]]
    if alike:
        return alike
    column = text.splitlines()[number - 1].find(match[3])
    if column < 0:
        raise SystemExit(f"--only {only}: the line has no {match[3]!r}")
    start, end = (number, column), (number, column + len(match[3]))
    return [Change(file, start, end, match[3], match[4], all(change.at_import for change in on_line), only)]


def _between(lines: list[str], start: Place, end: Place) -> str:
    if start[0] == end[0]:
        return lines[start[0] - 1][start[1] : end[1]]
    return "\n".join([lines[start[0] - 1][start[1] :], *lines[start[0] : end[0] - 1], lines[end[0] - 1][: end[1]]])


def _start(node: ast.AST) -> Place:
    return node.lineno, node.col_offset  # pyright: ignore[reportAttributeAccessIssue]


def _end(node: ast.AST) -> Place:
    return node.end_lineno, node.end_col_offset  # pyright: ignore[reportAttributeAccessIssue]


class _Finder:
    """`found`: (start, end, became, at_import)."""

    def __init__(self, text: str) -> None:
        self.found: set[tuple[Place, Place, str, bool]] = set()
        self._lines = text.splitlines()
        self._tokens = [
            token
            for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type in (tokenize.OP, tokenize.NAME)
        ]
        self._visit(ast.parse(text), at_import=True)

    def _visit(self, node: ast.AST, at_import: bool) -> None:
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr):
            return
        self._changes(node, at_import)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list") or (
                isinstance(node, ast.ExceptHandler) and name == "type"
            ):
                continue
            inside = at_import and not (isinstance(node, ast.FunctionDef | ast.Lambda) and name == "body")
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    self._visit(child, inside)

    def _changes(self, node: ast.AST, at_import: bool) -> None:
        for start, end, became in self._of(node):
            self.found.add((start, end, became, at_import))

    def _of(self, node: ast.AST) -> Iterator[tuple[Place, Place, str]]:
        if isinstance(node, ast.BinOp):
            yield from self._operator(_end(node.left), _start(node.right))
        elif isinstance(node, ast.AugAssign):
            yield from self._operator(_end(node.target), _start(node.value))
        elif isinstance(node, ast.Compare):
            for left, right in zip([node.left, *node.comparators], node.comparators):
                yield from self._operator(_end(left), _start(right))
        elif isinstance(node, ast.BoolOp):
            for left, right in pairwise(node.values):
                yield from self._operator(_end(left), _start(right))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub | ast.Invert):
            line, column = _start(node)
            length = 4 if isinstance(node.op, ast.Not) else 1  # "not " with its blank
            yield (line, column), (line, column + length), ""
        elif isinstance(node, ast.Constant):
            for became in _other_values(node.value):
                yield _start(node), _end(node), became
        elif isinstance(node, ast.Call):
            yield from self._name(node.func)
            if _called(node.func) not in (*NAMES, "isinstance"):  # those do not mind the order
                yield from self._swaps(node.args)
        elif isinstance(node, ast.Tuple):
            yield from self._swaps(node.elts)

    def _operator(self, after: Place, before: Place) -> Iterator[tuple[Place, Place, str]]:
        between = [token for token in self._tokens if after <= token.start < before and token.string not in "()"]
        text = " ".join(token.string for token in between)
        if text in OPERATORS:
            yield between[0].start, between[-1].end, OPERATORS[text]

    def _name(self, called: ast.expr) -> Iterator[tuple[Place, Place, str]]:
        if (name := _called(called)) in NAMES:
            line, column = _end(called)
            yield (line, column - len(name)), (line, column), NAMES[name]

    def _swaps(self, values: list[ast.expr]) -> Iterator[tuple[Place, Place, str]]:
        for one, other in pairwise(values):
            texts = [_between(self._lines, _start(value), _end(value)) for value in (one, other)]
            if texts[0] != texts[1] and not any(
                isinstance(value, ast.Starred | ast.GeneratorExp) for value in (one, other)
            ):
                middle = _between(self._lines, _end(one), _start(other))
                yield _start(one), _end(other), texts[1] + middle + texts[0]


def _called(called: ast.expr) -> str:
    return called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""


def _other_values(value: object) -> list[str]:
    if isinstance(value, bool):
        return [str(not value)]
    if isinstance(value, int):
        return [str(value + 1), *([str(value - 1)] if value else [])]
    if isinstance(value, float):
        return [repr(round(value * 1.1, 12)) if value else "1.0"]
    return []
