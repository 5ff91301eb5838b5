"""Fixtures of the whole suite: where real photos lie, and a skip that becomes a failure in CI."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

# Before torch is loaded: see paceline/cli/main.py. Several test processes share few cores.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

ROOT = Path(__file__).resolve().parents[1]


def skip_or_fail(reason: str) -> None:
    """Skip on a developer's machine; fail in CI, where everything the suite needs is installed."""
    if os.environ.get("CI"):
        pytest.fail(f"CI must have this: {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder with the small real data sets (imagenette224, coco_mini, ...)."""
    folder = Path(os.environ.get("PACELINE_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real photos at {folder}: set PACELINE_TEST_DATA")
    return folder


@pytest.fixture
def need_program():
    """Call it with a program's name; the test skips (in CI: fails) where the program is not installed."""

    def need(program: str, package: str) -> str:
        path = shutil.which(program)
        if path is None:
            skip_or_fail(f"{program} is not installed (Debian package {package})")
        assert path is not None
        return path

    return need


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory, monkeypatch):
    """Every test has a cache of its own, so none depends on what an earlier run left behind."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
