"""Job: what is to run, on how many nodes, with which variables and folders. Every file that a launch writes is made of it."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

from paceline.config.run_names import LAUNCH_FOLDER
from paceline.config.system import System

# A command: its words, not yet quoted for any shell.
Words = tuple[str, ...]


@dataclass(frozen=True)
class Variable:
    """An environment variable of every rank, and what it is for: the comment beside it in each file that sets it."""

    name: str
    value: str
    why: str


@dataclass(frozen=True)
class Mount:
    """A folder that a container's processes see."""

    host: Path  # absolute
    inside: str  # absolute; the same as outside wherever a rank's words name it
    why: str
    writable: bool = False


@dataclass(frozen=True)
class Batch:
    """What a scheduler is asked for beside nodes and time."""

    partition: str = ""  # queue that the job waits in; empty = the cluster's default
    account: str = ""  # who pays; empty = the user's default
    qos: str = ""  # quality of service; empty = the default
    gres: str = ""  # devices a node, e.g. gpu:8; empty = none asked for, as where nodes are given whole
    reservation: str = ""  # nodes set aside under this name
    constraint: str = ""  # features that a node must have, e.g. h100
    network: str = ""  # of the switches, e.g. sharp; empty and not given = as published for recipe, system and nodes
    exclusive: bool = True  # nobody else's job on these nodes
    requeue: bool = True  # start again where it stopped: after preemption, a lost node, or the walltime's end
    lead: int = 120  # seconds before the walltime's end at which the run is asked to save and stop
    extra: tuple[str, ...] = ()  # further words for sbatch, as they are, e.g. --comment=mine


@dataclass(frozen=True)
class Job:
    """One start of one run (or of any other words that every rank shall carry out).

    words     what each rank hands to paceline, e.g. ("train", "ssd-tiny", "--out", "/abs/run")
    folder    the run's folder, absolute, on a file system that all nodes see; our files lie in its launch/
    python    the interpreter that ranks start with, as it is called where they run: inside the container, if there is one
    """

    words: Words
    folder: Path
    name: str
    nodes: int = 1
    per_node: int = 1
    system_name: str = "auto"
    system: System = field(default_factory=System)
    through: str = "local"
    start: str = "torchrun"
    container: str = "none"
    environ: tuple[Variable, ...] = ()
    mounts: tuple[Mount, ...] = ()
    python: Words = (sys.executable,)
    image: str = ""  # container's name, or its file
    workdir: Path = field(default_factory=Path.cwd)  # where relative paths of the words begin
    port: int = 0  # where rank 0 listens; 0 = each launcher's own way to find one
    hostfile: Path | None = None
    batch: Batch = field(default_factory=Batch)
    walltime_minutes: int = 0  # 0 = no limit is asked for
    between: str = ""  # shell command that runs once on every node before its ranks start
    preflight: bool = False  # look at all nodes before training (preflight.py)
    spares: int = 0  # nodes beside those that train, one of which takes a bad node's place
    preflight_reads: Words = ()  # data and weights, as absolute paths
    preflight_writes: Words = ()  # folders beside the run's
    again: str = "the same command"  # what goes on with the run, in words: a launch without --out begins another

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
