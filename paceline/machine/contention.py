"""What takes a machine's cores away from those who compute on it: other processes, a limit of the control group, the host above.

Sources: Linux, proc_pid_stat(5) and proc_stat(5); Documentation/admin-guide/cgroup-v2.rst (cpu.max, cpu.stat) and
scheduler/sched-bwc.rst (version 1: cpu.cfs_quota_us, cpu.stat).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from paceline.machine.detect import allowed_cpus

CGROUPS, OWN, STAT = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"), Path("/proc/stat")
TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100  # a second, of /proc/stat


def now() -> dict[str, float]:
    """Counters of this process's cores and of its group that only grow, in seconds, but for `throttled`.

    wall; busy: CPU-seconds of all processes there, NaN where that is unknown; stolen: CPU-seconds that a host gave to others;
    throttled: periods in which the group had used up its share; throttled_seconds: that its processes waited for that
    """
    found = {"wall": time.monotonic(), "busy": math.nan, "stolen": 0.0, "throttled": 0, "throttled_seconds": 0.0}
    own = {f"cpu{number}" for number in allowed_cpus()}
    with suppress(OSError, ValueError):  # a sandbox's has other lines, or there is none
        lines = [line.split() for line in STAT.read_text().splitlines()]
        # user nice system idle waiting hard soft stolen; a guest's time, further on, is in the user's.
        rows = [[int(word) / TICKS for word in line[1:9]] for line in lines if line and line[0] in own]
        if rows and all(len(row) == 8 for row in rows):
            found["busy"] = sum(sum(row[:3]) + sum(row[5:7]) for row in rows)
            found["stolen"] = sum(row[7] for row in rows)
    for folder in groups():
        with suppress(OSError, ValueError):
            counts = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
            found["throttled"] += int(counts.get("nr_throttled", 0))
            found["throttled_seconds"] += int(counts.get("throttled_usec", 0)) / 1e6
            found["throttled_seconds"] += int(counts.get("throttled_time", 0)) / 1e9
    return found


def since(before: Mapping[str, float]) -> dict[str, float]:
    """What came since then, as facts for JSON, and the group's `quota`; `busy` is -1 where it is unknown."""
    found = {name: value - before[name] for name, value in now().items()}
    return {**found, "busy": -1.0 if math.isnan(found["busy"]) else found["busy"], "quota": quota()}


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
