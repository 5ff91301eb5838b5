"""The examination that all ranks of a job make together: each looks at its node, they time their clocks and exchange a sum.

Ranks meet over gloo, whatever devices they have: a node whose GPUs are gone can still report it. NCCL comes second, where every
rank has a device of its own, with its log kept in a file that is read and thrown away.
Left alone, NCCL takes the fastest network that it finds, and falls to sockets without an error where a plugin or a library is
missing: the run works, at a tenth of the speed. Only its log (NCCL_DEBUG=INFO) shows it.
Source: NCCL's user guide, environment variables NCCL_DEBUG, NCCL_DEBUG_FILE; aws-ofi-nccl's README for EFA's lines.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from paceline._utils.errors import PacelineError
from paceline._utils.text import abbreviate
from paceline.distributed.comm.interfaces import find_interface_towards, list_interfaces
from paceline.distributed.comm.launcher import Launch
from paceline.distributed.comm.world import DistContext, all_min, broadcast_from_main, open_distributed
from paceline.launch.doctor.compare import merge_ranks
from paceline.launch.doctor.measure import estimate_clock_offset
from paceline.launch.doctor.node import NodeFacts, collect_node_facts, list_devices, node_from_json, query_gpus

NUMBERS = 1 << 20  # of the sum that is exchanged
NCCL_SECONDS = 120
# A product large enough to bring a device to its working clock, and long enough to be timed.
SIDE, PRODUCTS = 8192, 40
BUSY_SECONDS = 3  # longer than nvidia-smi takes to answer
TRIPS = 16  # between two clocks
# "Using network" up to NCCL 2.26, "Assigned NET plugin" from 2.27 on.
_CHOSEN = re.compile(r"NCCL INFO (?:Using network (.+?)|Assigned NET plugin (.+?) to comm\b.*)\s*$", re.MULTILINE)
_PORTS = re.compile(r"NCCL INFO NET/IB : Using (.*?)(?:;|$)", re.MULTILINE)
_PORT = re.compile(r"\[\d+\]([\w.-]+):\d+/(IB|RoCE)")
_PROVIDER = re.compile(r"NCCL INFO NET/OFI Selected [Pp]rovider is ([\w;+-]+)")
_SOCKETS = re.compile(r"NCCL INFO NET/Socket : Using (.*)$", re.MULTILINE)
_BOOTSTRAP = re.compile(r"NCCL INFO Bootstrap\s*:\s*Using (.*)$", re.MULTILINE)
_INTERFACE = re.compile(r"(?:\[\d+\])?([\w.-]+):")
_WARNING = re.compile(r"NCCL WARN (.*)$", re.MULTILINE)
_CHANNEL = re.compile(r"NCCL INFO Channel .*? via (\w+)(/[^\s]*)?")
MAX_WARNINGS, LONGEST_WARNING = 3, 200


def examine_together(launch: Launch, folder: Path) -> list[NodeFacts] | None:
    """Every node's facts on rank 0; None on the others. All ranks of the job call it.

    folder   where runs go
    Raises RankError for ranks that never came.
    """
    nearest = next((path for path in (folder, *folder.parents) if path.is_dir()), None)
    if nearest is None:
        raise PacelineError(f"--check-dir {folder}: folder not found.")
    with open_distributed(launch, device=torch.device("cpu"), secret_folder=nearest) as world:
        facts = collect_node_facts(launch, folder)
        askers = [rank for rank in _first_ranks(world, launch) if rank]
        ahead, error = _own_offset(world, askers)
        facts = replace(facts, offset=ahead, offset_error=error)
        facts = _exchange(world, launch, facts)
        facts = _same_folder(world, launch, folder, facts)
        gathered = world.gather_bytes(json.dumps(asdict(facts)).encode())
        return None if gathered is None else merge_ranks([node_from_json(json.loads(one)) for one in gathered])


def _first_ranks(world: DistContext, launch: Launch) -> list[int]:
    """The first rank of every node, on every rank."""
    own = world.gather_bytes(str(launch.node).encode())
    firsts: dict[int, int] = {}
    for rank, node in enumerate(own or ()):
        firsts.setdefault(int(node), rank)
    return json.loads(broadcast_from_main(world, json.dumps(list(firsts.values())) if own else None, "doctor/first ranks"))


def _own_offset(world: DistContext, askers: Sequence[int]) -> tuple[float, float]:
    """This rank's clock against rank 0's, as `estimate_clock_offset`; (0, 0) on rank 0 and on ranks that do not ask. All ranks call
    it.

    askers  ranks that ask, one of each node, without rank 0; they take turns, so that no answer waits behind another's
    """
    time_of_other = torch.zeros(1, dtype=torch.float64)
    if world.rank == 0:
        for asker in askers:
            for _ in range(TRIPS):
                dist.recv(time_of_other, asker, group=world.control)
                dist.send(torch.tensor([time.time()], dtype=torch.float64), asker, group=world.control)
        return 0.0, 0.0
    if world.rank not in askers:
        return 0.0, 0.0
    trips = []
    for _ in range(TRIPS):
        requested = time.time()
        dist.send(torch.tensor([requested], dtype=torch.float64), 0, group=world.control)
        dist.recv(time_of_other, 0, group=world.control)
        trips.append((requested, float(time_of_other), time.time()))
    return estimate_clock_offset(trips)


def _exchange(world: DistContext, launch: Launch, facts: NodeFacts) -> NodeFacts:
    """Sum over gloo, and over NCCL where every rank has a device; -> the facts with what carried it."""
    troubles = () if _sums(world, None, torch.device("cpu")) else ("a sum over gloo was wrong",)
    facts = replace(facts, network=_gloo(launch), network_trouble=troubles)
    if not all_min(world, int(len(facts.devices) >= launch.local_world)):
        return facts
    device = torch.device("cuda", launch.local_rank)
    with _nccl_log() as log:
        try:
            torch.cuda.set_device(device)
            group = dist.new_group(backend="nccl", timeout=timedelta(seconds=NCCL_SECONDS))
            assert isinstance(group, dist.ProcessGroup)
            right, failed = _sums(world, group, device), ""
            facts = _at_work(world, launch, facts, device)
        except RuntimeError as problem:  # of CUDA, or of NCCL after NCCL_SECONDS
            right, failed = False, abbreviate(str(problem).splitlines()[0], 200)
        chosen = parse_nccl_log(log.read_text(errors="replace") if log.is_file() else "")
    if not right:
        text = f"NCCL failed on GPU {launch.local_rank}: {failed}" if failed else "a sum over NCCL was wrong"
        troubles = (*troubles, text)
    network = chosen.format_line(launch.nodes)
    return replace(facts, network=network, network_trouble=troubles, network_warnings=chosen.warnings)


def _at_work(world: DistContext, launch: Launch, facts: NodeFacts, device: torch.device) -> NodeFacts:
    """The facts with this device's speed, and on a node's first rank the clocks of devices that have work."""
    rate = measure_teraflops(device)
    world.barrier()  # all devices of a node are at work when its first rank asks
    matrix = torch.randn(SIDE, SIDE, device=device, dtype=torch.float16)
    for _ in range(int(BUSY_SECONDS * rate * 1e12 / (2 * SIDE**3))):
        torch.mm(matrix, matrix)  # nobody waits for them
    devices = facts.devices if launch.local_rank else list_devices(query_gpus())
    torch.cuda.synchronize(device)
    return replace(facts, devices=devices, teraflops=(rate,))


def _sums(world: DistContext, group: dist.ProcessGroup | None, device: torch.device) -> bool:
    """Whether a sum over all ranks is right."""
    numbers = torch.full((NUMBERS,), float(world.rank + 1), device=device)
    dist.all_reduce(numbers, group=group)
    return bool((numbers == world.world * (world.world + 1) / 2).all())


def _gloo(launch: Launch) -> str:
    if launch.nodes == 1:
        return "gloo within the host"
    name = os.environ.get("GLOO_SOCKET_IFNAME") or find_interface_towards(launch.address) or ""
    # Addresses differ between nodes; names of interfaces should not.
    return f"gloo on {name}" if name in list_interfaces() else f"gloo on {name or 'the interface that gloo chose'}"


@contextmanager
def _nccl_log() -> Iterator[Path]:
    """NCCL writes its log into the file that is given, while this is open; what the user had set comes back."""
    with tempfile.TemporaryDirectory(prefix="paceline-nccl-") as folder:
        file = Path(folder) / "log.txt"
        wanted = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(file), "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET"}
        wanted["TORCH_NCCL_BLOCKING_WAIT"] = "1"  # what fails raises here, and does not end the process
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        try:
            yield file
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def measure_teraflops(device: torch.device, *, side: int = SIDE, products: int = PRODUCTS) -> float:
    """Of this device in products of half-precision matrices, in 10^12 operations a second; once before, to its working clock."""
    wait = torch.cuda.synchronize if device.type == "cuda" else (lambda _: None)
    matrix, seconds = torch.randn(side, side, device=device, dtype=torch.float16), 0.0
    for _ in range(2):
        wait(device)
        began = time.perf_counter()
        for _ in range(products):
            torch.mm(matrix, matrix)
        wait(device)
        seconds = time.perf_counter() - began
    return products * 2 * side**3 / seconds / 1e12


def _same_folder(world: DistContext, launch: Launch, folder: Path, facts: NodeFacts) -> NodeFacts:
    """Whether rank 0's run folder is this node's too: rank 0 leaves a file there for a moment."""
    name, written = f".paceline-doctor-{secrets.token_hex(8)}", ""
    if world.is_main and not facts.run_trouble:
        try:
            (folder / name).write_text(name)
            written = name
        except OSError as problem:
            facts = replace(facts, run_trouble=f"{abbreviate(str(folder), 200)} is not writable: {problem.strerror}")
    written = broadcast_from_main(world, written, "doctor/folder")
    try:
        if written and not facts.run_trouble and not (folder / written).is_file():
            text = f"{abbreviate(str(folder), 200)} is not shared with rank 0. Use a shared folder (--check-dir)"
            facts = replace(facts, run_trouble=text)
        world.barrier()
    finally:
        if world.is_main and written:
            (folder / written).unlink(missing_ok=True)
    return facts


@dataclass(frozen=True)
class Transport:
    """What carries messages, as NCCL's own log has it. "" and empty are unknown."""

    network: str = ""  # "InfiniBand", "RoCE", "OFI/efa", "OFI/...", "sockets", or NCCL's own word for another
    devices: tuple[str, ...] = ()  # its adapters or interfaces
    bootstrap: str = ""
    direct: bool = False  # GPU memory is read and written by the adapter itself (GPUDirect RDMA)
    within: tuple[str, ...] = ()  # what carries messages inside a node: P2P, SHM
    warnings: tuple[str, ...] = ()  # NCCL's own, the first few

    def format_line(self, nodes: int = 2) -> str:
        """As "NCCL chose OFI/efa", "NCCL fell to sockets on eth0". One node has no use for a network."""
        if nodes == 1:
            return f"NCCL within the node: {' and '.join(self.within) or 'unknown transport'}"
        if not self.network:
            return "NCCL did not report its network"
        where = f" on {', '.join(self.devices)}" if self.devices else ""
        if self.network == "sockets":
            return f"NCCL fell back to sockets{where}"
        return f"NCCL uses {self.network}{where}{', GPUDirect' if self.direct else ''}"


def parse_nccl_log(text: str) -> Transport:
    """Read one rank's NCCL log. Pure; lines that NCCL never wrote count for nothing."""
    chosen = [first or second for first, second in _CHOSEN.findall(text)]
    ports = [port for line in _PORTS.findall(text) for port in _PORT.findall(line)]
    provider = _PROVIDER.search(text)
    sockets = [name for line in _SOCKETS.findall(text) for name in _names(line)]
    network, devices = _network(chosen[-1] if chosen else "", ports, provider[1] if provider else "", sockets)
    bootstrap = _BOOTSTRAP.search(text)
    ways = _CHANNEL.findall(text)
    return Transport(
        network,
        devices,
        next(iter(_names(bootstrap[1])), "") if bootstrap else "",
        any("GDRDMA" in rest for _, rest in ways),
        tuple(sorted({way for way, _ in ways if way in ("P2P", "SHM")})),
        tuple(line.strip()[:LONGEST_WARNING] for line in _WARNING.findall(text)[:MAX_WARNINGS]),
    )


def _network(chosen: str, ports: list[tuple[str, str]], provider: str, sockets: list[str]) -> tuple[str, tuple[str, ...]]:
    """-> (network, its devices) by NCCL's word for what it chose."""
    word = chosen.strip()
    if word.startswith("IB") or (not word and ports):
        kinds = {kind for _, kind in ports}
        network = "RoCE" if kinds == {"RoCE"} else "InfiniBand and RoCE" if len(kinds) > 1 else "InfiniBand"
        return network, tuple(dict.fromkeys(name for name, _ in ports))
    if word in ("AWS Libfabric", "OFI", "Libfabric") or (not word and provider):
        return f"OFI/{provider or 'libfabric'}", ()
    if word == "Socket" or (not word and sockets):
        return "sockets", tuple(dict.fromkeys(sockets))
    return word, ()


def _names(line: str) -> list[str]:
    """Interfaces in "[0]eth0:10.0.0.1<0> [1]eth1:10.0.0.2<0>"."""
    result = (_INTERFACE.match(part) for part in line.split())
    return [match[1] for match in result if match]
