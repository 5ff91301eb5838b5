"""A job's own exit code, past launchers that swallow it: rank 0 writes it into a file that an environment variable names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from paceline.config.errors import UserError
from paceline.config.plain_file import read_entry
from paceline.config.whole import write_whole
from paceline.ranks.launcher import read_launch

# The variable: absolute path of the file, on a file system that rank 0's node and the one that waits both see.
EXIT_CODE_FILE = "PACELINE_EXIT_CODE_FILE"
MOST_BYTES = 100


def leave_exit_code(code: int, environ: Mapping[str, str] = os.environ) -> None:
    """Write `code` where the environment asks for it; the first rank alone does, or every one that has no place in a job."""
    named = environ.get(EXIT_CODE_FILE)
    if not named:
        return
    try:
        if read_launch(environ).rank != 0:
            return
    except UserError:
        code = code or 2
    try:
        write_whole(Path(named), f"{code}\n")
    except OSError as problem:  # the run's end is told by its events all the same
        print(f"paceline: {named}: cannot be written ({problem.strerror})")


def read_exit_code(path: Path) -> int | None:
    """What rank 0 left; None where it left nothing."""
    try:
        return int(read_entry(path, MOST_BYTES))
    except (OSError, ValueError):
        return None
