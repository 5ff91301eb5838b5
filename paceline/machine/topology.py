"""What a machine's cores are: which hardware threads share one, on which NUMA node and socket it lies, and which are allowed here.

Read from Linux's sysfs (its Documentation/ABI: sysfs-devices-system-cpu, sysfs-devices-node, sysfs-bus-pci). The folder is a
parameter, so that a recorded machine can be laid out elsewhere. CPUs are numbered as Linux numbers hardware threads.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from paceline.machine.detect import allowed_cpus

SYSFS = Path("/sys")
# More hardware threads than Linux can be built for; a damaged list is not unrolled beyond.
MOST_CPUS = 1 << 13
UNKNOWN = -1


@dataclass(frozen=True)
class Core:
    """A physical core."""

    cpus: tuple[int, ...]  # its hardware threads that may be used, ascending; never empty
    node: int  # NUMA node; its socket, where the machine tells no nodes
    socket: int


@dataclass(frozen=True)
class Topology:
    """The physical cores that this process may run on, and how far NUMA nodes are from each other."""

    cores: tuple[Core, ...]  # by node, then by first hardware thread
    distances: tuple[
        tuple[int, int, int], ...
    ] = ()  # (node, node, distance), as the firmware tells; 10 is the node itself

    @property
    def nodes(self) -> tuple[int, ...]:
        """The NUMA nodes that have a usable core, ascending."""
        return tuple(sorted({core.node for core in self.cores}))

    @property
    def cpus(self) -> tuple[int, ...]:
        """All usable hardware threads, ascending."""
        return tuple(sorted(cpu for core in self.cores for cpu in core.cpus))

    def distance(self, one: int, other: int) -> int:
        """From NUMA node to NUMA node; where the firmware says nothing, 10 of a node itself and 20 of any other."""
        table = {(here, there): far for here, there, far in self.distances}
        return table.get((one, other), 10 if one == other else 20)

    def only(self, cpus: Collection[int]) -> Topology:
        """The same machine with these hardware threads alone."""
        allowed = set(cpus)
        left = (Core(tuple(cpu for cpu in core.cpus if cpu in allowed), core.node, core.socket) for core in self.cores)
        return Topology(tuple(core for core in left if core.cpus), self.distances)


def read_topology(root: Path = SYSFS, *, allowed: Collection[int] | None = None) -> Topology:
    """The machine that `root` describes, as far as `allowed` goes.

    allowed  hardware threads; None: those of this process (affinity, and with it the control group's cpuset)
    Where there is no sysfs, each allowed hardware thread counts as a core of one node.
    """
    usable = allowed_cpus() if allowed is None else set(allowed)
    nodes, distances = _nodes(root / "devices/system/node")
    found: dict[tuple[int, ...], Core] = {}
    for cpu in sorted(usable):
        folder = root / f"devices/system/cpu/cpu{cpu}/topology"
        siblings = tuple(sorted(usable & {cpu, *listed(_text(folder / "thread_siblings_list"))}))
        socket = _number(folder / "physical_package_id", 0)
        found[siblings] = Core(siblings, nodes.get(cpu, socket), socket)
    cores = sorted(found.values(), key=lambda core: (core.node, core.cpus))
    return Topology(tuple(cores), distances)


def described(sockets: int, cores_per_socket: int, threads_per_core: int = 1) -> Topology:
    """A machine as its data sheet has it: a NUMA node a socket, hardware threads numbered as Linux usually does (first one
    thread of every core, then their siblings). All three numbers are above 0."""
    cores = sockets * cores_per_socket
    made = [
        Core(tuple(core + turn * cores for turn in range(threads_per_core)), *(2 * (core // cores_per_socket,)))
        for core in range(cores)
    ]
    return Topology(tuple(made))


def node_of_device(address: str, root: Path = SYSFS) -> int:
    """The NUMA node of a PCI device ("0000:07:00.0"); UNKNOWN where the machine does not say."""
    return _number(root / "bus/pci/devices" / address / "numa_node", UNKNOWN)


def listed(text: str) -> tuple[int, ...]:
    """The numbers of a list as Linux writes it: "0-3,8" is 0, 1, 2, 3, 8. What is no such list has none."""
    found: list[int] = []
    for part in text.strip().split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match is None:
            continue
        first, last = int(match[1]), int(match[2] or match[1])
        found += range(first, min(last, MOST_CPUS) + 1)
    return tuple(found)


def spelled(numbers: Iterable[int]) -> str:
    """The same list as text: 0, 1, 2, 3, 8 is "0-3,8"."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _nodes(folder: Path) -> tuple[dict[int, int], tuple[tuple[int, int, int], ...]]:
    """-> (hardware thread -> its NUMA node, distances); both empty where the kernel knows no nodes."""
    # The file `online` is there in every kernel with NUMA, also where only one node is.
    numbers = listed(_text(folder / "online"))
    nodes = {cpu: node for node in numbers for cpu in listed(_text(folder / f"node{node}/cpulist"))}
    distances: list[tuple[int, int, int]] = []
    for node in numbers:
        row = _text(folder / f"node{node}/distance").split()
        distances += [(node, other, int(far)) for other, far in zip(numbers, row) if far.isdigit()]
    return nodes, tuple(distances)


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""  # this machine does not say


def _number(file: Path, otherwise: int) -> int:
    text = _text(file).strip()
    return int(text) if text.isdigit() else otherwise
