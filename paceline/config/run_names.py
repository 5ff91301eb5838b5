"""Names in and of a run's folder, which several rooms must agree on; standard library only."""

from __future__ import annotations

import re
from pathlib import Path

from paceline.config.errors import UserError

# Where runs lie whose folder nobody named, and up to which number they are tried.
RUNS, MOST_RUNS = "runs", 9999
# A file of this name in the run's folder stops the run, where a signal cannot reach it.
STOP_FILE = "STOP"
# The files of `paceline launch`, and what all ranks print.
LAUNCH_FOLDER = "launch"
# Whose a run is, here and in the bucket that it is mirrored to (training/mirrored.py).
MIRROR_FILE = "mirror.json"
# What a start that failed or was killed, or one that is about to come, leaves in a folder before there is a run.json.
LEFT_OVER = re.compile(rf"{LAUNCH_FOLDER}|\.lock|\.probe.*|\.(run|mirror)\.json\..*part|\.secret-.*|{MIRROR_FILE}")


def numbered(name: str) -> Path:
    """The first of runs/NAME-001, -002, ... that is not there.

    Raises UserError where all are.
    """
    stem = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in Path(name).name)
    for number in range(1, MOST_RUNS + 1):
        path = Path(RUNS).absolute() / f"{stem}-{number:03d}"
        if not path.exists():
            return path
    raise UserError(f"{RUNS}/{stem}-001 to {MOST_RUNS} are all there: remove some, or name a folder with --out.")
