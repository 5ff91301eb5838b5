"""srun: Slurm starts every rank itself, and tells each its place."""

from __future__ import annotations

from signal import SIGUSR1

from paceline.launch.axes import Starter
from paceline.launch.chosen import on_chosen
from paceline.launch.containers import CONTAINER
from paceline.launch.job import Job, Words


def command(job: Job, program: Words) -> Words:
    """All ranks of all nodes; variables travel with --export=ALL, which is srun's default and said all the same.

    --cpu-bind=none: each rank binds itself (--system.bind), and Slurm's one core a task would leave it no choice.
    --kill-on-bad-exit=0: ranks end each other by name, and one that has saved (75) must not cut off rank 0's last words.
    """
    ranks = ("--nodes", str(job.nodes), "--ntasks", str(job.ranks), "--ntasks-per-node", str(job.per_node))
    words = ("--export=ALL", "--label", *on_chosen(job))
    return ("srun", *ranks, *words, "--cpu-bind=none", "--kill-on-bad-exit=0", *container_words(job), *program)


def container_words(job: Job) -> Words:
    """What srun itself takes for the container (Pyxis)."""
    return CONTAINER[job.container].srun(job)


def check(job: Job) -> None:
    """Nothing of its own: srun comes with sbatch, and through_slurm looks for that."""


SRUN = Starter(command, "job", SIGUSR1, check)
