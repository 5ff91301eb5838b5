"""Architecture is a test: imports only flow down, and rooms of one layer do not know each other."""

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
LAYERS = [
    {"_utils"},
    {"config", "batch", "boxes"},
    {"distributed", "log", "models", "optim", "store", "workers"},
    {"input", "weights"},
    {"tasks"},
    {"pages", "recipes"},
    {"datasets", "mlperf"},
    {"training"},
    {"predict", "bench", "tools"},
    {"launch", "export", "serve"},
    {"cli"},
]
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
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


def imported_rooms(path: Path) -> Iterator[tuple[str, int]]:
    """The same, by room."""
    for module, line in imported_modules(path):
        yield module.split(".")[0], line


def test_imports_only_flow_down() -> None:
    wrong = []
    for path in FILES:
        name = str(path.relative_to(PACKAGE))
        room = name.split("/", maxsplit=1)[0].removesuffix(".py")
        if room == "__init__":
            continue
        assert room in LEVEL, f"{room} has no layer: add it to LAYERS and docs/architecture.md"
        for target, line in imported_rooms(path):
            if target != room and LEVEL[target] >= LEVEL[room]:
                wrong.append(f"{name}:{line}: {room} must not import {target}")
    assert wrong == []


def test_imports_in_functions_and_names_of_modules_in_text_count(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(
        """
def open():
    from paceline.bench.input import run
    import paceline.cli.main
    importlib.import_module("paceline.tasks.objects:build")
    importlib.import_module(f"paceline.launch.{verb}")
    logging.getLogger("paceline.a_logger")
"""
    )
    assert sorted(room for room, _ in imported_rooms(tmp_path / "one.py")) == ["bench", "cli", "launch", "tasks"]


def test_utils_and_config_need_only_the_standard_library() -> None:
    for path in [*(PACKAGE / "_utils").glob("*.py"), *(PACKAGE / "config").glob("*.py")]:
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
    assert asking == ["distributed/device/detect.py", "workers/pool.py"]
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert cpu_cores() == os.cpu_count()
