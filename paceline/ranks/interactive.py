"""Shells of `srun --pty`: Slurm's variables say rank 0 of many there, and no other rank runs.

Slurm gives only the first task of such a step a terminal; the others read the end of their input, and end. An `srun` in the shell
starts tasks that inherit SLURM_PTY_PORT. That variable does not tell the two apart, so the processes of the step are looked up.

Source: srun(1), --pty and SLURM_PTY_PORT.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


def is_pty_shell(environ: Mapping[str, str], tasks: int) -> bool:
    """True if this process was started in the shell of `srun --pty`; tasks: of the step on this host."""
    if not environ.get("SLURM_PTY_PORT") or environ.get("SLURM_PROCID") != "0":
        return False
    if tasks == 1:
        return os.isatty(0)
    step = {f"{name}={environ.get(name)}".encode() for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")}
    for process in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        with suppress(OSError):
            found = Path("/proc", process, "environ").read_bytes().split(b"\0") if process.isdecimal() else ()
            if step <= {*found} and b"SLURM_PROCID=0" not in found:
                return False
    return True


def pty_note(environ: Mapping[str, str], world: int) -> str:
    """What to do in such a shell, where `world` is 1, though Slurm has more tasks; "" elsewhere."""
    tasks = environ.get("SLURM_NTASKS", "")
    if world > 1 or not environ.get("SLURM_PTY_PORT") or tasks in ("", "1"):
        return ""
    return f"one process, as this is a shell of srun --pty. To start {tasks} ranks:  srun --overlap --ntasks {tasks} paceline ..."
