"""Training and prediction as on macOS and on Windows: in a process from which what these lack was taken away on Linux.

docs/reference/platform-support.md has what that cannot show: torch, Pillow and simplejpeg are Linux's own here, and so is the file
system.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sources import tree_of
from tiny_runs import TINY

import paceline

# With the other tests of the source, which share its syntax trees.
pytestmark = pytest.mark.xdist_group("sources")
PACKAGE = Path(paceline.__file__).parent
# Modules that Windows lacks, and who may import them: the door, and programs for Linux alone, inside functions.
POSIX = {"fcntl", "resource", "pwd", "grp", "termios", "pty"}

# Libraries come first: they are built for Linux, and some look at it as they are imported. torch 2.11 imports its _dynamo, and with it
# triton, at a network's first use.
PROGRAM = """
import concurrent.futures, glob, http.client, json, multiprocessing, os, platform, subprocess, sys, tempfile
import hotcoco, jinja2, matplotlib.pyplot, PIL.Image, rich.live, safetensors.torch, simplejpeg, torch._dynamo, tyro
import other_systems

other_systems.become(sys.argv[1])
from paceline.cli.main import main

for command in json.loads(sys.argv[2]):
    if code := main(command):
        break
sys.stdout.flush()
os._exit(code)
"""


def test_nothing_that_windows_lacks_is_imported_with_a_module():
    found = []
    for path in PACKAGE.rglob("*.py"):
        nodes = list(tree_of(path).body)
        for node in nodes:  # which grows, by what is not inside a function
            if not isinstance(node, ast.FunctionDef):
                nodes += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt | ast.excepthandler)]
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", "")]
            if isinstance(node, ast.Import | ast.ImportFrom) and POSIX & set(names):
                found.append(str(path.relative_to(PACKAGE)))
    assert set(found) == {"_utils/platform.py"}


@pytest.mark.nightly("two processes that train and predict; that no module imports what Windows lacks is tested by day")
@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_training_goes_on_and_predicts_without_what_the_system_lacks(system, class_photos, tmp_path):
    run, answers = tmp_path / "run", tmp_path / "answers"
    train = ["train", "classify-demo", "--data", str(class_photos), "--output-dir", str(run), *TINY, "--system", "cpu"]
    photo = str(next((class_photos / "val").rglob("*.jpg")))
    words = [
        [*train, "--max-steps", "2"],
        [*train, "--max-steps", "3"],
        ["predict", str(run), photo, "--output-dir", str(answers)],
        ["eval", str(run)],
        ["doctor"],
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), str(PACKAGE.parent / "tests")]),
        "PACELINE_CACHE": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, system, json.dumps(words)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    assert "Traceback" not in done.stderr
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events][-1] == "end" and any(event["event"] == "resume" for event in events)
    assert (run / "checkpoints" / "last" / "index.json").is_file() and (run / "report.html").is_file()
    assert json.loads((answers / "predictions.json").read_text())["images"][0]["classes"]
