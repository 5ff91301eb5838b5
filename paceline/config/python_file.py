"""Code of one's own: an object in a Python file outside the package, named on the command line as `./file.py:name`."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from typing import Any

from paceline.config.errors import RecipeError
from paceline.config.plain_file import read_plain

# More than any source file has.
MOST_BYTES = 2**22


def is_in_file(name: str) -> bool:
    """Whether `name` names an object in a Python file rather than an entry of a menu."""
    return ".py:" in name


def same_file(name: str, other: str) -> bool:
    """Whether two such names are of one Python file, however its path is spelt."""
    try:
        return is_in_file(name) and is_in_file(other) and _file(name).resolve() == _file(other).resolve()
    except (OSError, RuntimeError, ValueError):  # a loop of links, an unknown ~user, a NUL: no file at all
        return False


def functions_in(file: Path) -> list[str]:
    """Names of the functions in a Python file that could be called without an argument, in order; the file is not run.

    [] for a file that is no Python.
    """
    try:
        tree = ast.parse(read_plain(file, MOST_BYTES))
    except (OSError, SyntaxError, ValueError):
        return []
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("_")
        and len(node.args.posonlyargs) + len(node.args.args) == len(node.args.defaults)
    ]


def from_file(where: str, noun: str) -> Any:
    """The object called after the colon in the Python file before it, e.g. "./site.py:rack7".

    noun  what it should be, for the message
    The file is run, as `python file.py` would run it: `where` must be the user's own words, never a file's content
    (cli/saved.py sees to names that a run.json brings).
    Raises RecipeError when either is missing or the file does not import.
    """
    path, _, attribute = where.rpartition(":")
    file = _file(where)
    if not file.is_file():
        raise RecipeError(f"{where}: there is no file {path}.")
    spec = importlib.util.spec_from_file_location(f"paceline_site_{file.stem}", file)
    assert spec is not None and spec.loader is not None  # a .py file always has a loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses in the file look their module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as problem:
        raise RecipeError(f"{where}: {path} does not import ({type(problem).__name__}: {problem}).") from problem
    if not hasattr(module, attribute):
        raise RecipeError(f"{where}: {path} has no {noun} {attribute!r}.")
    return getattr(module, attribute)


def _file(name: str) -> Path:
    return Path(name.rpartition(":")[0]).expanduser()
