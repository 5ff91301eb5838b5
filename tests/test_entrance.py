"""How long the way is from a command to the first training step, and how far the package is from its target layout.

Each number may only fall. A change that lowers one of them writes the lower number here.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from shared_runs import SSD
from sources import nodes_of
from test_layers import FILES, PACKAGE, imported_modules

# With the other tests of the source, which share its syntax trees.
pytestmark = pytest.mark.xdist_group("sources")
MOST_FILES_ENTERED, MOST_CLASSES_USED = 150, 133  # 148 and 131 on a CPU with AVX512; other machines may need two more
MOST_AMBIGUOUS_NAMES, MOST_UPWARD_IMPORTS = 46, 14

# The packages of the target layout, low to high: an import leads to a lower one. For each, what belongs to it today; the
# longest name decides.
LAYOUT = {
    "_utils": "_utils",
    "config": "config recipes",
    "distributed": "distributed",
    "data": "batch boxes.run_lengths datasets input pages.check.suspicious store workers",
    "models": (
        "boxes input.box_sample input.copy_paste input.instance_sample input.mask_canvas input.mosaic models tasks "
        "training.find_network weights"
    ),
    "training": "log optim training",
    "inference": "export pages.marks pages.masks pages.names pages.pictures pages.stored_photo predict serve training.trained",
    "launch": "launch",
    "tools": (
        "bench cli.bisect cli.bisect_text cli.estimate cli.run_groups datasets.findings "
        "mlperf pages recipes.migrate tools training.rerun training.step_trace"
    ),
    "cli": "__main__ cli config.habits",
}
LEVEL = {name: level for level, names in enumerate(LAYOUT.values()) for name in names.split()}

# Runs the command that follows OUT, and writes the package's files whose functions the main thread enters before the first
# optimizer step, and the classes that it makes instances of. Generated `__init__` methods have no file, but a class.
TRACE = """
import json, os, sys

out, *words = sys.argv[1:]
files, classes = set(), set()
OPTIMIZED = 1  # set for the code of a function, and not for that of a module or class


def profile(frame, event, argument):
    if event != "call":
        return
    code, made = frame.f_code, None
    if code.co_name == "__init__" and code.co_varnames:
        made = type(frame.f_locals[code.co_varnames[0]])
    elif code.co_name == "__new__" and code.co_varnames:
        made = frame.f_locals[code.co_varnames[0]]
    if made is not None and str(getattr(made, "__module__", "")).startswith("paceline"):
        classes.add(f"{made.__module__}.{made.__qualname__}")
    ours = f"{os.sep}paceline{os.sep}" in code.co_filename and code.co_flags & OPTIMIZED
    if ours:
        files.add(code.co_filename)
    wrapped = "torch" in sys.modules and code.co_name == "step" and isinstance(
        frame.f_locals.get("self"), sys.modules["torch"].optim.Optimizer
    )
    if wrapped or (ours and code.co_name == "step" and f"{os.sep}optim{os.sep}" in code.co_filename):
        with open(out, "w") as file:
            json.dump([sorted(files), sorted(classes)], file)
        os._exit(0)


from paceline.cli.main import main

sys.setprofile(profile)
sys.exit(main(words) or 1)
"""


def test_the_way_to_the_first_step_grows_no_longer(tmp_path, ssd_run):
    words = [
        "train",
        "ssd-tiny",
        "--data",
        str(ssd_run.data),
        "--out",
        str(tmp_path / "run"),
        *SSD.split(),
        "--steps",
        "2",
    ]
    environ = os.environ | {"PYTHONPATH": str(PACKAGE.parent), "PACELINE_CACHE": str(ssd_run.data.parent / "cache")}
    command = [sys.executable, "-c", TRACE, str(tmp_path / "trace.json"), *words]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    files, classes = json.loads((tmp_path / "trace.json").read_text())
    assert len(files) <= MOST_FILES_ENTERED, "\n".join(files)
    assert len(classes) <= MOST_CLASSES_USED, "\n".join(classes)


def test_a_class_name_has_one_meaning():
    names = Counter(node.name for path in FILES for node in nodes_of(path) if isinstance(node, ast.ClassDef))
    several = [name for name, count in names.items() if count > 1]
    assert len(several) <= MOST_AMBIGUOUS_NAMES, several


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


def test_few_imports_lead_up_in_the_target_layout():
    lines = [line for path in FILES for line in upward(path)]
    assert len(lines) <= MOST_UPWARD_IMPORTS, "\n".join(lines)


def test_every_module_has_a_place_in_the_target_layout():
    modules = [path.relative_to(PACKAGE).with_suffix("").parts for path in FILES if path.name != "__init__.py"]
    assert [parts for parts in modules if level_of(".".join(parts)) is None] == []
    assert level_of("pages.check.suspicious") == list(LAYOUT).index("data")
    assert level_of("pages.check.parts") == list(LAYOUT).index("tools")
