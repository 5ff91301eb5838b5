"""Code of one's own: an object in a Python file outside the package, named on the command line as `./file.py:name`."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from paceline._utils.errors import PacelineError, RecipeError
from paceline._utils.hashing import sha256
from paceline._utils.safe_read import read_plain
from paceline._utils.text import suggest_name

# More than any source file has.
MAX_BYTES = 2**22
OURS = str(Path(__file__).resolve().parents[1])
# What begins the names of modules that are made here.
SITE = "paceline_site_"
# By its resolved path: when a file was written, its size, and what became of it.
_made: dict[Path, tuple[tuple[int, int], ModuleType]] = {}


def is_in_file(name: str) -> bool:
    """Whether `name` names an object in a Python file rather than an entry of a menu."""
    return ".py:" in name


def is_same_workload(name: str, other: str) -> bool:
    """Whether two tasks are one: files may move, and a command line names them as it likes, but what is in them keeps its name."""
    if is_in_file(name) and is_in_file(other):
        return name.rpartition(":")[2] == other.rpartition(":")[2]
    return name == other


def list_functions(file: Path) -> list[str]:
    """Names of the functions in a Python file that could be called without an argument, in order; the file is not run.

    [] for a file that is no Python.
    """
    try:
        tree = ast.parse(read_plain(file, MAX_BYTES))
    except (OSError, SyntaxError, ValueError):
        return []
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("_")
        and len(node.args.posonlyargs) + len(node.args.args) == len(node.args.defaults)
    ]


def load_from_file(where: str, noun: str) -> Any:
    """The object called after the colon in the Python file before it, e.g. "./site.py:rack7".

    noun  what it should be, for the message
    The file is run, as `python file.py` would run it: `where` must be the user's own words, never a file's content
    (`paceline.models.registry.load_saved_recipe` sees to names that a run.json brings).
    Raises RecipeError when either is missing or the file does not import.
    """
    path, _, attribute = where.rpartition(":")
    file = Path(path).expanduser()
    if not file.is_file():
        raise RecipeError(f"{where}: file {path} not found.")
    try:
        module = _imported(file.resolve())
    except (Exception, SystemExit) as problem:
        raise RecipeError(f"{where}: {path} failed to import ({type(problem).__name__}: {problem}).") from problem
    if not hasattr(module, attribute):
        raise RecipeError(f"{where}: {path} has no {noun} {attribute!r}.")
    return getattr(module, attribute)


def find_imported_files(file: Path) -> dict[str, Path]:
    """By name, the files of loaded modules that a Python file imports, and that these import: none of a library or of ours.

    Read from import statements, so that a rank whose main program loads more than another's is no different one.
    """
    libraries = tuple(Path(path).resolve() for path in {*sysconfig.get_paths().values(), OURS})
    result: dict[str, Path] = {}
    waiting = [file]
    while waiting:
        for name in _imports_in(waiting.pop()):
            source = Path(getattr(sys.modules.get(name), "__file__", None) or "").resolve()
            own = source.suffix == ".py" and not any(source.is_relative_to(folder) for folder in libraries)
            if own and name not in result:
                result[name] = source
                waiting.append(source)
    return result


def _imports_in(file: Path) -> list[str]:
    """Names that could be modules in a file's import statements, those within functions too."""
    try:
        tree = ast.parse(read_plain(file, MAX_BYTES))
    except (OSError, SyntaxError, ValueError):
        return []
    package = next((module.__package__ or "" for module in list(sys.modules.values()) if _is_of(module, file)), "")
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for parts in (alias.name.split(".") for alias in node.names):
                names += [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            whole = ".".join(filter(None, (*above, node.module)))
            names += [whole, *(f"{whole}.{alias.name}" for alias in node.names)]
    return names


def _is_of(module: object, file: Path) -> bool:
    source = Path(getattr(module, "__file__", None) or "")
    return source.name == file.name and source.resolve() == file


def _imported(file: Path) -> ModuleType:
    """The module of a file as it is now: that of an `import`, or the one that was made of it before, so that its classes are
    the same wherever it is asked for; run anew where it was edited.
    """
    stat = file.stat()
    version = (stat.st_mtime_ns, stat.st_size)
    if file in _made and _made[file][0] == version:
        return _made[file][1]
    module = None if file in _made else _find_import_of(file)
    if module is None:
        # Two files of one name in two folders are two modules.
        name = f"{SITE}{file.stem}_{sha256(os.fsencode(file))[:8]}"
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None  # a .py file always has a loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses in the file look their module up
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[spec.name]
            raise
    _made[file] = version, module
    return module


def _find_import_of(file: Path) -> ModuleType | None:
    """The module that a user's `import`, or `python file.py`, made of the file."""
    found = (one for name, one in list(sys.modules.items()) if not name.startswith(SITE) and _is_of(one, file))
    return next(found, None)


def choose_named(name: str, menu: Mapping[str, Callable[[], Any]], kinds: tuple[type, ...], noun: str) -> Any:
    """What the maker called `name` makes: of the menu, or a function in a Python file, "./file.py:function".

    Raises RecipeError naming the nearest names, or the functions that the file has.
    """
    if name.endswith(".py") or "/" in name:
        _refuse_path(name, noun)
    own = is_in_file(name)
    maker = load_from_file(name, noun) if own else menu.get(name)
    if maker is None:
        known = f"Known: {', '.join(menu)}."
        raise RecipeError(f"{noun} {name!r} not found. {suggest_name(name, menu) or known} Custom: ./file.py:function")
    try:
        thing = maker() if callable(maker) else maker
    except PacelineError:
        raise
    except (Exception, SystemExit) as problem:
        if not own:
            raise
        raise RecipeError(f"{name}: calling it failed ({type(problem).__name__}: {problem}).") from problem
    if not isinstance(thing, kinds):
        raise RecipeError(f"{name}: returned {type(thing).__name__}, not a {kinds[0].__name__}.")
    return thing


def _refuse_path(name: str, noun: str) -> None:
    """Refuse a Python file without its function, or another path. The file's functions are listed, not run."""
    if is_in_file(name):
        return
    path = Path(name).expanduser()
    if not name.endswith(".py"):
        gone = "" if path.exists() else " not found;"
        raise RecipeError(f"{name}:{gone} a custom {noun} must be a function in a Python file: ./file.py:function")
    if not path.is_file():
        raise RecipeError(f"{name}: not found.")
    there = list_functions(path)
    if not there:
        raise RecipeError(f"{name}: a function is required, as {name}:function, but this file has none.")
    raise RecipeError(f"{name}: a function is required: {' or '.join(f'{name}:{function}' for function in there)}")
