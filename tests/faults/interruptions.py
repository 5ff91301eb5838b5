"""Faults that end a process at a moment drawn from a seed, or at a chosen file operation: kills."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from fault import Fault, Round, Strike
from workloads import WORKLOADS

Counts = dict[tuple[str, int], int]
# (workload, ranks) -> how many kills of a kind are drawn for it.
MOMENTS: Counts = {
    ("resnet50", 1): 10,
    ("resnet50", 2): 4,
    ("ssd", 1): 4,
    ("ssd", 2): 2,
    ("maskrcnn", 1): 4,
    ("maskrcnn", 2): 2,
}
OPERATIONS: Counts = {
    ("resnet50", 1): 12,
    ("resnet50", 2): 3,
    ("ssd", 1): 3,
    ("ssd", 2): 1,
    ("maskrcnn", 1): 3,
    ("maskrcnn", 2): 1,
}
VERIFICATIONS: Counts = {("resnet50", 1): 3, ("resnet50", 2): 1, ("ssd", 1): 2, ("maskrcnn", 1): 2}
EVALUATIONS: Counts = {("resnet50", 1): 2, ("resnet50", 2): 1, ("ssd", 1): 2, ("maskrcnn", 1): 1, ("maskrcnn", 2): 1}
# A step of a tiny run takes about so long, ms: a delay below it reaches every moment between two steps.
STEP_MS = 60
# Checkpoints while they are written, as a regular expression.
PART = r"run/checkpoints/\.step-\d+\.\d+\.part"

# What is killed before which operation: a regular expression over "operation path", which of its kind, and how.
EXACT = {
    "inside a .part folder": (rf"open {PART}/model", 2, "kill all"),
    "a tensor file half written": (rf"sync {PART}/optimizer", 3, "tear"),
    "a checkpoint's index half written": (rf"sync {PART}/index", 2, "tear"),
    "between .part and its final name": (r"rename run/checkpoints/step-", 2, "kill all"),
    "between a checkpoint's name and its link": (r"symlink run/checkpoints/\.last", 2, "kill all"),
    "between link and rename of last": (r"rename run/checkpoints/last", 2, "kill all"),
    "between link and rename of best": (r"rename run/checkpoints/best", 1, "kill all"),
    "between an evaluation's event and its link": (r"symlink run/checkpoints/\.best", 1, "kill all"),
    "deleting an old checkpoint": (r"remove run/checkpoints/.*trash", 1, "kill all"),
    "before a line of events.jsonl": (r"open run/events.jsonl", 6, "kill all"),
    "inside a line of events.jsonl": (r"sync run/events.jsonl", 3, "tear"),
    "before a line of mllog.txt": (r"open run/mllog.txt", 9, "kill all"),
    "while mllog.txt is rewritten": (r"sync run/\.mllog.txt.*part", 1, "tear"),
    "before run.json has its name": (r"rename run/run.json", 1, "kill all"),
    "before predictions have their name": (r"rename run/predictions/", 1, "kill all"),
}
IN_THE_SUITE = (
    "a tensor file half written",
    "inside a line of events.jsonl",
    "between an evaluation's event and its link",
    "while mllog.txt is rewritten",
)


def drawn(counts: Counts, name: str) -> Iterator[tuple[str, int, int, Random]]:
    """(workload, ranks, seed, its random numbers) of every fault of a kind."""
    for (workload, ranks), count in counts.items():
        for seed in range(1, count + 1):
            yield workload, ranks, seed, Random(f"{name} {workload} {ranks} {seed}")


def killed(at: str, do: str = "kill all", *, rank: int | None = 0, says: tuple[str, ...] = ()) -> tuple[Round]:
    """One command that is killed."""
    return (Round("killed", (Strike(at, do, rank),), says=says),)


def late_ms(workload: str, step: int) -> int:
    """Within how many milliseconds after a step a run is killed: less before its end, so that it has not ended before."""
    return min(STEP_MS, 5 * (WORKLOADS[workload].steps - step))


def kills() -> Iterator[Fault]:
    """At random moments, at file operations drawn or chosen, in evaluations, scoring and the first verification."""
    family = "killed at a random moment"
    for workload, ranks, seed, random in drawn(MOMENTS, "moment"):
        step = random.randint(1, WORKLOADS[workload].steps - 1)
        late = random.randrange(late_ms(workload, step))
        name = f"seed {seed}: {late} ms after step {step}"
        short = (workload, ranks, seed) == ("resnet50", 1, 1)
        yield Fault(name, family, workload, ranks, "resumed", killed(f"step {step} +{late}"), short=short)
    family = "killed at a file operation"
    for workload, ranks, seed, random in drawn(OPERATIONS, "operation"):
        share = random.uniform(1, 99)
        name = f"seed {seed}: {share:.0f} % of the run's operations done"
        yield Fault(name, family, workload, ranks, "resumed", killed(f"operation {share:.2f}%"))
    for name, (pattern, number, how) in EXACT.items():
        rounds, short = killed(f"file {number} {pattern}", how), name in IN_THE_SUITE
        yield Fault(name, family, "resnet50", 1, "resumed", rounds, short=short)
    family = "killed in the first verification"
    for workload, ranks, seed, random in drawn(VERIFICATIONS, "verification"):
        at = f"photo {random.randint(2, 20)}" if seed % 2 else f"cache {random.randint(2, 8)}"
        short = (workload, ranks, seed) == ("resnet50", 1, 1)
        name = f"seed {seed}: before {at}"
        yield Fault(name, family, workload, ranks, "resumed", killed(at), cache="own", short=short)
    family = "killed in an evaluation"
    for workload, ranks, seed, random in drawn(EVALUATIONS, "evaluation"):
        share = random.uniform(1, 99)
        name = f"seed {seed}: {share:.0f} % of all forwards done"
        yield Fault(name, family, workload, ranks, "resumed", killed(f"batch {share:.2f}%"))
    for workload in ("resnet50", "ssd", "maskrcnn"):
        for number in (1, 2):
            name = f"in the thread that scores evaluation {number}"
            yield Fault(name, family, workload, 1, "resumed", killed(f"scoring {number}"))
    family = "one of two ranks killed"
    for rank, lost in ((0, "rank 0"), (1, "rank 1")):
        rounds = killed("step 7", "kill", rank=rank, says=(lost,))
        yield Fault(f"rank {rank}", family, "resnet50", 2, "resumed", rounds)
    yield Fault("rank 1", family, "ssd", 2, "resumed", killed("step 5", "kill", rank=1, says=("rank 1",)))


def rows_of_kills() -> Iterator[Fault]:
    """Several in a row on one folder; the report's; and across a change of the number of ranks."""
    family = "killed several times in a row"
    for workload, ranks, steps in (("resnet50", 1, (2, 4, 7, 11, 16)), ("resnet50", 2, (3, 8, 14)), ("ssd", 1, (4, 9))):
        random = Random(f"in a row {workload} {ranks}")
        rounds = tuple(killed(f"step {step} +{random.randrange(late_ms(workload, step))}")[0] for step in steps)
        yield Fault(f"{len(steps)} kills", family, workload, ranks, "resumed", rounds)
    mixed = (*killed("operation 30%"), Round("interrupted", (Strike("step 8", "ask SIGTERM"),)), *killed("step 10 +20"))
    yield Fault("a kill, a stop, a kill", family, "maskrcnn", 1, "resumed", mixed, saves=True)
    written = Round("refused", says=("is finished", "missing report has been written"), over=True)
    rounds = (*killed("file 1 open run/.*report"), written)
    yield Fault("while the report is written", "killed at a file operation", "resnet50", 1, "resumed", rounds, report=True)
    family = "another number of ranks"
    for workload, ranks, then in (("resnet50", 1, 2), ("resnet50", 2, 1), ("ssd", 1, 2), ("maskrcnn", 2, 1)):
        late = WORKLOADS[workload].steps - 2
        rounds = (Round("killed", (Strike(f"step {late}", "kill all", 0),), ranks=then),)
        name = f"killed on {ranks}, gone on and killed on {then}"
        yield Fault(name, family, workload, ranks, "resumed", rounds, begun=True, resumed_on=then)
