"""Main memory: how much this process could still take, and what the C library does with what tensors on a CPU give back.

A step allocates and frees the same gigabytes as the step before. glibc's own rule gives them back to the system, which hands them out
again page by page, each one cleared, to the one thread that asks: a sixth of ResNet-50's step (results/kept-memory).
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

MEMINFO, CGROUPS, GROUPS_OF_PROCESS = Path("/proc/meminfo"), Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
# Of glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
NEVER = -1  # is what lies free at the end of the heap given back
# As large as glibc takes it. Larger tensors come from the system and go back to it: kept, they made a full-size Mask R-CNN half as
# fast again, but its heap grew by half too, because they are of another size in every step.
LARGEST_KEPT = 32 * 2**20
# A person's own choice, which stays.
CHOSEN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_")


def read_meminfo(file: Path = MEMINFO) -> dict[str, int]:
    """Name -> its number, in KiB or a count; {} where there is no such file (not Linux)."""
    try:
        return {name: int(number) for name, number in re.findall(r"^([^:\n]+): *(\d+)", file.read_text(), re.MULTILINE)}
    except OSError:
        return {}


def get_free_memory(
    meminfo: Path = MEMINFO, cgroups: Path = CGROUPS, groups_of_process: Path = GROUPS_OF_PROCESS
) -> int | None:
    """Bytes, page cache that can be given up included; None where it is unknown (not Linux).

    meminfo, cgroups, groups_of_process  where Linux has them, for tests
    """
    memory = read_meminfo(meminfo)
    if "MemAvailable" not in memory:
        return None
    free = [memory["MemAvailable"] * 1024]
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


def set_malloc_trim_threshold(device: torch.device, environ: Mapping[str, str] = os.environ) -> bool:
    """Let this process keep what tensors on a CPU give back, for good; -> whether it does.

    Not where another device computes, where the environment says how memory is kept, and with a C library other than glibc.
    """
    chosen = any(name in environ for name in CHOSEN) or "glibc.malloc." in environ.get("GLIBC_TUNABLES", "")
    if device.type != "cpu" or chosen or not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    # The first of them alone would be worse than none: with either, the threshold no longer follows what is freed.
    return bool(library.mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT) and library.mallopt(M_TRIM_THRESHOLD, NEVER))
