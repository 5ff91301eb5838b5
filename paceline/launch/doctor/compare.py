"""What is wrong with a node, and what differs between nodes, as findings and in words. Pure: facts in, findings out."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from paceline.config.system import System
from paceline.distributed.device.topology import format_cpu_list, parse_cpu_list
from paceline.launch.doctor.node import NodeFacts, explain_old_driver

# problem: a run fails, or is slow for it. note: worth knowing. ok: as it should be.
Level = Literal["ok", "note", "problem"]
# A run of a full-size recipe keeps three checkpoints of about 0.3 GB and its logs.
LOW_DISK_GIB = 5
LOW_SHM_GIB = 0.25
# A clock further off than this spoils what depends on time: file ages, logs side by side, tickets of a login service.
FAR_SECONDS, NOTED_SECONDS = 1.0, 0.1
# A device, or a node's memory, below this share of the others' or of the system's.
SLOW_SHARE, SMALL_SHARE = 0.9, 0.9
UNKNOWN = "unknown"


@dataclass(frozen=True)
class MachineFact:
    """One thing looked at."""

    level: Level
    about: str
    text: str


class NodeIssue(NamedTuple):
    """What is wrong with some nodes, by their places in the list."""

    level: Level
    nodes: tuple[int, ...]
    text: str

    def with_names(self, node_names: Sequence[str]) -> MachineFact:
        """As a line: about the first few of them by name."""
        who = [node_names[index] for index in self.nodes]
        more = f" and {len(who) - 4} more" if len(who) > 4 else ""
        return MachineFact(self.level, ", ".join(who[:4]) + more, self.text)


def count_problems(findings: Iterable[MachineFact]) -> int:
    """How many findings stop a run, or slow it down."""
    return sum(finding.level == "problem" for finding in findings)


def merge_ranks(ranks: Sequence[NodeFacts]) -> list[NodeFacts]:
    """One entry a node, from one a rank by rank: the first rank's, with what the others of its node add."""
    nodes: dict[int, list[NodeFacts]] = {}
    for facts in ranks:
        nodes.setdefault(facts.node, []).append(facts)
    return [
        replace(
            own[0],
            ranks=len(own),
            allowed=format_cpu_list({cpu for facts in own for cpu in parse_cpu_list(facts.allowed)}),
            shares=tuple(share for facts in own for share in facts.shares),
            network_trouble=tuple(dict.fromkeys(trouble for facts in own for trouble in facts.network_trouble)),
            network_warnings=tuple(dict.fromkeys(text for facts in own for text in facts.network_warnings)),
            teraflops=tuple(rate for facts in own for rate in facts.teraflops),
        )
        for _, own in sorted(nodes.items())
    ]


def name_nodes(nodes: Sequence[NodeFacts]) -> list[str]:
    """A name for each node: its host's, with the node's number where two are on one host."""
    hosts = Counter(node.host for node in nodes)
    return [node.host if hosts[node.host] == 1 else f"{node.host}/{node.node}" for node in nodes]


def examine_nodes(nodes: Sequence[NodeFacts], expected: System | None = None) -> list[NodeIssue]:
    """Everything that is wrong with a node or differs between them; empty where all are alike and healthy.

    expected   what each node should be; None: not known
    """
    own = [
        NodeIssue(level, (index,), text)
        for index, node in enumerate(nodes)
        for level, text in (*_troubles(node), *(_unexpected(node, expected) if expected else ()))
    ]
    return [*own, *_differences(nodes), *_smaller(nodes)]


def worst_level(findings: Sequence[NodeIssue], index: int) -> Level:
    """The worst level of one node."""
    own = {finding.level for finding in findings if index in finding.nodes}
    return "problem" if "problem" in own else "note" if "note" in own else "ok"


def _troubles(node: NodeFacts) -> Iterator[tuple[Level, str]]:
    """What is wrong with one node, whatever the others have."""
    if why := explain_old_driver(node.driver_cuda, node.torch_cuda):
        yield "problem", why
    if node.driver_devices > len(node.devices):
        text = (
            f"nvidia-smi lists {node.driver_devices} GPUs, but torch finds {len(node.devices)}. Check CUDA_VISIBLE_DEVICES, the "
            "device flags of the container, and Slurm's --gpus-per-task"
        )
        yield "problem", text
    if node.devices and node.ranks > len(node.devices):
        yield "problem", f"{node.ranks} ranks for {len(node.devices)} GPUs. Start fewer ranks per node"
    for index, device in enumerate(node.devices):
        for reason in device.slowed:
            yield "problem", f"GPU {index} is {reason}"
        if device.errors:
            yield "problem", f"GPU {index} has {device.errors:.0f} uncorrected memory errors. Reset or replace it"
    for trouble in node.network_trouble:
        yield "problem", trouble
    for text in node.network_warnings:
        yield "note", f"NCCL warning: {text}"
    if "sockets" in node.network and node.adapters:
        text = (
            f"{node.network}, although {', '.join(node.adapters)} is available. The NCCL plugin or its library is missing, or "
            "NCCL_IB_DISABLE, NCCL_NET, or NCCL_IB_HCA is set"
        )
        yield "problem", text
    if node.run_trouble:
        yield "problem", node.run_trouble
    elif 0 <= node.run_gib < LOW_DISK_GIB:
        yield "note", f"{node.run_gib:g} GiB free for runs: three checkpoints may not fit"
    if node.devices and node.ranks > 1 and 0 <= node.shm_gib < LOW_SHM_GIB:
        yield "problem", f"/dev/shm has {node.shm_gib:g} GiB, and NCCL needs about 0.1 GiB (docker run --shm-size=1g)"
    narrow = [share for share in node.shares if len(parse_cpu_list(share)) == 1]
    if narrow and len(parse_cpu_list(node.allowed)) < node.cores:
        text = (
            f"the launcher bound each rank to one hardware thread ({', '.join(node.shares[:4])}). Start with mpirun --bind-to none "
            "or srun --cpu-bind=none, and distribute the cores with --system.cpu-bind exclusive"
        )
        yield "problem", text
    if abs(node.offset) > NOTED_SECONDS + node.offset_error:
        far = abs(node.offset) > FAR_SECONDS + node.offset_error
        ahead = "ahead of" if node.offset > 0 else "behind"
        text = (
            f"the clock is {abs(node.offset):.3g} s {ahead} rank 0 (±{node.offset_error:.1g} s). Check that a time service "
            "is running (chrony, ntpd)"
        )
        yield "problem" if far else "note", text


def _unexpected(node: NodeFacts, system: System) -> Iterator[tuple[Level, str]]:
    """What differs from a node of this system."""
    if system.device == "cuda" and len(node.devices) < system.ranks_per_node:
        yield "problem", f"{len(node.devices)} GPUs; the system file has {system.ranks_per_node}"
    if system.sockets and 0 < node.sockets != system.sockets:
        yield "note", f"{node.sockets} sockets; the system file has {system.sockets}"
    cores = system.sockets * system.cores_per_socket
    if cores and 0 < node.cores != cores:
        yield "note", f"{node.cores} cores; the system file has {cores}"
    if cores and system.threads_per_core and 0 < node.threads != node.cores * system.threads_per_core:
        each = f"{system.threads_per_core} thread{'s'[: system.threads_per_core != 1]} per core"
        yield "note", f"{node.threads} hardware threads on {node.cores} cores; the system file has {each}"
    if system.host_memory_gib and 0 < node.memory_gib < SMALL_SHARE * system.host_memory_gib:
        yield "note", f"{node.memory_gib:.0f} GiB of memory; the system file has {system.host_memory_gib:.0f} GiB"


def _gpus(node: NodeFacts) -> str:
    """As "8 x NVIDIA H100 80GB HBM3 79 GiB"."""
    kinds = Counter(f"{device.name} {device.memory_gib:.0f} GiB" for device in node.devices)
    return ", ".join(f"{count} x {kind}" for kind, count in kinds.items()) or "no GPU"


def _cpus(node: NodeFacts) -> str:
    """As "2 sockets, 2 NUMA nodes, 112 cores"."""
    counts = ((node.sockets, "socket"), (node.numa_nodes, "NUMA node"), (node.cores, "core"))
    return ", ".join(f"{count} {what}{'s'[: count != 1]}" for count, what in counts)


def _allowed(node: NodeFacts) -> str:
    """As "224 hardware threads allowed"."""
    count = len(parse_cpu_list(node.allowed))
    return f"{count} hardware thread{'s'[: count != 1]} allowed"


# Beside software, in which training allows no difference at all.
_COMPARED: tuple[tuple[Level, str, Callable[[NodeFacts], str]], ...] = (
    ("problem", "GPUs", _gpus),
    ("note", "driver", lambda node: node.driver),
    ("problem", "links between GPUs", lambda node: node.links),
    ("problem", "processors", _cpus),
    ("problem", "binding", _allowed),
    ("problem", "ranks", lambda node: f"{node.ranks} rank{'s'[: node.ranks != 1]}"),
    ("problem", "network", lambda node: node.network),
    ("problem", "adapters", lambda node: ", ".join(node.adapters) or "none"),
    ("note", "huge pages", lambda node: node.huge_pages),
    ("note", "kernel", lambda node: node.kernel),
)


def _differences(nodes: Sequence[NodeFacts]) -> list[NodeIssue]:
    """A finding for each value that fewer nodes have than another; "" is unknown and differs from nothing.

    Training refuses other software too (training/rank_consistency.py).
    """
    compared: list[tuple[Level, str, list[str]]] = []
    for level, what, value_of in _COMPARED:
        compared.append((level, what, [value_of(node) for node in nodes]))
    for name in sorted({name for node in nodes for name in node.versions}):
        compared.append(("problem", name, [node.versions.get(name, "absent") for node in nodes]))
    results = []
    for level, what, values in compared:
        counts = Counter(value for value in values if value)
        if not counts:
            continue
        usual, number = counts.most_common(1)[0]
        for other in (value for value in counts if value != usual):
            who = tuple(index for index, value in enumerate(values) if value == other)
            results.append(NodeIssue(level, who, f"{what}: {other}; {usual} on {number} of {len(nodes)}"))
    return results


def _smaller(nodes: Sequence[NodeFacts]) -> list[NodeIssue]:
    """Nodes with less memory than the others, and devices that are slower."""
    results = []
    memory = [node.memory_gib for node in nodes if node.memory_gib > 0]
    usual = statistics.median_high(memory) if memory else 0
    rates = [rate for node in nodes for rate in node.teraflops]
    median = statistics.median_high(rates) if rates else 0
    for index, node in enumerate(nodes):
        if 0 < node.memory_gib < SMALL_SHARE * usual:
            text = f"{node.memory_gib:.0f} GiB of memory, {usual:.0f} GiB on the other nodes"
            results.append(NodeIssue("problem", (index,), text))
        for device, rate in enumerate(node.teraflops):
            if rate < SLOW_SHARE * median:
                text = f"GPU {device} computes {rate:.0f} TFLOP/s in matrix multiplication (median: {median:.0f}). Check its clocks"
                results.append(NodeIssue("problem", (index,), text))
    return results


def format_node(node: NodeFacts) -> str:
    """One node in one line: what it has, in the order of docs/how-to/cluster/check-nodes.md."""
    clocks = Counter(device.clock or UNKNOWN for device in node.devices)
    gpu = [
        _gpus(node),
        node.links,
        f"driver {node.driver or UNKNOWN} (CUDA {node.driver_cuda or UNKNOWN}, torch: CUDA {node.torch_cuda or 'none'})",
        "clocks " + ", ".join(f"{count} x {clock}" for clock, count in clocks.items()),
        f"{min(node.teraflops):.0f} to {max(node.teraflops):.0f} TFLOP/s" if node.teraflops else "",
    ]
    shares = ", ".join(node.shares[:2]) + (f", ... {len(node.shares)} ranks" if len(node.shares) > 2 else "")
    if len(node.shares) > 1 and len(set(node.shares)) == 1:
        shares = f"all ranks on {node.shares[0]}"
    off = f"{1000 * node.offset:+.1f} ms ±{1000 * node.offset_error:.1f}"
    parts = [
        f"{node.ranks} rank{'s'[: node.ranks != 1]}",
        *(gpu if node.devices else [_gpus(node)]),
        _cpus(node),
        f"{_allowed(node)} ({shares})",
        f"{node.memory_gib:.0f} GiB memory" if node.memory_gib > 0 else f"memory {UNKNOWN}",
        f"huge pages {node.huge_pages or UNKNOWN}",
        f"/dev/shm {node.shm_gib:.1f} GiB" if node.shm_gib >= 0 else "no /dev/shm",
        f"disk {node.run_gib:.0f} GiB, temporary {node.temp_gib:.0f} GiB",
        f"network: {node.network or UNKNOWN}",
        f"clock {off}" if node.offset_error else "clock: reference (rank 0)",
        f"torch {node.versions.get('torch', UNKNOWN)}",
    ]
    return "; ".join(part for part in parts if part)
