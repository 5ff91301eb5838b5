"""Facts of one node, so that nodes can be compared: plain values, sent to rank 0 as JSON.

GPUs are as nvidia-smi has them: driver, clocks, why they are held back, errors, and how GPUs are connected. Readers of its
text are pure; where the program or a field is absent, the answer is None or empty: "unknown", never a guess.
Source: nvidia-smi(1), --query-gpu and topo -m; NVML's header for the bits of nvmlClocksEventReasons.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import socket
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from paceline._utils.platform import get_allowed_cpus
from paceline._utils.text import abbreviate
from paceline.distributed.comm.launcher import Launch
from paceline.distributed.device.host_memory import read_meminfo
from paceline.distributed.device.provenance import collect_versions
from paceline.distributed.device.topology import SYSFS, format_cpu_list, parse_cpu_list, read_topology
from paceline.launch.containers.host_facts import NVIDIA_DRIVER, get_kernel_driver

ANSWER_SECONDS = 20
# Drivers before 535 know the reasons under their former name only.
REASONS_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
FIELDS = (
    "index", "name", "driver_version", "clocks.sm", "clocks.max.sm", "ecc.errors.uncorrected.volatile.total",
)  # fmt: skip
# What holds a GPU back although it has work and a cool machine would not: a run is slow for it.
SLOWED = {
    0x8: "slowed down by its hardware (heat, power, or an external brake)",
    0x20: "slowed down by its driver because of heat",
    0x40: "slowed down by its hardware because of heat",
    0x80: "slowed down by the brake of the power supply",
}
# Why else clocks are below the highest: nothing is wrong.
USUAL = {0x1: "idle", 0x2: "clocks set manually", 0x4: "at its power limit", 0x10: "synchronized", 0x100: "display"}
# A GPU's row in the matrix of topo -m; letters of its links: NV18 is NVLink, the others are PCI Express and the CPUs between.
_ROW = re.compile(r"GPU(\d+)\t(.*)")
_COLORS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Gpu:
    """One GPU as nvidia-smi sees it. None is unknown."""

    name: str
    driver: str
    sm_mhz: float | None = None
    most_sm_mhz: float | None = None
    errors: float | None = None  # uncorrected memory errors since the driver was loaded
    reasons: int | None = None  # bits of SLOWED and USUAL

    def slowed(self) -> list[str]:
        """What holds it back, in words; empty where nothing does, or it is unknown."""
        return [text for bit, text in SLOWED.items() if (self.reasons or 0) & bit]

    def usual(self) -> list[str]:
        """Other reasons for its clock, in a word each."""
        return [text for bit, text in USUAL.items() if (self.reasons or 0) & bit]


def query_gpus() -> list[Gpu]:
    """All GPUs of this machine, whichever this process may use; none where there is no nvidia-smi, or it does not answer."""
    for reasons in REASONS_FIELDS:
        text = run_query(f"--query-gpu={','.join((*FIELDS, reasons))}", "--format=csv,noheader,nounits")
        if text:
            return read_gpus(text)
    return []


def query_links() -> dict[tuple[int, int], str]:
    """How each two GPUs are connected; empty where unknown."""
    return read_links(run_query("topo", "-m"))


def run_query(*words: str, program: str = "nvidia-smi") -> str:
    """Return what `PROGRAM WORDS` prints; "" if it is missing, fails, or hangs (as nvidia-smi does if a GPU fell off its bus)."""
    try:
        done = subprocess.run([program, *words], capture_output=True, text=True, errors="replace", timeout=ANSWER_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def read_gpus(text: str) -> list[Gpu]:
    """The answer to a query of FIELDS and the reasons, as csv without header and units; lines that are none are left out."""
    results = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(FIELDS) + 1 or not cells[0].isdigit():
            continue
        reasons = int(cells[-1], 16) if re.fullmatch(r"0x[0-9a-fA-F]+", cells[-1]) else None
        results.append(Gpu(cells[1], cells[2], *map(_number, cells[3:6]), reasons=reasons))
    return results


def read_links(text: str) -> dict[tuple[int, int], str]:
    """The matrix that `topo -m` prints -> (GPU, later GPU) -> "NV18", "SYS", ...; empty where there is none."""
    rows: dict[int, list[str]] = {}
    for line in _COLORS.sub("", text).splitlines():
        match = _ROW.match(line)
        if match:
            rows[int(match[1])] = [cell.strip() for cell in match[2].split("\t")]
    numbers = sorted(rows)
    return {
        (one, other): rows[one][index]
        for one in numbers
        for index, other in enumerate(numbers)
        if other > one and index < len(rows[one]) and rows[one][index]
    }


def format_links(links: Mapping[tuple[int, int], str]) -> str:
    """As "NV18 between all", or each kind with the number of pairs: "16 x NV2, 12 x SYS"; "" without any."""
    kinds = Counter(links.values())
    if len(kinds) == 1:
        return f"{next(iter(kinds))} between all GPUs"
    return ", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items(), key=lambda item: (-item[1], item[0])))


def _number(cell: str) -> float | None:
    """A cell's number; None for [N/A], [Not Supported] and the like."""
    return float(cell) if re.fullmatch(r"-?\d+(\.\d+)?", cell) else None


# Whether the GPU driver is new enough for the CUDA that torch was built with.
#
# A driver runs programs of every older CUDA, and of its own major version's newer minor ones as far as they use nothing new.
# Source: NVIDIA, CUDA Compatibility (minor version compatibility).


LIBRARY = "libcuda.so.1"


def get_driver_cuda() -> str:
    """The newest CUDA that this machine's driver knows, as "12.4"; "" without a driver."""
    try:
        library = ctypes.CDLL(LIBRARY)
        number = ctypes.c_int(0)
        if library.cuDriverGetVersion(ctypes.byref(number)) != 0:
            return ""
    except (OSError, AttributeError):
        return ""
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


def explain_old_driver(driver: str, torch: str) -> str:
    """Why this driver may not run this torch, in a sentence; "" where it does, or a version is unknown.

    driver, torch   CUDA versions, as "12.4"
    """
    here, built = _parts(driver), _parts(torch)
    if not here or not built or here >= built:
        return ""
    if here[0] < built[0]:
        return f"the driver supports CUDA up to {driver}, and this torch needs {torch}. Update it, or use a torch for CUDA {here[0]}"
    return ""


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2]) if re.fullmatch(r"\d+\.\d+(\.\d+)*", version) else ()


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
        driver=gpus[0].driver if gpus else get_kernel_driver([NVIDIA_DRIVER]) or (get_gaudi_driver() if first else ""),
        driver_cuda=get_driver_cuda(),
        torch_cuda=torch.version.cuda or "",
        links=format_links(query_links()) if first else "",
        sockets=len({core.socket for core in machine.cores}),
        numa_nodes=len(machine.nodes),
        cores=len(machine.cores),
        threads=len(machine.cpus),
        allowed=format_cpu_list(mine),
        shares=(format_cpu_list(mine),),
        memory_gib=round(read_meminfo(proc / "meminfo").get("MemTotal", -GIB / 1024) * 1024 / GIB, 1),
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
    reserved = read_meminfo(proc / "meminfo").get("HugePages_Total")
    return ", ".join(part for part in (chosen, "" if reserved is None else f"{reserved} reserved") if part)


def _free(folder: Path) -> tuple[float, str]:
    """-> (free GiB, why nothing can be written there; "" where it can)."""
    try:
        free = round(shutil.disk_usage(folder).free / GIB, 1)
    except OSError as problem:
        return -1, f"{abbreviate(str(folder), 200)}: {problem.strerror}"
    return free, "" if os.access(folder, os.W_OK) else f"{abbreviate(str(folder), 200)} is not writable"
