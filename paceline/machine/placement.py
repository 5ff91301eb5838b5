"""Which cores a rank gets: pure arithmetic over a machine's topology, the same on every rank.

    exclusive  physical cores of its own, near its device, with all their hardware threads
    no-smt     the same cores, one hardware thread of each
    node       all cores of the NUMA node that its device is on, shared with the other ranks there
    off        whatever the process may use, as it was started

Letters: W ranks on this node (machine), local ranks 0..W-1.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.config.errors import RecipeError
from paceline.config.system import Binding
from paceline.machine.topology import UNKNOWN, Core, Topology


def cores_of(
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
            f"--system.bind {binding}: {local_world} ranks of a node, and only {len(topology.cores)} cores there that they may "
            "use. Start fewer ranks, or let them share: --system.bind node"
        )
    own = _dealt(topology, local_world, near)[local_rank]
    return tuple(sorted(cpu for core in own for cpu in (core.cpus[:1] if binding == "no-smt" else core.cpus)))


def share_of(topology: Topology, local_rank: int, local_world: int, binding: Binding, near: Sequence[int] = ()) -> int:
    """How many of its hardware threads a rank should count on: all where they are its own, else its part of them; 1 at least."""
    mine = len(cores_of(topology, local_rank, local_world, binding, near))
    if binding == "off":
        return max(1, mine // local_world)
    if binding == "node":
        homes = _homes(topology, local_world, near)
        return max(1, mine // homes.count(homes[local_rank]))
    return mine


def processing_elements(topology: Topology, local_world: int) -> int:
    """n of mpirun's `--map-by socket:PE=n`: whole cores a rank, where ranks go to the sockets in turn; 1 at least.

    Published runs: 7 for 8 ranks on two sockets of 28 cores, 6 on two of 24 (Model-References, SSD and ResNet-50 on Gaudi).
    """
    sockets = [core.socket for core in topology.cores]
    ranks = -(-local_world // max(1, len(set(sockets))))
    return max(1, min((sockets.count(socket) for socket in set(sockets)), default=1) // ranks)


def _homes(topology: Topology, local_world: int, near: Sequence[int]) -> list[int]:
    """The NUMA node that each local rank belongs to: its device's; where that is not known, or has no usable core, one that
    gives the ranks as many cores as the others have."""
    cores = {node: sum(core.node == node for core in topology.cores) for node in topology.nodes}
    known = [near[rank] if rank < len(near) and near[rank] in cores else UNKNOWN for rank in range(local_world)]
    if all(home == UNKNOWN for home in known):  # in order: neighbouring ranks on neighbouring cores
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
    for rank in reversed(range(local_world)):  # a node with more ranks than cores sends its last ones to a neighbour
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
    """Sizes of `parts` neighbouring parts of `number` things; they differ by one at most."""
    return [number * (part + 1) // parts - number * part // parts for part in range(parts)]


def _levelled(sizes: Sequence[int], more: int) -> list[int]:
    """How many of `more` things each part gets, so that all are as even as can be."""
    added = [0] * len(sizes)
    for _ in range(more):
        added[min(range(len(sizes)), key=lambda part: sizes[part] + added[part])] += 1
    return added


def _cut(cores: Sequence[Core], sizes: Sequence[int]) -> list[list[Core]]:
    """Neighbouring parts of these sizes."""
    parts, first = [], 0
    for size in sizes:
        parts.append(list(cores[first : first + size]))
        first += size
    return parts
