"""Importing this makes the modules of tests/ and tests/multi/ known, in pytest as in a program of its own."""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
for _folder in (TESTS, TESTS / "multi"):
    if str(_folder) not in sys.path:
        sys.path.append(str(_folder))
