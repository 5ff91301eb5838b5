"""Slurm gives the nodes: one sbatch script, which starts the ranks, saves before its time is up, and goes on as a job again."""

from __future__ import annotations

import shutil
from pathlib import Path

from paceline.config.errors import UserError
from paceline.config.plain_file import read_entry
from paceline.config.whole import write_whole
from paceline.launch.axes import File, Running, Through
from paceline.launch.job import Job, Words
from paceline.launch.slurm_job import still_there, submit
from paceline.launch.slurm_script import script

JOB_NUMBER = "job-number"
MOST_BYTES = 1 << 20


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


def there(job: Job, files: tuple[File, ...]) -> Running | None:
    """The job of an earlier launch that is still there for this folder, where the same was asked of it.

    Its walltime may be another: --walltime auto changes with what is known of the run's speed.
    Raises UserError where it was submitted with other files: those would be replaced under it, and what is new would not count.
    """
    if (found := still_there(_text(job.launch_folder / JOB_NUMBER).strip())) is None:
        return None
    for file in files:
        if _but_for_time(_text(job.launch_folder / file.name)) != _but_for_time(file.text):
            raise UserError(
                f"{job.folder}: job {found.number} is still there with another {file.name} than this command's. Give its own "
                f"command again to follow it, wait for its end, or take it away: scancel {found.number}"
            )
    return found


def _text(path: Path) -> str:
    """What an earlier launch wrote; "" where there is none, or anything else than a small text."""
    try:
        return read_entry(path, MOST_BYTES).decode()
    except (OSError, UnicodeDecodeError):
        return ""


def _but_for_time(script: str) -> str:
    return "".join(line for line in script.splitlines(keepends=True) if not line.startswith("#SBATCH --time="))


def begin(job: Job, paths: tuple[Path, ...]) -> Running:
    """Submit it."""
    submitted = submit(paths[0])
    write_whole(job.launch_folder / JOB_NUMBER, f"{submitted.number}\n")
    return submitted


SLURM = Through(files, check, begin, there, by_hand=("sbatch",), missing=missing)
