"""What an entry of each axis is: a small value of pure functions. combine.py puts one of each together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import Literal, Protocol

from paceline.launch.job import Job, Words


@dataclass(frozen=True)
class File:
    """One readable file that a launch writes into RUN/launch."""

    name: str
    text: str
    runs: bool = False  # made executable
    said: bool = True  # printed when it is written; a program of ours is not


@dataclass(frozen=True)
class Starter:
    """Who starts processes.

    command   (job, program) -> the command that starts `program` as ranks
    reach     "job": the command starts all ranks of all nodes; "node": it starts one node's, and whoever gives the nodes runs
              it on each of them, with NODE_VARIABLES in its environment
    stop      the signal to the starter that reaches the ranks as a wish to stop (they save and end with 75)
    notes     comment lines before the command, in the file that holds it
    missing   the program that this machine lacks for it, in a sentence with another way; '' where it can start
    """

    command: Callable[[Job, Words], Words]
    reach: Literal["job", "node"]
    stop: Signals
    check: Callable[[Job], None]  # raises UserError for what it cannot do
    notes: Callable[[Job], str] = lambda job: ""
    missing: Callable[[Job], str] = lambda job: ""


# What a starter of one node is told of the others (torchrun's own names for its flags), and what for.
NODE_VARIABLES = {
    "PET_NNODES": "torchrun: how many nodes",
    "PET_NODE_RANK": "torchrun: this node's number",
    "PET_MASTER_ADDR": "torchrun: the node where rank 0 runs",
    "PET_MASTER_PORT": "torchrun: where its store listens",
}


@dataclass(frozen=True)
class Container:
    """What wraps processes.

    wrap    (job, command) -> the command that runs `command` inside
    srun    words that srun itself takes for it (Pyxis): the command is inside already
    notes   what those words are for: comment lines before the srun line
    before  what each node does outside before ranks start there: a shell command, '' = nothing
    whole   the wrapper goes around mpirun, not around each of its ranks: one container a node
    python  the interpreter inside; None where the outer one is used
    files   files of its own: the script that starts it
    missing  as a Starter's
    """

    wrap: Callable[[Job, Words], Words]
    check: Callable[[Job], None]
    srun: Callable[[Job], Words] = lambda job: ()
    whole: bool = False
    python: Words | None = None
    notes: Callable[[Job], str] = lambda job: ""
    before: Callable[[Job], str] = lambda job: ""
    files: Callable[[Job], tuple[File, ...]] = lambda job: ()
    missing: Callable[[Job], str] = lambda job: ""


class Running(Protocol):
    """A job that was started."""

    name: str
    """How people call it: "job 12", "process 4711"."""

    def poll(self) -> int | None:
        """None while it goes on or waits; afterwards the launcher's own exit code, which says little."""

    def stop(self) -> None:
        """Ask the run to save and end."""

    def kill(self) -> None:
        """End it now."""

    def standing(self) -> str:
        """What it waits for at the moment, for people; '' while it runs."""
        ...


@dataclass(frozen=True)
class Through:
    """Who gives the machines.

    files   (job, command) -> the files to write; the first one is what `begin` hands over
    begin   (job, paths of the files) -> the running job
    there   (job, the files that it would have) -> the running job of an earlier launch of the same; raises UserError where one
            of another launch has this folder
    by_hand  the words before the first file's name with which people do the same
    missing  as a Starter's
    """

    files: Callable[[Job, Words], tuple[File, ...]]
    check: Callable[[Job], None]
    begin: Callable[[Job, tuple[Path, ...]], Running]
    there: Callable[[Job, tuple[File, ...]], Running | None] = lambda job, files: None
    by_hand: Words = ()
    missing: Callable[[Job], str] = lambda job: ""
