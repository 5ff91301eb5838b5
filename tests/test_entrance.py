"""How long the way is from a command to the first training step, and how many class names mean several things.

Each number may only fall. A change that lowers one of them writes the lower number here.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections import Counter

import pytest
from shared_runs import SSD
from sources import nodes_of
from test_layers import FILES, PACKAGE

# With the other tests of the source, which share its syntax trees.
pytestmark = pytest.mark.xdist_group("sources")
MAX_FILES_ENTERED, MAX_CLASSES_USED = 136, 134  # 134 and 132 on a CPU with AVX512; other machines may need two more
MAX_AMBIGUOUS_NAMES = 0

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
        "ssd-demo",
        "--data",
        str(ssd_run.data),
        "--output-dir",
        str(tmp_path / "run"),
        *SSD.split(),
        "--max-steps",
        "2",
    ]
    environ = os.environ | {"PYTHONPATH": str(PACKAGE.parent), "PACELINE_CACHE": str(ssd_run.data.parent / "cache")}
    command = [sys.executable, "-c", TRACE, str(tmp_path / "trace.json"), *words]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    files, classes = json.loads((tmp_path / "trace.json").read_text())
    assert len(files) <= MAX_FILES_ENTERED, "\n".join(files)
    assert len(classes) <= MAX_CLASSES_USED, "\n".join(classes)


def test_a_class_name_has_one_meaning():
    names = Counter(node.name for path in FILES for node in nodes_of(path) if isinstance(node, ast.ClassDef))
    several = [name for name, count in names.items() if count > 1]
    assert len(several) <= MAX_AMBIGUOUS_NAMES, several
