"""mpirun: Open MPI starts every rank, over Slurm's daemons, over ssh (a hostfile), or on this machine."""

from __future__ import annotations

import os
import shutil
from signal import SIGUSR1

from paceline.config.errors import UserError
from paceline.launch.axes import Starter
from paceline.launch.job import Job, Words
from paceline.launch.shell import environment

SECRET = "PACELINE_SECRET"  # as dist/secret.py reads it, which loads torch


def command(job: Job, program: Words) -> Words:
    """All ranks of all nodes, each line of output with its rank, and only the variables that ranks need."""
    hosts: Words = ()
    if job.through == "hostfile":
        hosts = ("--hostfile", str(job.launch_folder / "hostfile"))
    elif job.through == "local":
        hosts = ("--host", f"localhost:{job.per_node}")
    forwarded = [word for name in forwarded_names(job) for word in ("-x", name)]
    ranks = ("-np", str(job.ranks), "--map-by", f"ppr:{job.per_node}:node", "--bind-to", "none", "--tag-output")
    root: Words = ("--allow-run-as-root",) if os.geteuid() == 0 else ()  # mpirun refuses it otherwise
    return ("mpirun", *root, *hosts, *ranks, *forwarded, *program)


def forwarded_names(job: Job) -> tuple[str, ...]:
    """Names of the variables that mpirun hands to ranks, on other hosts too. The rest of the environment stays behind."""
    # By name alone: its value stands in no file.
    secret = (SECRET,) if os.environ.get(SECRET) else ()
    first = ("MASTER_ADDR",) if job.through == "hostfile" else ()
    return (*(variable.name for variable in environment(job)), *first, *secret)


def check(job: Job) -> None:
    """Raises UserError where there is no mpirun on the machine that would run it."""
    if job.through != "slurm" and job.container != "docker" and shutil.which("mpirun") is None:
        raise UserError(
            "--start mpirun: there is no mpirun on this machine. Install Open MPI (Debian: openmpi-bin), or use "
            "--start torchrun."
        )


MPIRUN = Starter(command, "job", SIGUSR1, check)
