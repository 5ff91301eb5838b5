"""Facts of one node, so that nodes can be compared: plain values, sent to rank 0 as JSON."""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from paceline._utils.platform import get_allowed_cpus
from paceline._utils.text import abbreviate
from paceline.distributed.comm.launcher import Launch
from paceline.distributed.device.provenance import collect_versions
from paceline.distributed.device.topology import SYSFS, format_cpu_list, parse_cpu_list, read_topology
from paceline.launch.doctor.nvidia import (
    Gpu,
    format_links,
    get_driver_cuda,
    get_driver_version,
    query_gpus,
    query_links,
    run_query,
)

GIB = 2**30
PROC = Path("/proc")
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Device:
    """One GPU, as torch sees it and nvidia-smi knows it."""

    name: str
    memory_gib: float
    clock: str = ""  # MHz now and at most, and why, in words; "" is unknown
    slowed: tuple[str, ...] = ()  # what holds it back
    errors: float = 0  # uncorrected memory errors


@dataclass(frozen=True)
class NodeFacts:
    """One node. Sizes are GiB; "" and -1 are unknown."""

    node: int
    host: str
    ranks: int
    versions: Mapping[str, str]
    kernel: str = ""
    devices: tuple[Device, ...] = ()
    driver_devices: int = -1  # GPUs that nvidia-smi lists
    driver: str = ""
    driver_cuda: str = ""
    torch_cuda: str = ""
    links: str = ""
    sockets: int = -1
    numa_nodes: int = -1
    cores: int = -1
    threads: int = -1  # hardware threads of all cores
    allowed: str = ""  # hardware threads that any of its ranks may use
    shares: tuple[str, ...] = ()  # those of each rank
    memory_gib: float = -1
    huge_pages: str = ""
    shm_gib: float = -1  # free; -1: there is none
    run_gib: float = -1  # free where runs go
    run_trouble: str = ""  # why no run can be there
    temp_gib: float = -1
    adapters: tuple[str, ...] = ()  # that can do RDMA
    offset: float = 0.0  # seconds that its clock is ahead of rank 0's
    offset_error: float = 0.0
    network: str = ""  # what carries messages between ranks, in words
    network_trouble: tuple[str, ...] = ()
    network_warnings: tuple[str, ...] = ()  # NCCL's own
    teraflops: tuple[float, ...] = ()  # of each rank's device in a large matrix product; empty without devices


def collect_node_facts(launch: Launch, folder: Path, *, root: Path = SYSFS, proc: Path = PROC) -> NodeFacts:
    """This process's node; what ranks do together (clocks, network) is added later.

    folder   where runs go
    """
    import torch

    mine = get_allowed_cpus()
    online = root / "devices/system/cpu/online"
    every = set(parse_cpu_list(online.read_text())) if online.is_file() else set(range(os.cpu_count() or 1))
    machine = read_topology(root, allowed=every or mine)
    first = launch.local_rank == 0  # one process of a node asks nvidia-smi, which takes a second
    gpus = query_gpus() if first else []
    run_gib, trouble = _free(folder)
    return NodeFacts(
        node=launch.node,
        host=socket.gethostname(),
        ranks=launch.local_world,
        versions=collect_versions(),
        kernel=platform.release(),
        devices=list_devices(gpus),
        driver_devices=len(gpus) if gpus else -1,
        driver=gpus[0].driver if gpus else get_driver_version() or (get_gaudi_driver() if first else ""),
        driver_cuda=get_driver_cuda(),
        torch_cuda=torch.version.cuda or "",
        links=format_links(query_links()) if first else "",
        sockets=len({core.socket for core in machine.cores}),
        numa_nodes=len(machine.nodes),
        cores=len(machine.cores),
        threads=len(machine.cpus),
        allowed=format_cpu_list(mine),
        shares=(format_cpu_list(mine),),
        memory_gib=round(_meminfo(proc).get("MemTotal", -GIB / 1024) * 1024 / GIB, 1),
        huge_pages=_huge_pages(root, proc),
        shm_gib=_free(SHARED_MEMORY)[0],
        run_gib=run_gib,
        run_trouble=trouble,
        temp_gib=_free(Path(tempfile.gettempdir()))[0],
        adapters=tuple(sorted(path.name for path in (root / "class/infiniband").glob("*"))),
    )


def get_gaudi_driver() -> str:
    """Versions of the driver and of SynapseAI, from the head of hl-smi's table; "" if hl-smi does not print them.

    References:
        docs.habana.ai, System Management Interface Tool (hl-smi). The release of SynapseAI is part of HL-SMI's own version.
    """
    result = re.search(r"HL-SMI Version: +hl-([\w.-]+?)-fw.*\n\| Driver Version: +(\S+)", run_query(program="hl-smi"))
    return f"{result[2]}, SynapseAI {result[1]}" if result else ""


def node_from_json(facts: Mapping[str, Any]) -> NodeFacts:
    """The facts that another rank sent, as `asdict` made them; what another version of paceline knows beside is left out."""
    devices = tuple(Device(**known_fields(Device, device)) for device in facts["devices"])
    return NodeFacts(**{**known_fields(NodeFacts, facts), "devices": devices})


def known_fields(kind: Any, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a dataclass's fields, from JSON; lists are tuples again."""
    named = {entry.name: facts[entry.name] for entry in fields(kind) if entry.name in facts}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in named.items()}


def list_devices(gpus: Sequence[Gpu]) -> tuple[Device, ...]:
    """torch's devices, with nvidia-smi's facts about them: it lists all of the machine, so only where the numbers are the same."""
    import torch

    if not torch.cuda.is_available():
        return ()
    count = torch.cuda.device_count()
    known: Sequence[Gpu | None] = gpus if len(gpus) == count else [None] * count
    results = []
    for index, gpu in enumerate(known):
        facts = torch.cuda.get_device_properties(index)
        device = Device(facts.name, round(facts.total_memory / GIB, 1))
        if gpu is not None:
            now = f"{gpu.sm_mhz:.0f} of {gpu.most_sm_mhz:.0f} MHz" if gpu.sm_mhz and gpu.most_sm_mhz else ""
            why = ", ".join(gpu.usual())
            clock = f"{now} ({why})" if now and why else now
            device = replace(device, clock=clock, slowed=tuple(gpu.slowed()), errors=gpu.errors or 0)
        results.append(device)
    return tuple(results)


def _huge_pages(root: Path, proc: Path) -> str:
    """Linux's way with huge pages: "madvise, 0 reserved"; "" where there is none."""
    switch = root / "kernel/mm/transparent_hugepage/enabled"
    text = switch.read_text() if switch.is_file() else ""
    chosen = text.partition("[")[2].partition("]")[0]
    reserved = _meminfo(proc).get("HugePages_Total")
    return ", ".join(part for part in (chosen, "" if reserved is None else f"{reserved} reserved") if part)


def _meminfo(proc: Path) -> dict[str, int]:
    file = proc / "meminfo"
    result = {}
    for line in file.read_text().splitlines() if file.is_file() else ():
        name, _, rest = line.partition(":")
        number = rest.split()[:1]
        if number and number[0].isdigit():
            result[name] = int(number[0])
    return result


def _free(folder: Path) -> tuple[float, str]:
    """-> (free GiB, why nothing can be written there; "" where it can)."""
    try:
        free = round(shutil.disk_usage(folder).free / GIB, 1)
    except OSError as problem:
        return -1, f"{abbreviate(str(folder), 200)}: {problem.strerror}"
    return free, "" if os.access(folder, os.W_OK) else f"{abbreviate(str(folder), 200)} cannot be written"
