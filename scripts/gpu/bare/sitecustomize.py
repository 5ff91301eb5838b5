"""With this folder on PYTHONPATH, Python has none of the packages that ABSENT names, as on a machine without them.

ABSENT   names of modules, separated by commas
PRESENT  a folder whose packages are there all the same: unpacked wheels
Python imports a module of this name when it starts, in every process that inherits the environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

NAMES = frozenset(filter(None, os.environ.get("ABSENT", "").split(",")))
FOLDERS = [os.environ["PRESENT"]] if os.environ.get("PRESENT") else []


class Bare(PathFinder):
    """Looks where Python looks, but for the absent names, which it finds among the unpacked wheels or not at all."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As PathFinder."""
        return super().find_spec(fullname, FOLDERS if fullname in NAMES else path, target)


if NAMES:
    sys.meta_path[:] = [Bare if finder is PathFinder else finder for finder in sys.meta_path]
