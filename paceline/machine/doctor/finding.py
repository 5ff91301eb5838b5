"""What an examination finds, one thing a line, and how bad it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from paceline.machine.doctor.node import NodeFacts
from paceline.machine.topology import listed

# problem: a run fails, or is slow for it. note: worth knowing. ok: as it should be.
Level = Literal["ok", "note", "problem"]
# A run of a full-size recipe keeps three checkpoints of about 0.3 GB and its logs.
LOW_DISK_GIB = 5


@dataclass(frozen=True)
class Finding:
    """One thing looked at."""

    level: Level
    about: str
    text: str


def problems(findings: Iterable[Finding]) -> int:
    """How many findings stop a run, or slow it down."""
    return sum(finding.level == "problem" for finding in findings)


# A node in words: its one line, and those of its facts that are compared as text.


UNKNOWN = "unknown"


def gpus(node: NodeFacts) -> str:
    """As "8 x NVIDIA H100 80GB HBM3 79 GiB"."""
    kinds = Counter(f"{device.name} {device.memory_gib:.0f} GiB" for device in node.devices)
    return ", ".join(f"{count} x {kind}" for kind, count in kinds.items()) or "no GPU"


def cpus(node: NodeFacts) -> str:
    """As "2 sockets, 2 NUMA nodes, 112 cores"."""
    counts = ((node.sockets, "socket"), (node.numa_nodes, "NUMA node"), (node.cores, "core"))
    return ", ".join(f"{count} {what}{'s'[: count != 1]}" for count, what in counts)


def allowed(node: NodeFacts) -> str:
    """As "224 hardware threads allowed"."""
    count = len(listed(node.allowed))
    return f"{count} hardware thread{'s'[: count != 1]} allowed"


def line(node: NodeFacts) -> str:
    """One node in one line: what it has, in the order of docs/health.md."""
    devices = [gpus(node)] if node.devices else []
    clocks = Counter(device.clock or UNKNOWN for device in node.devices)
    gpu = [
        node.links,
        f"driver {node.driver or UNKNOWN} (CUDA {node.driver_cuda or UNKNOWN}, torch's {node.torch_cuda or 'none'})",
        "clocks " + ", ".join(f"{count} x {clock}" for clock, count in clocks.items()),
        f"{min(node.teraflops):.0f} to {max(node.teraflops):.0f} TFLOP/s" if node.teraflops else "",
    ]
    parts = [
        f"{node.ranks} rank{'s'[: node.ranks != 1]}",
        *devices,
        *(gpu if node.devices else [gpus(node)]),
        cpus(node),
        f"{allowed(node)} ({_shares(node)})",
        f"{node.memory_gib:.0f} GiB memory" if node.memory_gib > 0 else f"memory {UNKNOWN}",
        f"huge pages {node.huge_pages or UNKNOWN}",
        f"/dev/shm {node.shm_gib:.1f} GiB" if node.shm_gib >= 0 else "no /dev/shm",
        f"disk {node.run_gib:.0f} GiB, temporary {node.temp_gib:.0f} GiB",
        f"network: {node.network or UNKNOWN}",
        f"clock {1000 * node.offset:+.1f} ms +-{1000 * node.offset_error:.1f}"
        if node.offset_error
        else "clock: rank 0's",
        f"torch {node.versions.get('torch', UNKNOWN)}",
    ]
    return "; ".join(part for part in parts if part)


def _shares(node: NodeFacts) -> str:
    kinds = set(node.shares)
    if len(node.shares) == 1:
        return node.shares[0]
    if len(kinds) == 1:
        return f"all ranks on {node.shares[0]}"
    return ", ".join(node.shares[:2]) + (f", ... {len(node.shares)} ranks" if len(node.shares) > 2 else "")
