"""Faults of what a run stands on: the disk, its photos, memory, threads, cores, the clock, a number that is none."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from fault import Fault, Round, Strike


def disks() -> Iterator[Fault]:
    """Full and read-only, for real and by what the system would answer."""
    family = "disk"
    small = {"resnet50": "8m", "ssd": "8m", "maskrcnn": "12m"}
    rounds = (Round("refused", says=("GiB|MiB|room|free",)), Round(damage=("mend",)))
    yield Fault("too small from the start", family, "resnet50", 1, "refused", rounds, disk="1m")
    for workload, ranks in (("resnet50", 1), ("resnet50", 2), ("ssd", 1), ("maskrcnn", 1)):
        rounds = (Round("refused", (Strike("step 5", "fill", 0),), says=("No space left",)),)
        yield Fault("full after step 5", family, workload, ranks, "resumed", rounds, disk=small[workload])
    for workload, ranks, begun in (("resnet50", 1, False), ("resnet50", 1, True), ("ssd", 2, True)):
        rounds = (Round("refused", damage=("read-only",), says=("Read-only file system",)), Round(damage=("mend",)))
        name = f"read-only {'half-way' if begun else 'from the start'}"
        yield Fault(name, family, workload, ranks, "refused", rounds, begun=begun, disk="64m")
    for workload, ranks, error, words in (
        ("resnet50", 1, "ENOSPC", "No space left"),
        ("resnet50", 1, "EROFS", "Read-only"),
        ("resnet50", 1, "EDQUOT", "quota"),
        ("resnet50", 1, "EIO", "Input/output error"),
        ("resnet50", 2, "ENOSPC", "No space left"),
        ("ssd", 1, "ENOSPC", "No space left"),
        ("ssd", 2, "EIO", "Input/output error"),
        ("maskrcnn", 1, "EDQUOT", "quota"),
        ("maskrcnn", 2, "ENOSPC", "No space left"),
    ):
        first = Random(f"disk {workload} {ranks} {error}").randint(14, 40)
        at = rf"file {first}+ (open|sync|rename|link|mkdir|symlink) run/"
        rounds = (Round("refused", (Strike(at, f"fail {error}", 0),), says=(words,)),)
        yield Fault(
            f"{error} from operation {first} on", family, workload, ranks, "resumed", rounds, short=error == "EROFS"
        )
    for workload, at in (("resnet50", "step 4"), ("maskrcnn", "start")):
        rounds = (Round("refused", (Strike(at, "limit-file 20000", 0),), says=("File too large",)),)
        yield Fault(f"ulimit -f, {at}", family, workload, 1, "resumed", rounds)


def photos() -> Iterator[Fault]:
    """Photos that change while a run reads them, and between two commands."""
    family = "photos"
    for workload, ranks, how in (
        ("resnet50", 1, "deleted"),
        ("resnet50", 1, "emptied"),
        ("resnet50", 1, "cut"),
        ("resnet50", 1, "overwritten"),
        ("resnet50", 1, "fifo"),
        ("resnet50", 1, "folder"),
        ("resnet50", 2, "deleted"),
        ("resnet50", 2, "fifo"),
        ("ssd", 1, "deleted"),
        ("ssd", 1, "fifo"),
        ("ssd", 2, "emptied"),
        ("maskrcnn", 1, "deleted"),
        ("maskrcnn", 1, "overwritten"),
        ("maskrcnn", 2, "fifo"),
    ):
        rounds = (Round("refused", (Strike("step 4", f"photos {how}", 0),), says=(r"\.jpg",)),)
        name = {"fifo": "replaced by FIFOs", "folder": "replaced by folders"}.get(how, how)
        short = (workload, ranks, how) == ("resnet50", 1, "fifo")
        yield Fault(f"{name} after step 4", family, workload, ranks, "resumed", rounds, data="own", short=short)
    for workload, how in (
        ("resnet50", "removed"),
        ("resnet50", "added"),
        ("resnet50", "changed"),
        ("ssd", "changed"),
        ("maskrcnn", "removed"),
    ):
        says = r"training images differ|\.jpg|train2017"
        rounds = (Round("refused", damage=(f"photo {how}",), says=(says,)),)
        name = f"one {how} between two commands"
        yield Fault(name, family, workload, 1, "refused", rounds, data="own", begun=True)


def machines() -> Iterator[Fault]:
    """Clock, numbers, threads, memory, cores, and a folder that somebody deletes."""
    for seconds in (86_400, -86_400):
        rounds = (Round(strikes=(Strike("step 5", f"clock {seconds}"),)),)
        name = f"a day {'ahead' if seconds > 0 else 'back'}"
        yield Fault(name, "clock jumps", "resnet50", 1, "unaffected", rounds)
        yield Fault(name, "clock jumps", "ssd" if seconds > 0 else "maskrcnn", 2, "unaffected", rounds)
    family = "a non-finite loss"
    for workload, ranks in (("resnet50", 1), ("resnet50", 2), ("ssd", 1), ("maskrcnn", 1)):
        says = ("the loss of step [0-9]+ is not finite", "The [0-9]+ images of the step are listed")
        rounds = (Round("failed", (Strike("step 8", "not-a-number", ranks - 1),), says=says, alike=True),)
        yield Fault("at step 8", family, workload, ranks, "resumed", rounds)
    family = "a loader's thread dies"
    for workload, ranks, error in (
        ("resnet50", 1, "MemoryError"),
        ("resnet50", 1, "RuntimeError"),
        ("resnet50", 1, "SystemExit"),
        ("resnet50", 2, "SystemExit"),
        ("ssd", 1, "SystemExit"),
        ("ssd", 2, "MemoryError"),
        ("maskrcnn", 1, "RuntimeError"),
        ("maskrcnn", 2, "SystemExit"),
    ):
        photo = Random(f"loader {workload} {ranks} {error}").randint(10, 24)
        says = {"MemoryError": "(?i)memory", "RuntimeError": "planted", "SystemExit": "SystemExit|loader"}[error]
        strikes = (Strike(f"photo {photo}", f"fail {error}", ranks - 1),)
        rounds = (Round("failed", strikes, says=(says,), traceback=error != "MemoryError"),)
        short = (workload, ranks, error) == ("resnet50", 1, "SystemExit")
        yield Fault(f"{error} at photo {photo}", family, workload, ranks, "resumed", rounds, short=short)
    family = "no threads, no memory"
    for workload, ranks in (("resnet50", 1), ("resnet50", 2), ("maskrcnn", 1)):
        rounds = (Round("failed", (Strike("step 4", "no-threads", ranks - 1),), says=("thread",)),)
        yield Fault("no thread can be started", family, workload, ranks, "resumed", rounds)
    for workload, ranks in (("resnet50", 1), ("ssd", 2)):
        rounds = (Round("failed", (Strike("step 4", "limit-memory 0", ranks - 1),), says=("(?i)memory|thread",)),)
        yield Fault("ulimit -v reached", family, workload, ranks, "resumed", rounds)
    for workload, ranks in (("resnet50", 1), ("resnet50", 2), ("ssd", 1)):
        rounds = (Round("refused", (Strike("step 7", "remove-run", 0),), says=("No such file|not found|deleted",)),)
        yield Fault("deleted in training", "run folder", workload, ranks, "refused", rounds)
    # Bits follow the number of compute threads, here automatic: two on the two cores that the run began with.
    family = "threads and cores at resume"
    unset = (Strike("start", "environ OMP_NUM_THREADS="),)
    for workload, ranks in (("resnet50", 1), ("ssd", 1)):
        for name, strike in (("one core is left", "cores 1"), ("OMP_NUM_THREADS=1", "environ OMP_NUM_THREADS=1")):
            rounds = (*_killed_at("step 7"), Round(strikes=(Strike("start", strike),)))
            yield Fault(name, family, workload, ranks, "resumed", rounds, automatic=True, always=unset)


def _killed_at(at: str) -> tuple[Round]:
    return (Round("killed", (Strike(at, "kill all", 0),)),)
