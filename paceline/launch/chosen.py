"""Where a preflight leaves which nodes train, for the scripts and starters that read it."""

from __future__ import annotations

from pathlib import Path

from paceline.launch.job import Job, Words


def folder(job: Job) -> Path:
    """Where it leaves everything."""
    return job.launch_folder / "preflight"


def chosen(job: Job) -> Path:
    """The nodes that train, a name a line, in the order of their ranks."""
    return folder(job) / "nodes"


def hostfile(job: Job) -> Path:
    """The same as mpirun reads it."""
    return folder(job) / "hostfile"


def on_chosen(job: Job) -> Words:
    """srun's words for the nodes that train, where a preflight has chosen them."""
    return ("--nodelist", str(chosen(job))) if job.preflight else ()
