"""A process's first and last acts: variables that torch's libraries read, and the exit code.

Launchers swallow exit codes, so rank 0 writes its own into a file that an environment variable names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from paceline._utils.atomic_write import atomic_write
from paceline._utils.errors import PacelineError
from paceline._utils.safe_read import read_entry
from paceline.distributed.comm.launcher import read_launch

# The variable: absolute path of the file, on a file system that rank 0's node and the one that waits both see.
EXIT_CODE_FILE = "PACELINE_EXIT_CODE_FILE"
MAX_BYTES = 100
USER_ERROR, FAILED, INTERRUPTED = 2, 3, 75  # 75: resumable
# The exit code of each status of an `end` event. --max-steps or --max-time asked for stopping early, so a script with them continues.
EXIT_CODES = {"success": 0, "ran_out": 1, "stopped_early": 0, "interrupted": INTERRUPTED, "failed": FAILED}


def leave_exit_code(code: int, environ: Mapping[str, str] = os.environ) -> None:
    """Write `code` where the environment asks for it; only rank 0 does, or every process that has no place in a job."""
    named = environ.get(EXIT_CODE_FILE)
    if not named:
        return
    try:
        if not read_launch(environ).is_main:
            return
    except PacelineError:
        code = code or 2
    try:
        atomic_write(Path(named), f"{code}\n")
    except OSError as problem:  # the run's end stands in its events all the same
        print(f"paceline: {named}: the exit code could not be written ({problem.strerror})")


def read_exit_code(path: Path) -> int | None:
    """What rank 0 left; None where it left nothing."""
    try:
        return int(read_entry(path, MAX_BYTES))
    except (OSError, ValueError):
        return None


def set_library_variables() -> None:
    """What torch's libraries read once, when they are loaded; a value that is set already stays."""
    # Compute threads wait for each other a few hundred times a step. OpenMP's default is to wait spinning, which burns the
    # core that the late thread needs as soon as anything else runs: one busy neighbor on two cores cost 9/10 of the speed.
    # A short spin costs 3 percent on an idle machine (results/openmp-waiting).
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    # When a rank dies, torch's C++ prints backtraces of the echoes on the others; our own line names the cause.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # torch's profiler library (--profile) logs its start and stop, and an error for want of a GPU; 99 is above all of them.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    # torch 2.15 has kernels in Triton, and Triton 3.9 warns at the first until somebody chooses. This is what it does unasked.
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
