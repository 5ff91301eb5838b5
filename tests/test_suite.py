"""The suite's own promises: nothing vanishes in CI, and the long form is there when asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from shared_runs import made_once, untouched

TESTS = """
import pytest
from hypothesis import settings

def test_photos(shared_data): ...

def test_library(): pytest.importorskip("no_such_library")

@pytest.mark.skipif(True, reason="of no good reason")
def test_marked(): ...

@pytest.mark.parametrize("photo", [])
def test_nothing_to_try(photo): ...

@pytest.mark.skipif(True, reason="needs a CUDA device")
def test_gpu(): ...

@pytest.mark.nightly
def test_long(): ...

@pytest.mark.xfail(strict=True)
def test_known(): assert False

def test_form(nightly): assert settings.default.max_examples == (2000 if nightly else 100)
"""
MODULE = "import pytest\npytest.importorskip('no_such_library')\n"


@pytest.mark.parametrize(
    ("ci", "flags", "ended"),
    [
        ("", [], "1 passed, 7 skipped, 1 xfailed"),
        ("true", [], "1 failed, 1 passed, 2 skipped, 1 xfailed, 4 errors"),
        ("true", ["--nightly"], "1 failed, 2 passed, 1 skipped, 1 xfailed, 4 errors"),
    ],
)
def test_in_ci_a_skip_is_a_failure_unless_nothing_could_be_installed(tmp_path, ci, flags, ended):
    (tmp_path / "test_all.py").write_text(TESTS)
    (tmp_path / "test_module.py").write_text(MODULE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    nightly: long\n")
    environ = {**os.environ, "CI": ci, "PYTHONPATH": str(Path(__file__).parent), "PACELINE_TEST_DATA": "/nowhere"}
    environ.pop("PYTEST_ADDOPTS", None)
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += ["--continue-on-collection-errors", "--rootdir", str(tmp_path), *flags, str(tmp_path)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert ended in done.stdout, done.stdout + done.stderr


def test_a_shared_run_that_a_test_changed_is_named(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(AssertionError, match="must copy it first"), untouched(tmp_path):
        (tmp_path / "run.json").write_text("{ }")


def test_what_is_shared_is_made_once(tmp_path_factory):
    made = []
    first, second = (made_once(tmp_path_factory, "once", lambda folder: made.append(folder)) for _ in range(2))
    assert first == second and len(made) == 1
