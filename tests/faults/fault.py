"""A fault as data: what strikes which commands, what is done to the folder between them, and how it has to end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# refused     named and refused: exit code 2 on every rank, one message that names the cause, the folder as it was
# resumed     named and resumed: what can speak says why it ended, or what it left aside, and the same command goes on
# unaffected  the command that was struck ends as if nothing had happened
# After each of them the same command, given again where it is needed, ends with the weights of an undisturbed run.
Outcome = Literal["refused", "resumed", "unaffected"]
# How the ranks of one command end; see CODES.
Ends = Literal["finished", "refused", "failed", "killed", "interrupted"]
CODES: dict[Ends, tuple[int, ...]] = {
    "finished": (0,),
    "refused": (2,),
    "failed": (3,),
    "killed": (-9, 3),  # who was not killed says who was
    "interrupted": (75,),
}


@dataclass(frozen=True)
class Strike:
    """What happens to one rank, or to all, and when: the words of faulty_rank.py and actions.py."""

    at: str
    do: str
    rank: int | None = None


@dataclass(frozen=True)
class Round:
    """One command on the run's folder, and how all its ranks have to end."""

    ends: Ends = "finished"
    strikes: tuple[Strike, ...] = ()
    damage: tuple[str, ...] = ()  # done before it: the words of damage.py
    flags: str = ""  # outweigh the workload's
    ranks: int = 0  # 0: the fault's
    says: tuple[str, ...] = ()  # regular expressions, each found in what the ranks print together
    alike: bool = False  # one decision of all ranks, which the first of a node says; else each says why it ends
    over: bool = False  # the run is finished already: no command follows
    traceback: bool = False  # the planted error is a programmer's, so its traceback is wanted


@dataclass(frozen=True)
class Fault:
    """One row of the table. Commands after the last round follow until the run is finished."""

    name: str
    family: str
    workload: str
    ranks: int
    expected: Outcome
    rounds: tuple[Round, ...]
    automatic: bool = False  # the system is found by itself; else it is fp32 with one thread of each kind
    always: tuple[Strike, ...] = ()  # what every command finds, the undisturbed run's too
    begun: bool = False  # the folder is that of a run that was killed half-way
    resumed_on: int = 0  # ranks of the run that it must equal, which went on half-way on so many; 0: as many as before
    data: Literal["shared", "own"] = "shared"  # photos that may be damaged are the fault's own
    cache: Literal["shared", "own"] = "shared"  # with an own, empty cache the photos are verified first
    disk: str = ""  # size of a file system of its own for the run's folder; needs the right to mount
    lost_events: int = 0  # so many were damaged, and are left out
    saves: bool = False  # the stop leaves a checkpoint that the undisturbed run has not
    report: bool = False  # the report is written too
    short: bool = False  # in the suite; all others, what other tests hold already among them, only with --nightly

    @property
    def row(self) -> str:
        """Its name in the table of all."""
        return f"{self.family}: {self.name} ({self.workload}, {self.ranks} rank{'s'[: self.ranks > 1]})"
