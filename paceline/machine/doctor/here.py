"""What this machine has for training, and what is missing: one finding a line, each with the next step where there is one."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from paceline.accelerators import NAMES, device_name, found
from paceline.config.cache import cache_folder
from paceline.config.commands import to_install
from paceline.config.errors import RecipeError, UserError
from paceline.machine.adapters import read_device
from paceline.machine.detect import auto, cpu_cores
from paceline.machine.doctor.finding import LOW_DISK_GIB, Finding, Level
from paceline.machine.doctor.nvidia import ask_gpus
from paceline.machine.placement import cores_of, processing_elements
from paceline.machine.placing import device_addresses
from paceline.machine.provenance import cpu_name, versions
from paceline.machine.topology import read_topology, spelled
from paceline.machine.torch_builds import no_code_for, pinned_for

GIB = 2**30


def examine(folder: Path) -> list[Finding]:
    """Look at everything; nothing is changed and nothing is written but a probe file in the cache.

    folder   where runs go
    """
    checks: tuple[Callable[[], list[Finding]], ...] = (
        _software, _accelerators, _processor, _topology, _decoders, _shared_memory, lambda: _disk(folder), _cache, _network,
        _host,
    )  # fmt: skip
    return [finding for check in checks for finding in check()]


def _software() -> list[Finding]:
    found = versions()
    text = "  ".join(f"{name} {version}" for name, version in found.items())
    findings = [Finding("ok", "software", text)]
    if "mlperf-logging" not in found:
        findings.append(
            Finding(
                "note",
                "software",
                f"mllog.txt is written by our own writer; the checker needs: {to_install('mlperf')}",
            )
        )
    return findings


def _accelerators() -> list[Finding]:
    import torch

    kind, devices = found()
    if kind not in ("", "cuda"):
        name = device_name(torch.device(kind, 0))
        text = f"{devices} x {name} ({NAMES.get(kind, kind)}); paceline has never run on one: docs/systems.md"
        return [Finding("note", "accelerator", text)]
    if not torch.cuda.is_available():
        built = torch.version.cuda
        why = (
            f"this torch is built for CUDA {built}, but the driver offers no device"
            if built
            else "this torch is built without CUDA"
        )
        findings = [Finding("note", "accelerator", f"none: {why}; recipes run on the CPU")]
        if pin := next((pin for gpu in ask_gpus() if (pin := pinned_for(gpu.name))), None):
            findings.append(
                Finding("note", "accelerator", f"this machine has a {pin.chip}, and {pin.why}: {pin.install}")
            )
        return findings
    findings = []
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        kind = "bf16" if facts.major >= 8 else "fp16 (no bf16 in hardware)"
        text = f"cuda:{index} {facts.name}, {facts.total_memory / GIB:.0f} GiB, {kind}"
        findings.append(Finding("ok", "accelerator", text))
        # AMD's are numbered otherwise.
        if torch.version.cuda and (
            why := no_code_for(
                f"cuda:{index}", (facts.major, facts.minor), torch.__version__, torch.cuda.get_arch_list()
            )
        ):
            findings.append(Finding("problem", "accelerator", why))
    return findings


def _processor() -> list[Finding]:
    import torch

    capability = torch.backends.cpu.get_cpu_capability()
    system = auto()
    text = f"{cpu_name()}, {cpu_cores()} cores for this process, {capability}, {torch.get_num_threads()} torch threads"
    findings = [Finding("ok", "processor", text)]
    if system.accelerator == "cpu" and system.precision == "fp32":
        findings.append(
            Finding("ok", "processor", "trains in fp32: without AMX tiles bf16 would be slower, up to 16 times on AVX2")
        )
    return findings


def _topology() -> list[Finding]:
    system = auto()
    topology = read_topology()
    sockets, threads = len({core.socket for core in topology.cores}), len(topology.cpus)
    text = ", ".join(
        f"{count} {what}{'s'[: count != 1]}"
        for count, what in (
            (sockets, "socket"),
            (len(topology.nodes), "NUMA node"),
            (len(topology.cores), "core"),
            (threads, "hardware thread"),
        )
    )
    near = [read_device(address).node for address in device_addresses(system, system.per_node)]
    try:
        given = [
            spelled(cores_of(topology, rank, system.per_node, "exclusive", near)) for rank in range(system.per_node)
        ]
    except RecipeError as problem:
        return [Finding("note", "topology", f"{text}; {problem}")]
    ranks = ", ".join(f"rank {rank} {cores}" for rank, cores in enumerate(given))
    each = processing_elements(topology, system.per_node)
    return [Finding("ok", "topology", f"{text}; --system.bind exclusive: {ranks}; mpirun: --map-by socket:PE={each}")]


def _decoders() -> list[Finding]:
    from paceline.input.decode import require_decoder

    try:
        require_decoder("simplejpeg")
        findings = [Finding("ok", "decoder", "simplejpeg (the default of every recipe)")]
    except RecipeError as problem:
        findings = [Finding("problem", "decoder", str(problem))]
    if importlib.util.find_spec("nvidia") and importlib.util.find_spec("nvidia.nvimgcodec"):
        try:
            require_decoder("nvimgcodec")
            findings.append(Finding("ok", "decoder", "nvimgcodec is there too: --input.decoder nvimgcodec"))
        except RecipeError as problem:
            findings.append(Finding("note", "decoder", str(problem)))
    else:
        findings.append(Finding("note", "decoder", f"nvimgcodec is not installed: {to_install('fast')} (Linux)"))
    return findings


def _shared_memory() -> list[Finding]:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return [Finding("ok", "shared memory", "no /dev/shm here, and none is needed: images are decoded by threads")]
    free = shutil.disk_usage(folder).free / GIB
    text = (
        f"/dev/shm has {free:.1f} GiB free; the loader needs none (threads), NCCL between GPUs of a node some 0.1 GiB"
    )
    enough = free > 0.25
    return [
        Finding("ok" if enough else "note", "shared memory", text + ("" if enough else ": docker run --shm-size=1g"))
    ]


def _disk(folder: Path) -> list[Finding]:
    folder = folder.expanduser().absolute()
    try:
        free = shutil.disk_usage(folder).free / GIB
    except OSError as problem:
        return [Finding("problem", "disk", f"{folder}: {problem.strerror}")]
    level: Level = "ok" if free > LOW_DISK_GIB else "note"
    return [Finding(level, "disk", f"{free:.0f} GiB free where runs/ would go ({folder})")]


def _cache() -> list[Finding]:
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"probe")
    except OSError as problem:
        text = f"{folder} cannot be written ({problem.strerror}): set PACELINE_CACHE to a folder that can"
        return [Finding("problem", "cache", text)]
    size = sum(entry.stat().st_size for entry in folder.rglob("*") if entry.is_file()) / GIB
    return [
        Finding(
            "ok",
            "cache",
            f"{folder} ({size:.2f} GiB): rendered shapes, indexes of data sets, memory estimates; all of it can be made again. "
            "PACELINE_CACHE names another folder",
        )
    ]


def _network() -> list[Finding]:
    from paceline.ranks.interfaces import interfaces
    from paceline.ranks.launcher import read_launch

    launch = read_launch(os.environ)
    here = ", ".join(interfaces())
    text = f"launcher: {launch.kind}, rank {launch.rank} of {launch.world}; interfaces: {here}"
    return [Finding("ok", "processes", text)]


def _host() -> list[Finding]:
    """Inside a container whose host told its facts: what is otherwise here."""
    from paceline.machine.doctor.container import compare, read_host
    from paceline.machine.host_facts import VARIABLE, facts

    told = os.environ.get(VARIABLE)
    if not told:
        return []
    try:
        return [Finding(level, "container", text) for level, text in compare(read_host(told), facts())]
    except UserError as problem:
        return [Finding("problem", "container", str(problem))]
