"""The simulated device for its tests: they skip where it cannot be built, and say why."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import build
import device
import pytest

Run = Callable[..., tuple[subprocess.CompletedProcess[str], dict[str, Any]]]


@pytest.fixture(scope="session")
def simulated() -> None:
    try:
        build.library()
    except build.CannotBuild as absent:
        pytest.skip(str(absent))


@pytest.fixture
def on_device(simulated: None, tmp_path: Path) -> Run:
    """Python's words and settings -> the ended process, and what the device counted ({} where the process was ended)."""

    def run(*words: str, **settings: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
        report = tmp_path / "report.json"
        done = device.run(words, SIMULATED_REPORT=str(report), **settings)
        return done, json.loads(report.read_text()) if report.exists() else {}

    return run
