"""This machine alone: the script is run here, in a process group of its own."""

from __future__ import annotations

import shlex
from pathlib import Path

from paceline.config.errors import UserError
from paceline.launch import preflight
from paceline.launch.axes import File, Running, Through
from paceline.launch.job import Job, Words
from paceline.launch.process import Process
from paceline.launch.shell import environment, exports, in_lines
from paceline.launch.starters import START


def files(job: Job, command: Words) -> tuple[File, ...]:
    """run.sh: what to type by hand for the same."""
    text = (
        "#!/usr/bin/env bash\n"
        f"# {job.name}: {job.ranks} rank{'s'[: job.ranks > 1]} on this machine, started by {job.start}.\n"
        "set -euo pipefail\n"
        f"cd {shlex.quote(str(job.workdir))}\n\n"
        f"{exports(environment(job))}\n"
        + (preflight.lines(job, in_lines((*preflight.program(job), "--number", "0"))) + "\n" if job.preflight else "")
        + (f"# Before the ranks start.\n{job.between}\n\n" if job.between else "")
        + START[job.start].notes(job)
        + f"exec {in_lines(command)}\n"
    )
    return (File("run.sh", text, runs=True),)


def check(job: Job) -> None:
    """Raises UserError for more than one node."""
    if job.nodes != 1:
        raise UserError(f"--through local is this machine alone, and --nodes {job.nodes} is not one.")
    if job.spares:
        raise UserError(f"--through local is this machine alone: there is none for --spares {job.spares}.")


def begin(job: Job, paths: tuple[Path, ...]) -> Running:
    """Run the script here; all that it and its ranks print goes into the job's log."""
    return Process(("bash", str(paths[0])), job.log, START[job.start].stop)


LOCAL = Through(files, check, begin)
