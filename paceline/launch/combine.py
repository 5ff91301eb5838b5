"""Who gives nodes, as a table; which combinations of them there are, and the command that one of each makes together.

Each combination that is not there is refused with its reason; those of the four systems are docs/launch.md's table.
"""

from __future__ import annotations

from dataclasses import replace

from paceline.config.errors import UserError
from paceline.launch.axes import Through
from paceline.launch.containers import CONTAINER
from paceline.launch.job import Job, Words
from paceline.launch.shell import check_lines
from paceline.launch.starters import START
from paceline.launch.through_hostfile import HOSTFILE
from paceline.launch.through_local import LOCAL
from paceline.launch.through_slurm import SLURM

THROUGH: dict[str, Through] = {
    "local": LOCAL,
    "hostfile": HOSTFILE,
    "slurm": SLURM,
}
# Who starts processes where nobody says it.
USUAL_START = {"local": "torchrun", "hostfile": "torchrun", "slurm": "srun"}


def refusal(through: str, start: str, container: str, nodes: int) -> str:
    """Why these three do not go together; '' where they do."""
    if start == "srun" and through != "slurm":
        return f"srun starts processes inside Slurm jobs alone: use --through slurm, or --start {USUAL_START[through]}."
    if container == "pyxis" and (through, start) == ("slurm", "mpirun"):
        return (
            "Pyxis is a part of srun, and mpirun starts its ranks past it: use --start srun (with Pyxis), or "
            "--container apptainer."
        )
    if container == "pyxis" and through != "slurm":
        return "Pyxis is a part of Slurm's srun: use --through slurm, or --container docker or apptainer."
    if container == "docker" and start == "srun":
        return (
            "a Docker container a rank would know neither Slurm's variables nor its neighbours' memory: use --start "
            "torchrun (one container a node), or --container pyxis or apptainer."
        )
    if container == "docker" and start == "mpirun" and nodes > 1:
        return (
            "mpirun's daemons on other nodes cannot enter a Docker container: use --start torchrun (one container a "
            "node), or --container apptainer."
        )
    if container == "docker" and start == "mpirun" and through != "local":
        return "with Docker, mpirun runs inside the one container: use --through local, or --start torchrun."
    if through == "local" and nodes > 1:
        return f"--through local is this machine alone, and --nodes {nodes} are more: use --through slurm or hostfile."
    return ""


def check_together(through: str, start: str, container: str, nodes: int) -> None:
    """Raises UserError with the reason, and with another way, where these do not go together."""
    if why := refusal(through, start, container, nodes):
        raise UserError(f"--through {through} --start {start} --container {container}: {why}")


def check_combination(job: Job) -> None:
    """Refuse what does not go together, and what one of the three cannot do.

    Raises UserError with the reason and another way.
    """
    check_together(job.through, job.start, job.container, job.nodes)
    check_lines(job)
    THROUGH[job.through].check(job)
    START[job.start].check(job)
    CONTAINER[job.container].check(job)


def missing(job: Job) -> list[str]:
    """The programs that this machine lacks for starting it, a sentence each. Its files can be written all the same."""
    asked = THROUGH[job.through].missing, START[job.start].missing, CONTAINER[job.container].missing
    return [line for line in (each(job) for each in asked) if line]


def command_of(job: Job) -> Words:
    """What is run: once for the whole job, or once on every node where the starter reaches no further.

    Containers stand around each rank; but around the starter where that starts one node's ranks (torchrun), and where the
    container wants to be one a node (`whole`), so that mpirun runs inside.
    """
    starter, container = START[job.start], CONTAINER[job.container]
    if container.python is not None:
        job = replace(job, python=container.python)
    if starter.reach == "node" or container.whole:
        return container.wrap(job, starter.command(job, job.program))
    return starter.command(job, container.wrap(job, job.program))
