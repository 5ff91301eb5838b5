"""Which network adapter is nearest to a rank's device: what `--system.fabric ib` and `roce` tell NCCL and UCX.

Near is judged by the PCI tree first: two devices below one switch exchange data without passing the CPU; then by NUMA node.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Literal

from paceline.machine.topology import SYSFS, UNKNOWN, node_of_device

LINK_LAYERS = {"ib": "InfiniBand", "roce": "Ethernet"}


@dataclass(frozen=True)
class PciDevice:
    """A device's place: the bridges above it from the host bridge down, itself last; empty where the machine does not say."""

    path: tuple[str, ...]
    node: int  # NUMA node, UNKNOWN where the machine does not say


@dataclass(frozen=True)
class Adapter:
    """A port of a network adapter that can do RDMA, whose link is up."""

    name: str  # as verbs call it: mlx5_0
    port: int
    place: PciDevice


def read_device(address: str, root: Path = SYSFS) -> PciDevice:
    """The place of the PCI device at an address such as "0000:07:00.0"."""
    return _place(root / "bus/pci/devices" / address, node_of_device(address, root))


def read_adapters(fabric: Literal["ib", "roce"], root: Path = SYSFS) -> tuple[Adapter, ...]:
    """The adapters of this machine for a fabric, by name: first port with an active link. Without any, none."""
    found = []
    folder = root / "class/infiniband"
    for entry in sorted(folder.iterdir() if folder.is_dir() else (), key=lambda path: (len(path.name), path.name)):
        for port in sorted((entry / "ports").glob("*"), key=lambda path: path.name):
            up = _text(port / "state").partition(":")[2].strip() == "ACTIVE"
            if port.name.isdigit() and up and _text(port / "link_layer") == LINK_LAYERS[fabric]:
                node = _text(entry / "device/numa_node")
                place = _place(entry / "device", int(node) if node.isdigit() else UNKNOWN)
                found.append(Adapter(entry.name, int(port.name), place))
                break
    return tuple(found)


def nearest_adapters(adapters: Sequence[Adapter], devices: Sequence[PciDevice]) -> tuple[Adapter, ...]:
    """For each rank's device its adapter; devices that are as near to several take them in turn.

    adapters  of one node, at least one
    devices   of the node's local ranks, in that order
    """
    chosen: list[Adapter] = []
    for device in devices:
        near = max(_nearness(device, adapter.place) for adapter in adapters)
        best = [adapter for adapter in adapters if _nearness(device, adapter.place) == near]
        chosen.append(min(best, key=lambda adapter: (chosen.count(adapter), best.index(adapter))))
    return tuple(chosen)


def adapter_variables(adapters: Sequence[Adapter], local_rank: int) -> dict[str, str]:
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
    return shared, device.node != UNKNOWN and device.node == other.node


def _place(link: Path, node: int) -> PciDevice:
    """sysfs leads from /sys/bus/pci/devices/ADDRESS to a folder below every bridge on the way: devices/pci0000:00/..."""
    parts = Path(os.path.realpath(link)).parts
    first = next((number for number, part in enumerate(parts) if part.startswith("pci") and ":" in part), len(parts))
    return PciDevice(parts[first:], node)


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""  # this machine does not say
