"""How much main memory this process could still take: the machine's, and that of every control group it is in."""

from __future__ import annotations

from pathlib import Path

MEMINFO, CGROUPS, GROUPS_OF_PROCESS = Path("/proc/meminfo"), Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def free_memory(
    meminfo: Path = MEMINFO, cgroups: Path = CGROUPS, groups_of_process: Path = GROUPS_OF_PROCESS
) -> int | None:
    """Bytes, page cache that can be given up included; None where the operating system does not say (it is not Linux).

    meminfo, cgroups, groups_of_process  where Linux says it, for tests
    """
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        free = [int(lines["MemAvailable"].split()[0]) * 1024]
    except (OSError, KeyError, ValueError):
        return None
    try:
        named = [line.split(":", 2) for line in groups_of_process.read_text().splitlines()]
    except OSError:
        named = []
    for _, controllers, path in (parts for parts in named if len(parts) == 3):
        # Version 2 has one tree; version 1 a tree for memory. A container often sees its own group as the root.
        root = cgroups if not controllers else cgroups / "memory" if "memory" in controllers.split(",") else None
        if root is None:
            continue
        group = root / path.strip("/")
        while group != root.parent:
            left = _left_in(group)
            free += [] if left is None else [left]
            group = group.parent
    return max(0, min(free))


def _left_in(group: Path) -> int | None:
    """Bytes up to a control group's limit; None where it has none, or is not seen from here."""
    for limit_name, used_name, file_pages in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            limit, used = ((group / name).read_text().strip() for name in (limit_name, used_name))
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        if limit.isdigit() and used.isdigit():
            return int(limit) - int(used) + int(stat.get(file_pages, 0))
    return None
