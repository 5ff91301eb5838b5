"""Run Python's usual words (SCRIPT.py, -m MODULE, -c CODE) in this process, with values where SIMULATED_VALUES asks for them.

SIMULATED_REPORT names a file: what the device counted is written there as JSON when the process ends.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import sys
from pathlib import Path

import device


def main(words: list[str]) -> None:
    if device.wants_values():
        import values

        values.Values().__enter__()  # until the process ends
    elif {"paceline", "pytest"} & set(words):  # runs would end at a loss that is none
        import without_values

        without_values.pass_for_finite()
    if path := os.environ.get("SIMULATED_REPORT"):
        atexit.register(report, device.Watch(), Path(path))
    kind, rest = words[0], words[1:]
    if kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "-c", "exec"), {"__name__": "__main__"})
    elif kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        runpy.run_path(kind, run_name="__main__")


def report(watch: device.Watch, path: Path) -> None:
    found = {
        "kernels": watch.launches,
        "counts": watch.counts,
        "waits": watch.waits(),
        "broken rules": watch.broken_rules(),
    }
    path.write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
