"""What takes a machine's cores away from those who compute on it: other processes, a limit of the control group, the host above.

Sources: Linux, proc_pid_stat(5) and proc_stat(5); Documentation/admin-guide/cgroup-v2.rst (cpu.max, cpu.stat) and
scheduler/sched-bwc.rst (version 1: cpu.cfs_quota_us, cpu.stat).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paceline.log.pace import machine_seconds

CGROUPS, OWN, STAT = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"), Path("/proc/stat")
STOLEN = 8  # place of "steal" in the first line of /proc/stat


@dataclass(frozen=True)
class Moment:
    """Counters of a machine that only grow. Seconds, but for `throttled`."""

    wall: float
    busy: float  # CPU-seconds of all processes; -1: unknown
    stolen: float  # CPU-seconds that a host gave to others
    throttled: int  # periods in which the group had used up its share
    throttled_seconds: float


def now() -> Moment:
    """Of this machine and this process's group."""
    machine = machine_seconds()
    stolen, throttled, seconds = 0.0, 0, 0.0
    with suppress(OSError, ValueError, IndexError):  # a sandbox's has fewer words, or there is none
        stolen = int(STAT.read_text().split(maxsplit=STOLEN + 1)[STOLEN]) / os.sysconf("SC_CLK_TCK")
    for folder in groups():
        with suppress(OSError, ValueError):
            counts = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
            throttled += int(counts.get("nr_throttled", 0))
            seconds += int(counts.get("throttled_usec", 0)) / 1e6 + int(counts.get("throttled_time", 0)) / 1e9
    return Moment(time.monotonic(), machine[1] if machine else -1.0, stolen, throttled, seconds)


def between(before: Moment, after: Moment) -> dict[str, float]:
    """What came in between, as facts for JSON; `busy` is -1 where it is unknown."""
    found = {name: getattr(after, name) - getattr(before, name) for name in vars(before)}
    return {**found, "busy": found["busy"] if before.busy >= 0 else -1.0, "quota": quota()}


def groups(root: Path = CGROUPS, own: Path = OWN) -> Iterator[Path]:
    """Folders of this process's group and of those around it, the innermost first, of either version.

    A container sees its own group as the root, whatever the path says.
    """
    with suppress(OSError):
        for line in own.read_text().splitlines():
            _, names, path = line.split(":", 2)
            if names and "cpu" not in names.split(","):
                continue
            for base in [root / names, root / "cpu"] if names else [root]:
                inner = base / path.strip("/")
                if base.is_dir():
                    yield from (
                        folder for folder in (inner, *inner.parents) if folder.is_relative_to(base) and folder.is_dir()
                    )
                    break


def quota(root: Path = CGROUPS, own: Path = OWN) -> float:
    """Cores that the tightest of the groups may use at a time; 0 where none is limited."""
    least = math.inf
    for folder in groups(root, own):
        with suppress(OSError, ValueError):
            if (folder / "cpu.max").is_file():
                most, period = (folder / "cpu.max").read_text().split()
            else:
                most, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
            if most not in ("max", "-1"):
                least = min(least, int(most) / int(period))
    return 0.0 if math.isinf(least) else least
