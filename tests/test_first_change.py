"""docs/contributing/first-change.md: its diffs apply to the package as it is, its test passes, and the report shows the new loss."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_runs import TINY_CHANGES

ROOT = Path(__file__).parents[1]
PROGRAM = """
import sys
import pytest, torch
import paceline
from paceline.models.resnet import loss

assert loss.__file__.startswith(sys.argv[1])
assert pytest.main(["-q", "-p", "no:cacheprovider", "-k", "confidence", "tests/models/test_classification_loss.py"]) == 0
overrides = {**eval(sys.argv[3]), "model.confidence": 0.1}
paceline.train("classify-demo", data=sys.argv[2], output_dir="run", overrides=overrides, max_steps=4, log_every=2, quiet=True)
"""


@pytest.fixture
def changed(tmp_path) -> Path:
    """A copy of the package and of two folders of tests, with the page's diffs."""
    if shutil.which("git") is None:
        pytest.skip("git applies the page's diffs")
    for folder in ("paceline", "tests/models", "tests/config"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    diffs = re.findall(r"^```diff\n(.*?)^```", (ROOT / "docs/contributing/first-change.md").read_text(), flags=re.M | re.S)
    applied = subprocess.run(
        ["git", "apply", "-"], input="".join(diffs), cwd=tmp_path, text=True, capture_output=True,
        env=os.environ | {"GIT_CEILING_DIRECTORIES": str(tmp_path)},
    )  # fmt: skip
    assert applied.returncode == 0, applied.stderr
    return tmp_path


def test_the_first_change_applies(changed) -> None:
    assert "model__confidence" in (changed / "tests" / "config" / "published_resnet50.py").read_text()


@pytest.mark.nightly("imports and trains in a copy of the package; that the diffs apply to it is tested by day")
def test_the_first_change_trains_and_stands_in_the_report(changed, class_photos) -> None:
    words = [str(changed), str(class_photos), repr(TINY_CHANGES)]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], cwd=changed, text=True, capture_output=True, timeout=120,
        env=os.environ | {"PYTHONPATH": str(changed)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    events = [json.loads(line) for line in (changed / "run" / "events.jsonl").read_text().splitlines()]
    trained = [event for event in events if event["event"] == "train"]
    assert len(trained) == 2 and all(0 < event["loss_confidence"] < event["loss"] for event in trained)
    assert "loss_confidence" in (changed / "run" / "report.html").read_text()
