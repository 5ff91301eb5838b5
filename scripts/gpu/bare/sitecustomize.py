"""With this folder on PYTHONPATH, Python has none of the packages that ABSENT names, as on a machine without them.

ABSENT   names of modules, separated by commas
PRESENT  a folder whose packages are there all the same: unpacked wheels
Python imports a module of this name when it starts, in every process that inherits the environment.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType


class Absent:
    """A finder that comes first, and ends the search for the names that are not there."""

    def __init__(self, names: Sequence[str], folder: str) -> None:
        self.names, self.folder = frozenset(names), folder

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The wheels' module, or ModuleNotFoundError; None, which asks the next finder, for other names."""
        if name not in self.names:
            return None
        found = importlib.machinery.PathFinder.find_spec(name, [self.folder]) if self.folder else None
        if found is None:
            raise ModuleNotFoundError(f"No module named {name!r} (absent, as on a bare machine)", name=name)
        return found


if absent := os.environ.get("ABSENT", ""):
    sys.meta_path.insert(0, Absent(absent.split(","), os.environ.get("PRESENT", "")))
