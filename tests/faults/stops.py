"""Faults that ask a run to stop, hold it up, or take its output away."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from fault import Fault, Round, Strike
from workloads import WORKLOADS

GOES_ON = "the same command again"


def _stopped(at: str, do: str, rank: int | None = 0) -> tuple[Round]:
    return (Round("interrupted", (Strike(at, do, rank),), says=(GOES_ON,)),)


def stops() -> Iterator[Fault]:
    """Signals and STOP files, in training and in evaluations, on one rank or on all."""
    family = "asked to stop"
    for workload, ranks, do, rank in (
        ("resnet50", 1, "ask SIGTERM", 0),
        ("resnet50", 1, "ask SIGINT", 0),
        ("resnet50", 1, "ask SIGUSR1", 0),
        ("resnet50", 1, "stop-file", 0),
        ("resnet50", 2, "ask SIGTERM", 1),
        ("resnet50", 2, "ask SIGINT", None),
        ("resnet50", 2, "ask SIGUSR1", 0),
        ("resnet50", 2, "stop-file", 1),
        ("ssd", 1, "ask SIGTERM", 0),
        ("ssd", 2, "ask SIGUSR1", 1),
        ("maskrcnn", 1, "stop-file", 0),
        ("maskrcnn", 2, "ask SIGTERM", 0),
    ):
        step = Random(f"stop {workload} {ranks} {do}").randint(1, WORKLOADS[workload].steps - 3)
        name = f"{do.removeprefix('ask ')} after step {step}, to {'all ranks' if rank is None else f'rank {rank}'}"
        yield Fault(name, family, workload, ranks, "resumed", _stopped(f"step {step}", do, rank), saves=True)
    for workload, ranks in (("resnet50", 1), ("resnet50", 2), ("ssd", 1), ("maskrcnn", 1)):
        rounds = _stopped("batch 1", "ask SIGTERM", ranks - 1)
        yield Fault("SIGTERM in an evaluation", family, workload, ranks, "resumed", rounds, saves=True)
    rounds = (Round("interrupted", (Strike("step 7", "ask SIGINT TWICE", 0),), says=("interrupted",)),)
    yield Fault("SIGINT twice: at once, nothing is saved", family, "resnet50", 1, "resumed", rounds)
    rounds = tuple(_stopped(f"step {step}", "ask SIGTERM")[0] for step in (2, 5, 9, 13))
    yield Fault("four SIGTERMs, one after another", family, "resnet50", 1, "resumed", rounds, saves=True)
    stopped = Round("interrupted", (Strike("step 5", "stop-file folder", 0),), says=("STOP",))
    rounds = (stopped, Round("refused", says=("STOP",)), Round(damage=("remove STOP",)))
    yield Fault("STOP is a folder", family, "resnet50", 1, "resumed", rounds, saves=True)


def freezes() -> Iterator[Fault]:
    """SIGSTOP: a short one, as a suspended machine has, changes nothing; a long one is a lost rank."""
    family = "frozen (SIGSTOP)"
    for workload, ranks in (("resnet50", 1), ("resnet50", 2), ("maskrcnn", 2)):
        strikes = (Strike("start", "patience 4"), Strike("step 5", "freeze 6 all", 0))
        name = "all ranks, longer than one alone may be silent"
        yield Fault(name, family, workload, ranks, "unaffected", (Round(strikes=strikes),))
    for rank in (0, 1):
        strikes = (Strike("start", "patience 4"), Strike("step 5", "freeze 1", rank))
        name = f"rank {rank}, for a second"
        yield Fault(name, family, "resnet50", 2, "unaffected", (Round(strikes=strikes),))
    for rank in (0, 1):
        strikes = (Strike("start", "patience 3"), Strike("step 5", "freeze 9", rank))
        rounds = (Round("failed", strikes, says=(f"rank {rank}",)),)
        yield Fault(f"rank {rank}, for too long", family, "resnet50", 2, "resumed", rounds)


def outputs() -> Iterator[Fault]:
    """Nobody reads what is printed: training goes on."""
    family = "stdout lost"
    for workload, ranks, how in (
        ("resnet50", 1, "head"),
        ("resnet50", 2, "head"),
        ("ssd", 1, "head"),
        ("maskrcnn", 1, "head"),
        ("resnet50", 1, "closed"),
        ("resnet50", 2, "closed"),
        ("resnet50", 1, "full"),
        ("ssd", 2, "full"),
    ):
        rounds = (Round(strikes=(Strike("start", f"stdout {how}", 0),)),)
        words = {"head": "| head -2", "closed": "nobody reads from the start", "full": "/dev/full"}
        yield Fault(words[how], family, workload, ranks, "unaffected", rounds)
