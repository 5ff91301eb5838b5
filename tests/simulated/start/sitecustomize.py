"""What every Python on the simulated device begins with: right values where SIMULATED_VALUES asks for them, else losses that pass.

`device.environment` puts this folder first on PYTHONPATH, and Python imports a module of this name as it starts: so a program's
children, ranks and workers compute as it does. torch is not loaded here; what changes it waits until somebody has imported it.

SIMULATED_REPORT names a file: what the device counted in this process, not in its children, is written there as JSON when it ends.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import device


class Afterwards(MetaPathFinder):
    """Calls `then` once, when the module `name` has been imported."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self.name, self.then = name, then

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """What the other finders know of this module, with a loader that calls `then`."""
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        found = (finder.find_spec(fullname, path, target) for finder in sys.meta_path)
        spec = next(filter(None, found), None)
        if spec is not None and spec.loader is not None:
            load, then = spec.loader.exec_module, self.then

            def loaded(module: ModuleType) -> None:
                load(module)
                then()

            spec.loader.exec_module = loaded  # type: ignore[method-assign]
        return spec


def compute() -> None:
    import values

    values.Values().__enter__()  # until the process ends


def pass_for_finite() -> None:
    import without_values

    without_values.pass_for_finite()


def report(watch: device.Watch, path: Path) -> None:
    found = {
        "kernels": watch.launches,
        "counts": watch.counts,
        "waits": watch.waits(),
        "broken rules": watch.broken_rules(),
    }
    path.write_text(json.dumps(found))


if device.wants_values():
    sys.meta_path.insert(0, Afterwards("torch", compute))
else:
    sys.meta_path.insert(0, Afterwards("paceline.training.state", pass_for_finite))
if file := os.environ.pop("SIMULATED_REPORT", ""):
    atexit.register(report, device.Watch(), Path(file))
