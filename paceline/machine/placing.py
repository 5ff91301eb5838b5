"""Binding this process to its cores, and pointing it to its network adapter (`--system.bind`, `--system.fabric`).

It is done by each process for itself, so it holds under every launcher. Where the launcher has bound ranks already (mpirun binds
two ranks to a core each, unasked), cores are dealt out among the ranks that were given the same ones. Memory needs no call of its
own: Linux takes a page from the node of the thread that first writes to it, and the threads stay on their cores.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.config.errors import RecipeError
from paceline.config.system import System
from paceline.machine.adapters import adapter_variables, nearest_adapters, read_adapters, read_device
from paceline.machine.detect import allowed_cpus
from paceline.machine.placement import cores_of, share_of
from paceline.machine.topology import SYSFS, Topology, read_topology, spelled
from paceline.ranks.launcher import Launch
from paceline.ranks.world import World

TASKS = Path("/proc/self/task")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Placed:
    """Where this rank's threads run."""

    share: int  # hardware threads that it should count on; 0 = not bound, its part of those of the process
    facts: dict[str, Any] = field(default_factory=dict)  # for run.json; empty where nothing was bound


@contextmanager
def bound(system: System, world: World, say: Say, *, root: Path = SYSFS) -> Iterator[Placed]:
    """While this is open, all threads of this process, those that are there and those to come, run on the rank's cores.

    Every rank calls it. Says in a line what was bound.
    Raises RecipeError where there are fewer cores than ranks, or the launcher gave ranks cores that overlap in part.
    """
    if system.bind == "off":
        yield Placed(0)
        return
    if not hasattr(os, "sched_setaffinity"):
        raise RecipeError(
            f"--system.bind {system.bind}: this operating system binds no process to cores; leave it off."
        )
    before = allowed_cpus()
    masks = _masks_of_node(world, before)
    near = [read_device(address, root).node for address in device_addresses(system, world.local_world)]
    given = read_topology(root, allowed=set().union(*masks))
    own, share = deal(given, masks, near, system, world.local_rank)
    every = [deal(given, masks, near, system, rank)[0] for rank in range(world.local_world)]
    bind_threads(own)
    say(_in_words(system, masks, every))
    facts = {"bind": system.bind, "cores": [spelled(cores) for cores in every], "given": spelled(before)}
    try:
        yield Placed(share, {"placement": facts})
    finally:
        bind_threads(before)


def deal(
    given: Topology, masks: Sequence[set[int]], near: Sequence[int], system: System, local_rank: int
) -> tuple[tuple[int, ...], int]:
    """-> (hardware threads of a local rank, how many of them it should count on).

    given  the node's cores that any of its ranks may use
    masks  (W,) what the launcher left to each local rank
    near   (W,) NUMA nodes of their devices; may be empty
    Raises RecipeError as `bound`.
    """
    mine = masks[local_rank]
    group = [rank for rank, mask in enumerate(masks) if mask == mine]
    for other, mask in enumerate(masks):
        if mask != mine and mask & mine:
            raise RecipeError(
                f"--system.bind {system.bind}: the launcher gave local rank {local_rank} cores {spelled(mine)} and local rank "
                f"{other} cores {spelled(mask)}, which overlap. Let it bind nothing: mpirun --bind-to none, srun --cpu-bind=none"
            )
    nodes = [near[rank] for rank in group] if near else []
    place = (given.only(mine), group.index(local_rank), len(group), system.bind, nodes)
    return cores_of(*place), share_of(*place)


def bind_threads(cpus: Sequence[int] | set[int]) -> None:
    """Let every thread of this process run on these hardware threads alone; threads to come are bound as the one that starts
    them. One that ends meanwhile is passed over."""
    for _ in range(2):  # a thread that was not bound yet may have started another behind the list's back
        for task in TASKS.iterdir() if TASKS.is_dir() else ():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(task.name), cpus)
    os.sched_setaffinity(0, cpus)


def device_addresses(system: System, local_world: int) -> list[str]:
    """PCI addresses of the node's devices, by local rank; none for a CPU, and where torch does not know them."""
    if system.accelerator != "cuda":
        return []
    import torch

    found = []
    for rank in range(min(local_world, torch.cuda.device_count())):
        facts = torch.cuda.get_device_properties(rank)
        found.append(f"{facts.pci_domain_id:04x}:{facts.pci_bus_id:02x}:{facts.pci_device_id:02x}.0")
    return found


def choose_adapter(
    system: System, launch: Launch, environ: MutableMapping[str, str], *, root: Path = SYSFS
) -> dict[str, str]:
    """Name the adapters near the devices to NCCL and UCX, before they are loaded; -> the variables that were set.

    Only with a fabric of such adapters and --system.bind other than off. A variable that is set already stays.
    """
    if system.bind == "off" or system.fabric not in ("ib", "roce"):
        return {}
    adapters = read_adapters(system.fabric, root)
    devices = [read_device(address, root) for address in device_addresses(system, launch.local_world)]
    if not adapters or len(devices) < launch.local_world:
        return {}
    wanted = adapter_variables(nearest_adapters(adapters, devices), launch.local_rank)
    news = {name: value for name, value in wanted.items() if name not in environ}
    environ.update(news)
    return news


def _masks_of_node(world: World, mine: set[int]) -> list[set[int]]:
    """What each rank of this node may run on, by local rank. It differs where the launcher binds ranks."""
    if world.local_world == 1:
        return [mine]
    here = f"cores of {node_name()}"
    world.post(f"{here}/{world.local_rank}", json.dumps(sorted(mine)))
    return [set(json.loads(world.wait_for(f"{here}/{rank}"))) for rank in range(world.local_world)]


def node_name() -> str:
    """A name that ranks on one machine share and others do not; Slurm may run several of its nodes on one machine."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    slurm = os.environ.get("SLURMD_NODENAME", "")
    return f"{platform.node()} {boot.read_text().strip() if boot.is_file() else ''} {slurm}".rstrip()


def _in_words(system: System, masks: Sequence[set[int]], every: Sequence[Sequence[int]]) -> str:
    ranks = ", ".join(f"rank {rank} on {spelled(cores)}" for rank, cores in enumerate(every[:2]))
    more = f", and {len(every) - 2} more" if len(every) > 2 else ""
    launcher = "; within what the launcher gave each" if len({frozenset(mask) for mask in masks}) > 1 else ""
    return f"cores ({system.bind}): {ranks}{more}{launcher}"
