"""Architecture is a test: imports lead from a package to a lower one."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sources import nodes_of, tree_of

import paceline
from paceline.distributed.device.detect import cpu_cores

# With the other tests of the source, which share its syntax trees.
pytestmark = pytest.mark.xdist_group("sources")
PACKAGE = Path(paceline.__file__).parent
# The packages, low to high: an import leads to a lower one. For each, what belongs to it and has not moved there yet; the longest
# name decides.
LAYOUT = {
    "_utils": "_utils",
    "config": "config",
    "distributed": "distributed",
    "data": "data",
    "models": "models",
    "training": "training",
    "inference": "inference",
    "launch": "launch",
    "tools": "tools",
    "cli": "__main__ api cli",
}
LEVEL = {name: level for level, names in enumerate(LAYOUT.values()) for name in names.split()}
MAX_UPWARD_IMPORTS = 1  # may only fall
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.name not in ("__main__.py",))


# The text of a string that names a module of ours, or the beginning of one.
MODULE = re.compile(r"paceline\.\w+[\w.:]*")


def imported_modules(path: Path) -> Iterator[tuple[str, int]]:
    """Modules, without "paceline.", that a file imports, anywhere in it, or names in text; and the lines."""
    for node in nodes_of(path):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            folder = PACKAGE.parent.joinpath(*node.module.split("."))
            inside = [alias.name for alias in node.names if list(folder.glob(alias.name + "*"))]
            names = [f"{node.module}.{name}" for name in inside] or [node.module] * (node.module != "paceline")
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and MODULE.fullmatch(node.value):
            names = [name] if (name := node.value.replace(":", ".")).split(".")[1] in LEVEL else []
        for name in names:
            if name.startswith("paceline."):
                yield name.removeprefix("paceline."), node.lineno


def level_of(module: str) -> int | None:
    """The number of the package that a module, without "paceline.", belongs to; None for the package itself."""
    parts = module.split(".")
    return next((LEVEL[name] for end in range(len(parts), 0, -1) if (name := ".".join(parts[:end])) in LEVEL), None)


def upward(path: Path) -> list[str]:
    """Imports of a file that lead to a higher package, one line each."""
    own = path.relative_to(PACKAGE).with_suffix("")
    own_level = level_of(".".join(own.parts[:-1] if own.name == "__init__" else own.parts))
    if own_level is None:
        return []
    found = {(module, line) for module, line in imported_modules(path) if (level_of(module) or 0) > own_level}
    return [f"{path.relative_to(PACKAGE)}:{line}: {module}" for module, line in sorted(found)]


def test_imports_lead_down():
    lines = [line for path in FILES for line in upward(path)]
    assert len(lines) <= MAX_UPWARD_IMPORTS, "\n".join(lines)


def test_every_module_belongs_to_a_package():
    modules = [path.relative_to(PACKAGE).with_suffix("").parts for path in FILES if path.name != "__init__.py"]
    assert [parts for parts in modules if level_of(".".join(parts)) is None] == []


def test_imports_in_functions_and_names_of_modules_in_text_count(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(
        """
def open():
    from paceline.tools.bench.input import run
    import paceline.cli.main
    importlib.import_module("paceline.models.object_task:build")
    importlib.import_module(f"paceline.launch.{verb}")
    logging.getLogger("paceline.a_logger")
"""
    )
    found = [module for module, _ in imported_modules(tmp_path / "one.py")]
    assert sorted(found) == ["cli.main", "launch.", "models.object_task.build", "tools.bench.input"]


def test_utils_and_config_need_only_the_standard_library() -> None:
    for path in [*(PACKAGE / "_utils").glob("*.py"), *(PACKAGE / "config").rglob("*.py")]:
        for node in nodes_of(path):
            if isinstance(node, ast.Import | ast.ImportFrom):
                name = (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
                top = name.split(".")[0]
                assert top in {"paceline", *sys.stdlib_module_names}, f"{path}: imports {top}"


def test_a_module_that_runs_as_a_program_ends_with_that() -> None:
    """What stands behind it is not there yet when the program runs."""
    for path in FILES:
        *before, _ = tree_of(path).body or [None]
        early = [node for node in before if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)]
        assert not early, f"{path}: code behind `if __name__ == '__main__'`"


def test_no_file_is_over_400_lines() -> None:
    long = {str(path.relative_to(PACKAGE)): len(path.read_text().splitlines()) for path in FILES}
    assert {name: lines for name, lines in long.items() if lines > 400} == {}


def test_cores_are_counted_in_one_place_which_macos_can_answer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asking = [str(path.relative_to(PACKAGE)) for path in FILES if "sched_getaffinity" in path.read_text()]
    # Worker processes, which exist on Linux only, get the cores of the process that starts them.
    assert asking == ["data/workers/pool.py", "distributed/device/detect.py"]
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert cpu_cores() == os.cpu_count()
