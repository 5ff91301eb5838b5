"""Measurements: a step, the input path, scoring, start-up, communication; ours, and beside peers in a checkout.

Here: one harness (harness.py, roofline.py), and for each workload a file that says what its contenders are.
Not here: other libraries, and measurements for developers alone. They are in benchmarks/ of a checkout, which an installed wheel
lacks: `find_peers` brings them. No training run imports from here.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from paceline._utils.errors import PacelineError

CHECKOUT = Path(__file__).resolve().parents[3]
WHERE = "baselines and some measurements are in benchmarks/ of the repository, and this paceline was installed without it"


def find_peers(name: str) -> Any:
    """benchmarks.NAME of the checkout that this is; None where it is none."""
    if not all((CHECKOUT / file).is_file() for file in ("pyproject.toml", f"benchmarks/{name.replace('.', '/')}.py")):
        return None
    if sys.path[0] != str(CHECKOUT):
        sys.path.insert(0, str(CHECKOUT))  # other packages leave a folder of this name in an environment
    return importlib.import_module(f"benchmarks.{name}")


def require_peers(name: str, flag: str) -> Any:
    """The same where nothing is left to measure without them. Raises PacelineError naming the flag."""
    result = find_peers(name)
    if result is None:
        raise PacelineError(f"{flag}: {WHERE}. Run the command from a clone of the repository.")
    return result
