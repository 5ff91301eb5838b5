"""Job: what is to run, on how many nodes, with which variables and folders. And what an entry of each axis is.

Every file that a launch writes is made of a Job. Who gives machines (Through), who starts processes (Starter) and what wraps
them (Container) are small values of pure functions; runner.py puts one of each together.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from signal import Signals
from typing import Annotated, Literal, Protocol

from paceline._utils.names import LAUNCH_FOLDER
from paceline.config.constraints import Help
from paceline.config.system import System
from paceline.distributed.comm.environment import EnvVariable
from paceline.distributed.comm.exit_code import EXIT_CODE_FILE
from paceline.distributed.comm.launcher import derive_port

# A command: its words, not yet quoted for any shell.
Words = tuple[str, ...]
# The longest line of a script that we write.
WIDTH = 100


@dataclass(frozen=True)
class Mount:
    """A folder that a container's processes see."""

    host: Path  # absolute
    inside: str  # absolute; the same as outside wherever a rank's words name it
    why: str
    writable: bool = False


@dataclass(frozen=True)
class BatchOptions:
    """What a scheduler is asked for beside nodes and time."""

    partition: Annotated[str, Help("partition (queue); empty: default of the cluster")] = ""
    account: Annotated[str, Help("account that is charged; empty: default of the user")] = ""
    qos: Annotated[str, Help("quality of service; empty: the default")] = ""
    gres: Annotated[str, Help("devices per node, such as gpu:8; empty: none, for clusters that allocate whole nodes")] = ""
    reservation: Annotated[str, Help("name of a reservation")] = ""
    constraint: Annotated[str, Help("features that the nodes must have, such as h100")] = ""
    network: Annotated[str, Help("options of the network, such as sharp; empty: as published")] = ""
    exclusive: Annotated[bool, Help("run no other jobs on these nodes")] = True
    requeue: Annotated[bool, Help("restart after preemption, a node failure, or the walltime")] = True
    grace_seconds: Annotated[int, Help("time before the walltime at which the run saves and stops (seconds)")] = 120
    extra: Annotated[tuple[str, ...], Help("more arguments for sbatch, unchanged, such as --comment=mine")] = ()


@dataclass(frozen=True)
class LaunchJob:
    """One start of one run (or of any other words that every rank shall carry out)."""

    words: Words  # what each rank hands to paceline, e.g. ("train", "ssd-demo", "--output-dir", "/abs/run")
    folder: Path  # the run's folder, absolute, on a file system that all nodes see; our files lie in its launch/
    name: str
    nodes: int = 1
    per_node: int = 1
    system_name: str = "auto"
    system: System = field(default_factory=System)
    through: str = "local"
    start: str = "torchrun"
    container: str = "none"
    environ: tuple[EnvVariable, ...] = ()
    mounts: tuple[Mount, ...] = ()
    # The interpreter that ranks start with, as it is called where they run: inside the container, if there is one.
    python: Words = (sys.executable,)
    image: str = ""  # container's name, or its file
    workdir: Path = field(default_factory=Path.cwd)  # where relative paths of the words begin
    port: int = 0  # where rank 0 listens; 0 = each launcher's own way to find one
    hostfile: Path | None = None
    batch: BatchOptions = field(default_factory=BatchOptions)
    walltime_minutes: int = 0  # 0 = no limit is asked for
    between: str = ""  # shell command that runs once on every node before its ranks start
    preflight: bool = False  # look at all nodes before training (preflight/)
    preflight_reads: Words = ()  # data and weights, as absolute paths
    preflight_writes: Words = ()  # folders beside the run's
    again: str = "the same command"  # what goes on with the run, in words: a launch without --output-dir begins another

    @property
    def ranks(self) -> int:
        """Over all nodes."""
        return self.nodes * self.per_node

    @property
    def program(self) -> Words:
        """What one rank is, where nobody wraps it."""
        return (*self.python, "-m", "paceline", *self.words)

    @property
    def launch_folder(self) -> Path:
        """Where the files of this launch lie."""
        return self.folder / LAUNCH_FOLDER

    @property
    def log(self) -> Path:
        """What all ranks print, of every start: one file, appended to."""
        return self.launch_folder / "output.txt"

    @property
    def exit_code_file(self) -> Path:
        """Where rank 0 leaves its exit code, which launchers swallow."""
        return self.launch_folder / "exit-code"

    @property
    def preflight_folder(self) -> Path:
        """Where a preflight leaves everything."""
        return self.launch_folder / "preflight"


def make_environment(job: LaunchJob) -> tuple[EnvVariable, ...]:
    """The job's variables and our own."""
    own = [
        EnvVariable(EXIT_CODE_FILE, str(job.exit_code_file), "rank 0 writes its exit code here; launchers do not return it")
    ]
    own.append(EnvVariable("PYTHONUNBUFFERED", "1", "output of the ranks appears immediately"))
    if job.start == "mpirun":
        own.append(EnvVariable("TERM", "dumb", "mpirun gives ranks a terminal, but their output goes to a log"))
    return (*job.environ, *own)


def format_exports(variables: Sequence[EnvVariable]) -> str:
    """`export NAME=value  # why`, a line each."""
    return "".join(f"export {one.name}={shlex.quote(one.value)}  # {one.why}\n" for one in variables)


def format_command_lines(command: Words) -> str:
    """A command quoted for the shell, broken into lines before its flags."""
    lines, line = [], ""
    for word in map(shlex.quote, command):
        if (line and word.startswith("-") and len(line) + len(word) > WIDTH - 40) or len(line) + len(word) > WIDTH:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return " \\\n    ".join([*lines, line])


@dataclass(frozen=True)
class LaunchFile:
    """One readable file that a launch writes into RUN/launch."""

    name: str
    text: str
    runs: bool = False  # made executable
    shown: bool = True  # printed when it is written; a program of ours is not


@dataclass(frozen=True)
class ProcessStarter:
    """Who starts processes."""

    command: Callable[[LaunchJob, Words], Words]  # (job, program) -> the command that starts `program` as ranks
    # "job": the command starts all ranks of all nodes; "node": it starts one node's, and whoever gives the nodes runs it on each of
    # them, with NODE_VARIABLES in its environment.
    reach: Literal["job", "node"]
    stop: Signals  # signal to the starter that asks the ranks to stop (they save and end with 75)
    notes: Callable[[LaunchJob], str] = lambda job: ""  # comment lines before the command, in the file that holds it
    # The program that this machine lacks for it, in a sentence with another way; '' where it can start.
    missing: Callable[[LaunchJob], str] = lambda job: ""


# What a starter of one node learns of the others (torchrun's own names for its flags), and what for.
NODE_VARIABLES = {
    "PET_NNODES": "torchrun: number of nodes",
    "PET_NODE_RANK": "torchrun: index of this node",
    "PET_MASTER_ADDR": "torchrun: node of rank 0",
    "PET_MASTER_PORT": "torchrun: port of its store",
}


def choose_store_port(job: LaunchJob) -> int:
    """Where the store of a starter of one node listens. Runs in different folders have different ports."""
    return job.port or derive_port(str(job.folder))


def format_node_exports(job: LaunchJob, first: str, number: str = "") -> str:
    """NODE_VARIABLES, an `export` a line.

    first, number  what the shell puts in for the node where rank 0 runs, and for this node's number; "" = not set here
    """
    values = (str(job.nodes), number, first, str(choose_store_port(job)))
    pairs = zip(NODE_VARIABLES.items(), values, strict=True)
    return "".join(f"export {name}={value}  # {why}\n" for (name, why), value in pairs if value)


def require_programs(
    text: str, *programs: str, here: Callable[[LaunchJob], bool] = lambda job: True
) -> Callable[[LaunchJob], str]:
    """The `missing` of an entry that needs one of these programs on this machine, for the jobs that start it `here`."""
    return lambda job: text if here(job) and not any(map(shutil.which, programs)) else ""


@dataclass(frozen=True)
class Container:
    """What wraps processes."""

    wrap: Callable[[LaunchJob, Words], Words]  # (job, command) -> the command that runs `command` inside
    check: Callable[[LaunchJob], None]  # raises PacelineError for what it cannot do
    # Words that srun itself takes for it (Pyxis): the command is inside already.
    srun: Callable[[LaunchJob], Words] = lambda job: ()
    whole: bool = False  # the wrapper goes around mpirun, not around each of its ranks: one container a node
    python: Words | None = None  # the interpreter inside; None where the outer one is used
    notes: Callable[[LaunchJob], str] = lambda job: ""  # what those words are for: comment lines before the srun line
    # What each node does outside before ranks start there: a shell command, '' = nothing.
    before: Callable[[LaunchJob], str] = lambda job: ""
    files: Callable[[LaunchJob], tuple[LaunchFile, ...]] = lambda job: ()  # files of its own: the script that starts it
    missing: Callable[[LaunchJob], str] = lambda job: ""  # as a Starter's


class RunningJob(Protocol):
    """A job that was started."""

    name: str
    """For people: "job 12", "process 4711"."""

    def poll(self) -> int | None:
        """None while it runs or waits; afterwards the launcher's own exit code, which means little."""

    def stop(self) -> None:
        """Ask the run to save and end."""

    def kill(self) -> None:
        """End it now."""

    def waiting_for(self) -> str:
        """What it waits for at the moment, for people; '' while it runs."""
        ...


@dataclass(frozen=True)
class Scheduler:
    """Who gives the machines."""

    # (job, command) -> the files to write; the first one is what `begin` hands over.
    files: Callable[[LaunchJob, Words], tuple[LaunchFile, ...]]
    check: Callable[[LaunchJob], None]  # raises PacelineError for what it cannot do
    begin: Callable[[LaunchJob, tuple[Path, ...]], RunningJob]  # (job, paths of the files) -> the running job
    # (job, the files that it would have) -> the running job of an earlier launch of the same; raises PacelineError where one of
    # another launch has this folder.
    earlier: Callable[[LaunchJob, tuple[LaunchFile, ...]], RunningJob | None] = lambda job, files: None
    by_hand: Words = ()  # the words before the first file's name with which people do the same
    missing: Callable[[LaunchJob], str] = lambda job: ""  # as a Starter's
