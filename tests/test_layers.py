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
from paceline._utils.platform import count_cpus

# With the other tests of the source, which share its syntax trees.
pytestmark = pytest.mark.xdist_group("sources")
PACKAGE = Path(paceline.__file__).parent
# The packages, low to high. For each, which lower ones it imports, and what for; files beside the packages belong to cli.
WALLS: dict[str, dict[str, str]] = {
    "_utils": {},
    "config": {"_utils": "errors, names, text"},
    "distributed": {"_utils": "errors, text, threads", "config": "the System that a rank obeys"},
    "data": {
        "_utils": "files, hashes, locks, journals",
        "config": "settings of the input; kinds of data",
    },
    "models": {
        "_utils": "errors, safe reading of weights",
        "config": "settings of networks, recipes",
        "data": "batches, transforms, the index that a data module reads",
    },
    "training": {
        "_utils": "files, errors, the reporter",
        "config": "recipe, system, plan, run",
        "distributed": "ranks and their device",
        "data": "preparing, opening, caching and loading",
        "models": "networks, data modules, evaluators, weights",
    },
    "inference": {
        "_utils": "files, errors, text",
        "config": "recipes of runs, cards of files",
        "distributed": "a device, cores, ranks that score",
        "data": "decoding photos, reading annotations",
        "models": "networks and their decoding",
        "training": "checkpoints and run folders",
    },
    "launch": {
        "_utils": "files, text, commands",
        "config": "the System and the run's names",
        "distributed": "variables of launchers, interfaces, facts of a machine",
    },
    "tools": {
        "_utils": "files, text, hashes",
        "config": "recipes, published results",
        "distributed": "ranks and devices that are measured",
        "data": "data sets that are shown and measured",
        "models": "networks that are measured, metrics that are shown",
        "training": "runs: events, checkpoints, steps",
        "inference": "drawing predictions",
    },
    "cli": {name: "flags, or a command" for name in (
        "_utils", "config", "distributed", "data", "models", "training", "inference", "launch", "tools",
    )},
}  # fmt: skip
MAX_PAIRS = 38  # may only fall
LEVEL = {name: level for level, name in enumerate((*WALLS, "api", "__main__"))}
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


def package_of(path: Path) -> str:
    """The package that a file belongs to; "" for the package's own __init__.py, which imports what is public."""
    first = path.relative_to(PACKAGE).parts[0]
    return first if first in WALLS else "" if first == "__init__.py" else "cli"


def test_every_folder_is_a_package_of_the_table():
    assert {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()} == set(WALLS)


def test_a_package_imports_only_what_the_table_allows():
    made: dict[tuple[str, str], list[str]] = {}
    for path in FILES:
        if own := package_of(path):
            for module, line in imported_modules(path):
                target = module.split(".")[0]
                if (target := target if target in WALLS else "cli") != own:
                    made.setdefault((own, target), []).append(f"{path.relative_to(PACKAGE)}:{line}: {module}")
    allowed = {(own, target) for own, targets in WALLS.items() for target in targets}
    assert {pair: lines for pair, lines in made.items() if pair not in allowed} == {}
    assert sorted(allowed - set(made)) == [], "not made any more: remove them from the table"
    assert len(allowed) <= MAX_PAIRS
    order = list(WALLS)
    up = {(own, target) for own, target in allowed if order.index(target) > order.index(own)}
    assert not up


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
    assert asking == ["_utils/platform.py", "data/workers/crew.py"]
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert count_cpus() == os.cpu_count()
