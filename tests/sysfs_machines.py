"""Machines laid out as Linux's sysfs shows them, to be read in place of this one's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline.distributed.device.topology import format_cpu_list


def lay_out(
    root: Path, cores: Sequence[tuple[tuple[int, ...], int, int]], distances: Mapping[int, str] | None = None
) -> Path:
    """`root` as /sys of a machine with these cores: (hardware threads, NUMA node or -1, socket).

    distances  NUMA node -> its row of distances, "10 21"; None leaves out all that Linux says of nodes
    """
    for cpus, _, socket in cores:
        for cpu in cpus:
            write(root / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", format_cpu_list(cpus))
            write(root / f"devices/system/cpu/cpu{cpu}/topology/physical_package_id", str(socket))
    if distances is not None:
        write(root / "devices/system/node/online", format_cpu_list(distances))
        for node, row in distances.items():
            mine = [cpu for cpus, where, _ in cores if where == node for cpu in cpus]
            write(root / f"devices/system/node/node{node}/cpulist", format_cpu_list(mine))
            write(root / f"devices/system/node/node{node}/distance", row)
    return root


def even_machine(sockets: int, cores: int, threads: int = 2, nodes: int = 1) -> list[tuple[tuple[int, ...], int, int]]:
    """Cores of a machine numbered as most are: first threads of all cores, then their siblings. nodes: of a socket."""
    every = sockets * cores
    return [
        (tuple(core + turn * every for turn in range(threads)), core * nodes // cores, core // cores)
        for core in range(every)
    ]


def add_device(root: Path, address: str, above: str, node: int) -> None:
    """A PCI device below the bridges `above`: "pci0000:00/0000:00:01.1"."""
    folder = root / "devices" / above / address
    write(folder / "numa_node", str(node))
    link = root / "bus/pci/devices" / address
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(folder)


def add_adapter(
    root: Path, name: str, address: str, above: str, node: int, *, layer: str = "InfiniBand", state: str = "4: ACTIVE"
) -> None:
    """A network adapter with one port."""
    add_device(root, address, above, node)
    folder = root / "devices" / above / address / "infiniband" / name
    write(folder / "ports/1/state", state)
    write(folder / "ports/1/link_layer", layer)
    (folder / "device").symlink_to(root / "devices" / above / address)
    link = root / "class/infiniband" / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(folder)


def write(file: Path, text: str) -> None:
    """With the newline that sysfs ends everything with."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")
