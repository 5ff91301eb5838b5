"""Slurm gives the nodes: one sbatch script, which starts the ranks, saves before its time is up, and goes on as a job again."""

from __future__ import annotations

import shutil
from pathlib import Path

from paceline.config.errors import UserError
from paceline.launch.axes import File, Running, Through
from paceline.launch.job import Job, Words
from paceline.launch.slurm_job import still_there, submit
from paceline.launch.slurm_script import script


def files(job: Job, command: Words) -> tuple[File, ...]:
    """job.sbatch, and nothing else."""
    return (File("job.sbatch", script(job, command), runs=True),)


def check(job: Job) -> None:
    """Raises UserError for a folder whose name Slurm would read otherwise."""
    if "%" in str(job.log) or "\\" in str(job.log):
        raise UserError(
            f"{job.folder}: Slurm reads % and \\ in the name of a log as its own signs. Choose another --out."
        )


def missing(job: Job) -> str:
    """sbatch."""
    if shutil.which("sbatch") is not None:
        return ""
    return (
        "--through slurm: there is no sbatch on this machine. Run this on a login node of the cluster, or use "
        "--through hostfile."
    )


def begin(job: Job, paths: tuple[Path, ...]) -> Running:
    """Submit it; a job of an earlier launch that is still there for this folder is followed instead."""
    number = job.launch_folder / "job-number"
    if number.exists() and (there := still_there(number.read_text().strip())) is not None:
        return there
    submitted = submit(paths[0])
    number.write_text(f"{submitted.number}\n")
    return submitted


SLURM = Through(files, check, begin, by_hand=("sbatch",), missing=missing)
