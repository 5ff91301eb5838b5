"""No file leads back to itself by imports, those inside functions too; no function is longer than a screen; and the package's size."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from sources import nodes_of

import paceline

# With the other tests of the source, which share its syntax trees.
pytestmark = pytest.mark.xdist_group("sources")
PACKAGE = Path(paceline.__file__).parent
MAX_LINES_OF_A_FUNCTION = 80
NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER
}  # fmt: skip
# Code lines and files of the package. A change that adds code says what it removed; these numbers fall.
MAX_CODE_LINES, MAX_FILES = 57_538, 441


def sources() -> dict[str, Path]:
    """Module -> its file."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(nodes: Sequence[ast.AST], known: dict[str, Path]) -> Iterator[str]:
    """Modules of ours that a file imports, anywhere but for types alone."""
    for_types = {
        id(inside)
        for node in nodes
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inside in ast.walk(node)
    }
    for node in nodes:
        if id(node) in for_types:
            continue
        if isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in known else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Some modules that lead back to the first of them; [] where there is no circle."""
    done: set[str] = set()

    def walk(module: str, way: list[str]) -> list[str]:
        if module in way:
            return [*way[way.index(module) :], module]
        if module in done:
            return []
        for other in sorted(graph[module]):
            if found := walk(other, [*way, module]):
                return found
        done.add(module)
        return []

    return next((found for module in sorted(graph) if (found := walk(module, []))), [])


def test_no_file_leads_back_to_itself() -> None:
    known = sources()
    graph = {module: set(imported(nodes_of(path), known)) - {module} for module, path in known.items()}
    # `paceline.train` and `paceline.load` are brought when they are asked for: the package itself leads everywhere.
    graph = {module: others - {"paceline"} for module, others in graph.items() if module != "paceline"}
    assert circle(graph) == []
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


def test_no_function_is_longer_than_a_screen() -> None:
    long = {}
    for path in PACKAGE.rglob("*.py"):
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > MAX_LINES_OF_A_FUNCTION:
                    long[f"{path.relative_to(PACKAGE)}:{node.name}"] = lines
    assert long == {}


def code_lines(source: str, nodes: Sequence[ast.AST]) -> int:
    """Return the number of lines that hold code: without docstrings, comments, and blank lines."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    docstrings = {
        line
        for node in nodes
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None
        for line in range(node.body[0].lineno, node.body[0].end_lineno + 1)
    }
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    found = {line for token in tokens if token.type not in NO_CODE for line in range(token.start[0], token.end[0] + 1)}
    return len(found - docstrings)


def test_code_lines_are_those_without_docstrings_comments_and_blank_lines() -> None:
    def counted(source: str) -> int:
        return code_lines(source, list(ast.walk(ast.parse(source))))

    assert counted('"""Doc."""\n\nimport os  # why\n\n# alone\nx = (\n    1,\n)\n') == 4
    assert counted('def f():\n    """Doc.\n\n    More.\n    """\n    return """a\nb"""\n') == 3
    assert counted("") == 0


def test_the_package_does_not_grow() -> None:
    files = list(PACKAGE.rglob("*.py"))
    lines = sum(code_lines(path.read_text(), nodes_of(path)) for path in files)
    assert lines <= MAX_CODE_LINES and len(files) <= MAX_FILES, (
        f"{lines:,} code lines in {len(files)} files: remove as many as you add, or raise the numbers and say why"
    )
