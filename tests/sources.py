"""Python files as syntax trees, each read and parsed once for all tests that look at the package's source."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def tree_of(path: Path) -> ast.Module:
    """The file's syntax tree, which callers do not change."""
    return ast.parse(path.read_text())


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """All nodes of the tree, as `ast.walk` yields them."""
    return list(ast.walk(tree_of(path)))
