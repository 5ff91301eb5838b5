"""What this process and all processes below it take together. Linux only: it is read from /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def processes() -> Iterator[Path]:
    """The folders in /proc of this process and of all below it."""
    waiting = [Path("/proc/self").resolve()]
    while waiting:
        process = waiting.pop()
        try:
            tasks = [(task / "children").read_text().split() for task in (process / "task").iterdir()]
        except OSError:  # it ended
            continue
        yield process
        waiting += [Path("/proc") / child for children in tasks for child in children]


def cpu_seconds() -> float:
    """User and system time so far, of processes that were waited for too."""
    import resource

    reaped, ticks = resource.getrusage(resource.RUSAGE_CHILDREN), 0
    for process in list(processes())[1:]:
        with suppress(OSError):
            # After "(name)": state, parent, ...; user, system and those of its reaped children are fields 14 to 17.
            ticks += sum(map(int, (process / "stat").read_text().rpartition(")")[2].split()[11:15]))
    return time.process_time() + reaped.ru_utime + reaped.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


def voluntary_switches() -> int:
    """How often a thread gave its core up so far: it slept, or waited for a lock."""
    switches = 0
    for process in processes():
        with suppress(OSError):
            for task in (process / "task").iterdir():
                switches += int((task / "status").read_text().rpartition("nonvoluntary")[0].split()[-1])
    return switches


def memory_mib() -> float:
    """Proportional set size: memory that several processes share counts once."""
    lines: list[str] = []
    for process in processes():
        with suppress(OSError):
            lines += (process / "smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
