"""MLPerf logs: their records, and what the official checker says of one."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.training.logging.mllog import PREFIX


def records(path: Path) -> list[dict[str, Any]]:
    """Of every line."""
    return [json.loads(line.removeprefix(PREFIX)) for line in path.read_text().splitlines()]


def need_checker() -> None:
    """Skips where the official checker is not installed."""
    if importlib.util.find_spec("mlperf_logging") is None:
        pytest.skip("mlperf-logging is not installed (extra: mlperf)")


def check(path: Path) -> tuple[bool, str]:
    """The official checker, to which a warning is an error, on one file -> (accepted, what it printed)."""
    need_checker()
    module = [sys.executable, "-W", "ignore", "-m", "mlperf_logging.compliance_checker"]
    options = ["--usage", "training", "--ruleset", "4.0.0", "--werror", "--log_output", f"{path}.checked"]
    done = subprocess.run([*module, *options, str(path)], capture_output=True, text=True, timeout=120)
    return done.returncode == 0, done.stdout + done.stderr
