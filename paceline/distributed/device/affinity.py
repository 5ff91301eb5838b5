"""Bind this process to its cores, and point it to the network adapter nearest its device (`--system.cpu-bind`, `--system.fabric`).

Near is judged by the PCI tree first (two devices below one switch exchange data without passing the CPU), then by NUMA node.
It is done by each process for itself, so it holds under every launcher. Where the launcher has bound ranks already (mpirun binds
two ranks to a core each, unasked), cores are dealt out among the ranks that were given the same ones. Memory needs no call of its
own: Linux takes a page from the node of the thread that first writes to it, and the threads stay on their cores.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

from paceline._utils.errors import RecipeError
from paceline._utils.platform import get_allowed_cpus
from paceline._utils.reporter import Reporter
from paceline.config.system import System
from paceline.distributed.comm.launcher import Launch
from paceline.distributed.comm.world import DistContext
from paceline.distributed.device import topology

TASKS = Path("/proc/self/task")
LINK_LAYERS = {"ib": "InfiniBand", "roce": "Ethernet"}


@dataclass(frozen=True)
class Affinity:
    """Where this rank's threads run."""

    share: int  # hardware threads that it should count on; 0 = not bound, its part of those of the process
    facts: dict[str, Any] = field(default_factory=dict)  # for run.json; empty where nothing was bound


@dataclass(frozen=True)
class PciDevice:
    """A device's place: the bridges above it from the host bridge down, itself last; empty where it is unknown."""

    path: tuple[str, ...]
    node: int  # NUMA node, UNKNOWN where it is unknown


@dataclass(frozen=True)
class NetworkAdapter:
    """A port of a network adapter that can do RDMA, whose link is up."""

    name: str  # as verbs call it: mlx5_0
    port: int
    place: PciDevice


@contextmanager
def bind_cores(
    system: System, world: DistContext, reporter: Reporter, *, root: Path = topology.SYSFS
) -> Iterator[Affinity]:
    """While this is open, all threads of this process, present and future, run on the rank's cores.

    Every rank calls it; what was bound is reported.
    Raises RecipeError where there are fewer cores than ranks, or the launcher gave ranks cores that overlap in part.
    """
    if system.cpu_bind == "off":
        yield Affinity(0)
        return
    if not hasattr(os, "sched_setaffinity"):
        raise RecipeError(f"--system.cpu-bind {system.cpu_bind}: not supported on this operating system. Set it to off.")
    before = get_allowed_cpus()
    masks = _masks_of_node(world, before)
    near = [read_device(address, root).node for address in find_device_addresses(system, world.local_world)]
    explicit = topology.read_topology(root, allowed=set().union(*masks))
    own, share = assign_cores(explicit, masks, near, system, world.local_rank)
    every = [assign_cores(explicit, masks, near, system, rank)[0] for rank in range(world.local_world)]
    bind_threads(own)
    reporter.warning(_format_binding(system, masks, every))
    facts = {
        "bind": system.cpu_bind,
        "cores": [topology.format_cpu_list(cores) for cores in every],
        "given": topology.format_cpu_list(before),
    }
    try:
        yield Affinity(share, {"cpu_binding": facts})
    finally:
        bind_threads(before)


def assign_cores(
    explicit: topology.Topology, masks: Sequence[set[int]], near: Sequence[int], system: System, local_rank: int
) -> tuple[tuple[int, ...], int]:
    """-> (hardware threads of a local rank, how many of them it should count on).

    explicit  the node's cores that any of its ranks may use
    masks  (W,) what the launcher left to each local rank
    near   (W,) NUMA nodes of their devices; may be empty
    Raises RecipeError as `bind_cores`.
    """
    mine = masks[local_rank]
    group = [rank for rank, mask in enumerate(masks) if mask == mine]
    for other, mask in enumerate(masks):
        if mask != mine and mask & mine:
            raise RecipeError(
                f"--system.cpu-bind {system.cpu_bind}: the launcher bound local rank {local_rank} to cores "
                f"{topology.format_cpu_list(mine)} and local rank {other} to cores {topology.format_cpu_list(mask)}, which overlap. "
                "Turn off its binding:  mpirun --bind-to none, or srun --cpu-bind=none"
            )
    nodes = [near[rank] for rank in group] if near else []
    location = (explicit.only(mine), group.index(local_rank), len(group), system.cpu_bind, nodes)
    return topology.select_cores(*location), topology.count_usable_cores(*location)


def bind_threads(cpus: Sequence[int] | set[int]) -> None:
    """Let every thread of this process run on these hardware threads alone; later threads are bound as the one that starts them.

    A thread that ends meanwhile is passed over.
    """
    for _ in range(2):  # a thread that was not bound yet may have started another behind the list's back
        for task in TASKS.iterdir() if TASKS.is_dir() else ():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(task.name), cpus)
    os.sched_setaffinity(0, cpus)


def find_device_addresses(system: System, local_world: int) -> list[str]:
    """PCI addresses of the node's devices, by local rank; none for a CPU, and where torch does not know them."""
    if system.device != "cuda":
        return []
    import torch

    results = []
    for rank in range(min(local_world, torch.cuda.device_count())):
        facts = torch.cuda.get_device_properties(rank)
        results.append(f"{facts.pci_domain_id:04x}:{facts.pci_bus_id:02x}:{facts.pci_device_id:02x}.0")
    return results


def choose_adapter(
    system: System, launch: Launch, environ: MutableMapping[str, str], *, root: Path = topology.SYSFS
) -> dict[str, str]:
    """Name the adapters near the devices to NCCL and UCX, before they are loaded; -> the variables that were set.

    Only with a fabric of such adapters and --system.cpu-bind other than off. A variable that is set already stays.
    """
    if system.cpu_bind == "off" or system.fabric not in ("ib", "roce"):
        return {}
    adapters = read_adapters(system.fabric, root)
    devices = [read_device(address, root) for address in find_device_addresses(system, launch.local_world)]
    if not adapters or len(devices) < launch.local_world:
        return {}
    wanted = make_adapter_variables(find_nearest_adapters(adapters, devices), launch.local_rank)
    news = {name: value for name, value in wanted.items() if name not in environ}
    environ.update(news)
    return news


def _masks_of_node(world: DistContext, mine: set[int]) -> list[set[int]]:
    """What each rank of this node may run on, by local rank. It differs where the launcher binds ranks."""
    if world.local_world == 1:
        return [mine]
    here = f"cores of {get_node_name()}"
    world.post(f"{here}/{world.local_rank}", json.dumps(sorted(mine)))
    return [set(json.loads(world.wait_for(f"{here}/{rank}"))) for rank in range(world.local_world)]


def get_node_name() -> str:
    """A name that ranks on one machine share and others do not; Slurm may run several of its nodes on one machine."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    slurm = os.environ.get("SLURMD_NODENAME", "")
    return f"{platform.node()} {boot.read_text().strip() if boot.is_file() else ''} {slurm}".rstrip()


def _format_binding(system: System, masks: Sequence[set[int]], every: Sequence[Sequence[int]]) -> str:
    ranks = ", ".join(f"rank {rank} on {topology.format_cpu_list(cores)}" for rank, cores in enumerate(every[:2]))
    more = f", and {len(every) - 2} more" if len(every) > 2 else ""
    launcher = "; limited to the cores from the launcher" if len({frozenset(mask) for mask in masks}) > 1 else ""
    return f"CPU binding ({system.cpu_bind}): {ranks}{more}{launcher}"


def read_device(address: str, root: Path = topology.SYSFS) -> PciDevice:
    """The place of the PCI device at an address such as "0000:07:00.0"."""
    return _place(root / "bus/pci/devices" / address)


def read_adapters(fabric: Literal["ib", "roce"], root: Path = topology.SYSFS) -> tuple[NetworkAdapter, ...]:
    """The adapters of this machine for a fabric, by name: first port with an active link. Without any, none."""
    results = []
    folder = root / "class/infiniband"
    for entry in sorted(folder.iterdir() if folder.is_dir() else (), key=lambda path: (len(path.name), path.name)):
        for port in sorted((entry / "ports").glob("*"), key=lambda path: path.name):
            up = topology.read_text(port / "state").partition(":")[2].strip() == "ACTIVE"
            if port.name.isdigit() and up and topology.read_text(port / "link_layer") == LINK_LAYERS[fabric]:
                results.append(NetworkAdapter(entry.name, int(port.name), _place(entry / "device")))
                break
    return tuple(results)


def find_nearest_adapters(adapters: Sequence[NetworkAdapter], devices: Sequence[PciDevice]) -> tuple[NetworkAdapter, ...]:
    """For each rank's device its adapter; devices that are as near to several take them in turn.

    adapters  of one node, at least one
    devices   of the node's local ranks, in that order
    """
    chosen: list[NetworkAdapter] = []
    for device in devices:
        near = max(_nearness(device, adapter.place) for adapter in adapters)
        best = [adapter for adapter in adapters if _nearness(device, adapter.place) == near]
        chosen.append(min(best, key=lambda adapter: (chosen.count(adapter), best.index(adapter))))
    return tuple(chosen)


def make_adapter_variables(adapters: Sequence[NetworkAdapter], local_rank: int) -> dict[str, str]:
    """Environment variables of one rank: NCCL's for all adapters that the node's ranks use, UCX's for the rank's own alone.

    adapters  of all local ranks, as nearest_adapters returns them
    NCCL chooses the nearest for each device itself, and must see the same list on all ranks of a node; it is kept from the others,
    which often lead to storage. "=" asks for the very names: else mlx5_1 means mlx5_10 too (NCCL's documentation, NCCL_IB_HCA).
    """
    names = sorted({(len(adapter.name), adapter.name, adapter.port) for adapter in adapters})
    own = adapters[local_rank]
    return {
        "NCCL_IB_HCA": "=" + ",".join(f"{name}:{port}" for _, name, port in names),
        "UCX_NET_DEVICES": f"{own.name}:{own.port}",
    }


def _nearness(device: PciDevice, other: PciDevice) -> tuple[int, bool]:
    """Bridges that both lie below, then whether they are on one NUMA node."""
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(device.path, other.path)))
    return shared, device.node != topology.UNKNOWN and device.node == other.node


def _place(link: Path) -> PciDevice:
    """sysfs leads from /sys/bus/pci/devices/ADDRESS to a folder below every bridge on the way: devices/pci0000:00/..."""
    parts = Path(os.path.realpath(link)).parts
    first = next((number for number, part in enumerate(parts) if part.startswith("pci") and ":" in part), len(parts))
    node = topology.read_text(link / "numa_node")
    return PciDevice(parts[first:], int(node) if node.isdigit() else topology.UNKNOWN)
