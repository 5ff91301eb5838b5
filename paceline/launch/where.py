"""Where and how a job is started, as flags say it; and the Job that they make of words and a folder."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from paceline.config.errors import UserError
from paceline.config.system import System
from paceline.launch.combine import USUAL_START, check_together
from paceline.launch.inside import inside
from paceline.launch.job import Batch, Job, Variable, Words
from paceline.launch.variables import network_names, variables_of

MOST_NODES = 65536
# Named, so that each field fits on one line with its comment, which is its help.
ThroughWhom = Literal["local", "hostfile", "slurm"]
StartedBy = Literal["auto", "torchrun", "srun", "mpirun"]
Inside = Literal["none", "docker", "pyxis", "apptainer"]


@dataclass(frozen=True)
class Where:
    """The flags that every launched verb has."""

    nodes: int = 1  # machines that take part; each runs --system's ranks of one node
    through: ThroughWhom = "local"  # who gives the nodes: this machine, a list of hosts, Slurm
    start: StartedBy = "auto"  # who starts the ranks; auto = srun in Slurm, else torchrun
    container: Inside = "none"  # what the ranks run inside
    image: str = ""  # container's name or file; empty = the one that `paceline image build` makes
    mount: tuple[str, ...] = ()  # more folders in the container: HOST or HOST:INSIDE, each with :rw to write
    hostfile: str = ""  # hosts for --through hostfile, one a line: ADDRESS slots=N
    walltime: str = ""  # longest time the job may take, e.g. 90m or 2h; auto = as predicted, with a margin
    port: int = 0  # where rank 0 listens; 0 = found by itself
    between: str = ""  # shell command that runs once on every node before the ranks start, e.g. to drop its caches
    slurm: Batch = field(default_factory=Batch)  # what sbatch is asked for beside nodes and time


def check_where(where: Where) -> None:
    """Refuse numbers that cannot be, and what does not go together.

    Raises UserError with the flag.
    """
    if not 1 <= where.nodes <= MOST_NODES:
        raise UserError(f"--nodes {where.nodes}: must lie in 1 to {MOST_NODES:,}.")
    if not 0 <= where.port < 65536:
        raise UserError(f"--port {where.port}: no port number (1 to 65535; 0 = found by itself).")
    if where.hostfile and where.through != "hostfile":
        raise UserError(f"--hostfile {where.hostfile} is read with --through hostfile alone.")
    told = [field.name for field in fields(Batch) if getattr(where.slurm, field.name) != field.default]
    if told and where.through != "slurm":
        raise UserError(f"--slurm.{told[0].replace('_', '-')} is read with --through slurm alone.")
    if where.container == "none" and (where.image or where.mount):
        raise UserError("--image and --mount are for containers: name one with --container docker, pyxis or apptainer.")
    check_together(where.through, start_of(where), where.container, where.nodes)


def left_outside(where: Where, system: System) -> str:
    """What to say of variables of a network that are set in this shell and stay outside of a container; '' where there are none."""
    if where.container == "none":
        return ""
    inside = {pair.partition("=")[0] for pair in system.env}
    if not (names := [name for name in network_names() if name not in inside]):
        return ""
    return (
        f"{', '.join(names)}: set in this shell, and not handed to the container, whose libraries lie elsewhere. What its ranks need: "
        f"--system.env {names[-1]}=..."
    )


def start_of(where: Where) -> str:
    """Who starts the ranks, where nobody said it too."""
    return USUAL_START[where.through] if where.start == "auto" else where.start


def job_of(
    words: Words,
    folder: Path,
    *,
    name: str,
    where: Where,
    system_name: str,
    system: System,
    minutes: int | None = None,
    more: tuple[Variable, ...] = (),
    reads: Words = (),
    writes: Words = (),
    again: str = "the same command",
) -> Job:
    """The Job of these words: any verb's, with all paths absolute or seen from the working directory on every node.

    folder   where launch/ is made; absolute
    minutes  the walltime; None: as `where` says it
    more     variables beside those that the system and this machine bring
    reads    data and weights, as flags or a run.json name them: a container sees them
    writes   folders beside the run's that are written, as flags or a run.json name them: a container may
    again    what goes on with the run, in words
    Raises UserError as check_where does.
    """
    check_where(where)
    job = Job(
        words=words,
        folder=folder,
        name=re.sub(r"[^\w.-]+", "-", Path(name).name) or "paceline",
        nodes=where.nodes,
        per_node=system.per_node,
        system_name=system_name,
        system=system,
        through=where.through,
        start=start_of(where),
        container=where.container,
        image=where.image,
        hostfile=Path(where.hostfile).expanduser().absolute() if where.hostfile else None,
        environ=(
            *variables_of(
                system,
                where.port,
                local=where.through == "local",
                network=where.through == "hostfile" and where.container == "none",
            ),
            *more,
        ),
        port=where.port,
        batch=where.slurm,
        walltime_minutes=minutes_in(where.walltime) if minutes is None else minutes,
        between=where.between,
        again=again,
    )
    return inside(job, where.mount, reads=reads, writes=writes)


# How long a job may take, in minutes; and whether that is enough for one checkpoint.


# Slurm sends its warning up to a minute sooner than asked (sbatch(1), --signal).
SLURM_SOONER_SECONDS = 60
# What a start costs before the first step: Python and torch, the roll call, opening the data.
START_SECONDS = 20
# Months, as a number without its unit would be; no cluster gives that.
MOST_MINUTES = 60 * 24 * 365


def minutes_in(text: str) -> int:
    """Whole minutes of 90s, 30m, 2h, 1d or H:MM:SS, rounded up; 0 for ''.

    Raises UserError for anything else.
    """
    if not text:
        return 0
    clock, unit = re.fullmatch(r"(?:(\d+):)?(\d+):(\d\d)", text), re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if clock:
        seconds = int(clock[1] or 0) * 3600 + int(clock[2]) * 60 + int(clock[3])
    else:
        seconds = float(unit[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[unit[2]] if unit else 0
    minutes = math.ceil(seconds / 60)
    if not 0 < minutes <= MOST_MINUTES:
        raise UserError(
            f"--walltime {text!r}: write auto, or a time such as 90m, 2h or 2:00:00 (hours:minutes:seconds)."
        )
    return minutes


def check_walltime(minutes: int, batch: Batch) -> None:
    """Refuse a walltime in which Slurm would ask the run to stop before it made a step: it would be queued again for ever.

    minutes  0: none was asked for
    Raises UserError with the shortest walltime that makes sense.
    """
    if batch.lead < 1:
        raise UserError(f"--slurm.lead {batch.lead}: seconds that the run has for its last checkpoint, 1 or more.")
    least = math.ceil((batch.lead + SLURM_SOONER_SECONDS + START_SECONDS) / 60)
    if 0 < minutes < least:
        raise UserError(
            f"--walltime of {minutes} min is too short for one checkpoint: Slurm asks the run to save {batch.lead} s before "
            f"its end (--slurm.lead) and up to {SLURM_SOONER_SECONDS} s sooner, and a start takes {START_SECONDS} s. At "
            f"least {least} min:  --walltime {least}m"
        )
