"""GluonCV's own code once more, on inputs of another seed; the tests beside this one then read what it computes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from gluoncv_recorded import ELSEWHERE

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts/originals/gluoncv_maskrcnn.py"
# Weights and rates do not depend on the seed; the rates need a checkout besides.
FIXED = "first_weights", "schedule"
TESTS = "test_gluoncv_geometry.py", "test_gluoncv_network.py", "test_gluoncv_training.py"


@pytest.mark.nightly("needs an interpreter with GluonCV, and records anew")
def test_on_inputs_of_another_seed(tmp_path: Path) -> None:
    interpreter = os.environ.get("PACELINE_GLUONCV_PYTHON")
    if interpreter is None:
        pytest.skip(
            "PACELINE_GLUONCV_PYTHON names no interpreter with GluonCV: tests/oracle/recorded/README.md says how to make one"
        )
    seed = random.randrange(1, 2**16)
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
    record = [interpreter, str(SCRIPT), "--out", str(tmp_path), "--seed", str(seed)]
    done = subprocess.run(record, env={**outside, "PYTHONDONTWRITEBYTECODE": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, f"seed {seed}\n{done.stderr}"
    for part in FIXED:
        (tmp_path / f"gluoncv_{part}.npz").write_bytes((ROOT / f"tests/oracle/recorded/gluoncv_{part}.npz").read_bytes())
    compare = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(f"tests/oracle/{name}" for name in TESTS)]
    there = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(compare, cwd=ROOT, env={**there, ELSEWHERE: str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 0, f"seed {seed}\n{done.stdout}"
