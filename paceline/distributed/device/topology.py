"""A machine's cores (their hardware threads, NUMA nodes and sockets), and which of them a rank gets.

    exclusive  physical cores of its own, near its device, with all their hardware threads
    no-smt     the same cores, one hardware thread of each
    node       all cores of the NUMA node that its device is on, shared with the other ranks there
    off        whatever the process may use, as it was started

Which a rank gets is pure arithmetic over the topology, the same on every rank: W ranks on this node, local ranks 0 to W-1.
The topology is read from Linux's sysfs (its Documentation/ABI: sysfs-devices-system-cpu, sysfs-devices-node, sysfs-bus-pci). The
folder is a parameter, so that a recorded machine can be laid out elsewhere. CPUs are numbered as Linux numbers hardware threads.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline._utils.errors import RecipeError
from paceline._utils.platform import get_allowed_cpus
from paceline.config.system import Binding

SYSFS = Path("/sys")
# More hardware threads than Linux can be built for; a damaged list is not unrolled beyond.
MAX_CPUS = 1 << 13
UNKNOWN = -1


@dataclass(frozen=True)
class Core:
    """A physical core."""

    cpus: tuple[int, ...]  # its hardware threads that may be used, ascending; never empty
    node: int  # NUMA node; its socket, where the machine has none
    socket: int


@dataclass(frozen=True)
class Topology:
    """The physical cores that this process may run on, and how far NUMA nodes are from each other."""

    cores: tuple[Core, ...]  # by node, then by first hardware thread
    # (node, node, distance), as the firmware gives them; 10 is the node itself.
    distances: tuple[tuple[int, int, int], ...] = ()

    @property
    def nodes(self) -> tuple[int, ...]:
        """The NUMA nodes that have a usable core, ascending."""
        return tuple(sorted({core.node for core in self.cores}))

    @property
    def cpus(self) -> tuple[int, ...]:
        """All usable hardware threads, ascending."""
        return tuple(sorted(cpu for core in self.cores for cpu in core.cpus))

    def distance(self, one: int, other: int) -> int:
        """From NUMA node to NUMA node; where the firmware gives none, 10 of a node itself and 20 of any other."""
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
    usable = get_allowed_cpus() if allowed is None else set(allowed)
    nodes, distances = _nodes(root / "devices/system/node")
    result: dict[tuple[int, ...], Core] = {}
    for cpu in sorted(usable):
        folder = root / f"devices/system/cpu/cpu{cpu}/topology"
        siblings = tuple(sorted(usable & {cpu, *parse_cpu_list(read_text(folder / "thread_siblings_list"))}))
        package = read_text(folder / "physical_package_id")
        socket = int(package) if package.isdigit() else 0
        result[siblings] = Core(siblings, nodes.get(cpu, socket), socket)
    cores = sorted(result.values(), key=lambda core: (core.node, core.cpus))
    return Topology(tuple(cores), distances)


def topology_from_sheet(sockets: int, cores_per_socket: int, threads_per_core: int = 1) -> Topology:
    """A machine as its data sheet has it; all three numbers are above 0.

    A NUMA node a socket; hardware threads numbered as Linux usually does: first one thread of every core, then their siblings.
    """
    cores = sockets * cores_per_socket
    made = []
    for core in range(cores):
        socket = core // cores_per_socket
        made.append(Core(tuple(core + turn * cores for turn in range(threads_per_core)), socket, socket))
    return Topology(tuple(made))


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """The numbers of a list as Linux writes it: "0-3,8" is 0, 1, 2, 3, 8. What is no such list has none."""
    results: list[int] = []
    for part in text.strip().split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match is None:
            continue
        first, last = int(match[1]), int(match[2] or match[1])
        results += range(first, min(last, MAX_CPUS) + 1)
    return tuple(results)


def format_cpu_list(numbers: Iterable[int]) -> str:
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
    numbers = parse_cpu_list(read_text(folder / "online"))
    nodes = {cpu: node for node in numbers for cpu in parse_cpu_list(read_text(folder / f"node{node}/cpulist"))}
    distances: list[tuple[int, int, int]] = []
    for node in numbers:
        row = read_text(folder / f"node{node}/distance").split()
        distances += [(node, other, int(far)) for other, far in zip(numbers, row) if far.isdigit()]
    return nodes, tuple(distances)


def read_text(file: Path) -> str:
    """A file of sysfs, stripped; '' where it is missing."""
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""  # not on this machine


def select_cores(
    topology: Topology, local_rank: int, local_world: int, binding: Binding, near: Sequence[int] = ()
) -> tuple[int, ...]:
    """The hardware threads of one local rank, ascending; never none.

    topology     what all these ranks may use together
    local_world  W
    near         (W,) NUMA node of each local rank's device, UNKNOWN where none is known; () knows none
    Exclusive cores of two ranks never overlap, and all cores are given away. A rank gets cores of its device's node first; those
    of nodes without a device go to the ranks of the nearest node that has one.
    Raises RecipeError for fewer cores than ranks, where each would have its own.
    """
    if binding == "off":
        return topology.cpus
    if binding == "node":
        home = _homes(topology, local_world, near)[local_rank]
        return tuple(sorted(cpu for core in topology.cores if core.node == home for cpu in core.cpus))
    if local_world > len(topology.cores):
        raise RecipeError(
            f"--system.cpu-bind {binding}: {local_world} ranks per node need at least as many cores, and {len(topology.cores)} are "
            "available. Start fewer ranks, or share the cores with --system.cpu-bind node"
        )
    own = _dealt(topology, local_world, near)[local_rank]
    return tuple(sorted(cpu for core in own for cpu in (core.cpus[:1] if binding == "no-smt" else core.cpus)))


def count_usable_cores(
    topology: Topology, local_rank: int, local_world: int, binding: Binding, near: Sequence[int] = ()
) -> int:
    """How many of its hardware threads a rank should count on: all where they are its own, else its part of them; 1 at least."""
    mine = len(select_cores(topology, local_rank, local_world, binding, near))
    if binding == "off":
        return max(1, mine // local_world)
    if binding == "node":
        homes = _homes(topology, local_world, near)
        return max(1, mine // homes.count(homes[local_rank]))
    return mine


def count_processing_elements(topology: Topology, local_world: int) -> int:
    """n of mpirun's `--map-by socket:PE=n`: whole cores a rank, where ranks go to the sockets in turn; 1 at least.

    Published runs: 7 for 8 ranks on two sockets of 28 cores, 6 on two of 24 (Model-References, SSD and ResNet-50 on Gaudi).
    """
    sockets = [core.socket for core in topology.cores]
    ranks = -(-local_world // max(1, len(set(sockets))))
    return max(1, min((sockets.count(socket) for socket in set(sockets)), default=1) // ranks)


def _homes(topology: Topology, local_world: int, near: Sequence[int]) -> list[int]:
    """The NUMA node of each local rank: its device's; else (unknown, no usable core) one with as many cores a rank as the others."""
    cores = {node: sum(core.node == node for core in topology.cores) for node in topology.nodes}
    known = [near[rank] if rank < len(near) and near[rank] in cores else UNKNOWN for rank in range(local_world)]
    if all(home == UNKNOWN for home in known):  # in order: neighboring ranks on neighboring cores
        count = len(topology.cores)
        return [topology.cores[rank * count // local_world].node for rank in range(local_world)]
    homes = list(known)
    for rank, home in enumerate(homes):
        if home == UNKNOWN:
            homes[rank] = max(cores, key=lambda node: (cores[node] / (homes.count(node) + 1), -node))
    return homes


def _dealt(topology: Topology, local_world: int, near: Sequence[int]) -> list[list[Core]]:
    """Each rank's own cores. There are as many cores as ranks, or more."""
    if not any(node in topology.nodes for node in near):
        return _cut(topology.cores, _even(len(topology.cores), local_world))
    homes = _homes(topology, local_world, near)
    cores = {node: [core for core in topology.cores if core.node == node] for node in topology.nodes}
    for rank in reversed(range(local_world)):  # a node with more ranks than cores sends its last ones to a neighbor
        here = homes[rank]
        if homes.count(here) > len(cores[here]):
            free = [node for node in cores if homes.count(node) < len(cores[node])]
            homes[rank] = min(free, key=lambda node: (topology.distance(here, node), node))
    farther: dict[int, list[Core]] = {node: [] for node in cores if node in homes}
    for node, idle in cores.items():
        if node not in homes:
            taken = {home: (len(cores[home]) + len(farther[home])) / homes.count(home) for home in farther}
            farther[min(taken, key=lambda home: (topology.distance(home, node), taken[home], home))] += idle
    own: list[list[Core]] = [[] for _ in range(local_world)]
    for node, others in farther.items():
        ranks = [rank for rank in range(local_world) if homes[rank] == node]
        sizes = _even(len(cores[node]), len(ranks))
        for rank, part, more in zip(ranks, _cut(cores[node], sizes), _cut(others, _levelled(sizes, len(others)))):
            own[rank] = part + more
    return own


def _even(number: int, parts: int) -> list[int]:
    """Sizes of `parts` neighboring parts of `number` things; they differ by one at most."""
    return [number * (part + 1) // parts - number * part // parts for part in range(parts)]


def _levelled(sizes: Sequence[int], more: int) -> list[int]:
    """How many of `more` things each part gets, so that all are as even as can be."""
    added = [0] * len(sizes)
    for _ in range(more):
        added[min(range(len(sizes)), key=lambda part: sizes[part] + added[part])] += 1
    return added


def _cut(cores: Sequence[Core], sizes: Sequence[int]) -> list[list[Core]]:
    """Neighboring parts of these sizes."""
    parts, first = [], 0
    for size in sizes:
        parts.append(list(cores[first : first + size]))
        first += size
    return parts
