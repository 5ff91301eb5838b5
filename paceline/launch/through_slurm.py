"""Slurm gives the nodes: one sbatch script, which starts the ranks, saves before its time is up, and goes on as a job again."""

from __future__ import annotations

import shutil
from pathlib import Path

from paceline.config.errors import UserError
from paceline.launch.axes import File, Running, Through
from paceline.launch.job import Job, Words
from paceline.launch.slurm_job import submit
from paceline.launch.slurm_script import script


def files(job: Job, command: Words) -> tuple[File, ...]:
    """job.sbatch, and nothing else."""
    return (File("job.sbatch", script(job, command), runs=True),)


def check(job: Job) -> None:
    """Raises UserError where this machine cannot submit jobs."""
    if shutil.which("sbatch") is None:
        raise UserError(
            "--through slurm: there is no sbatch on this machine. Run this on a login node of the cluster, or use "
            "--through hostfile."
        )


def begin(job: Job, paths: tuple[Path, ...]) -> Running:
    """Submit it."""
    return submit(job, paths[0])


SLURM = Through(files, check, begin)
