"""What this machine has for training, and what is missing: one finding a line, each with the next step where there is one."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from paceline._utils.cache import cache_folder
from paceline._utils.commands import install_command
from paceline._utils.errors import PacelineError, RecipeError
from paceline._utils.platform import count_cpus
from paceline._utils.text import abbreviate
from paceline.distributed.comm.interfaces import list_interfaces
from paceline.distributed.comm.launcher import explain_pty_shell, read_launch
from paceline.distributed.device.accelerators import (
    NAMES,
    explain_unsupported,
    find_accelerators,
    find_torch_pin,
    get_device_name,
)
from paceline.distributed.device.affinity import find_device_addresses, read_device
from paceline.distributed.device.provenance import collect_versions, get_cpu_name
from paceline.distributed.device.systems import detect_system
from paceline.distributed.device.topology import count_processing_elements, format_cpu_list, read_topology, select_cores
from paceline.launch.containers.host_facts import VARIABLE, collect_host_facts
from paceline.launch.doctor.compare import LOW_DISK_GIB, LOW_SHM_GIB, Level, MachineFact
from paceline.launch.doctor.node import get_gaudi_driver, query_gpus

GIB = 2**30
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
# (level, text) of what is seen; inside a container of each difference to its host.
Compared = tuple[Level, str]
MAX_CHARACTERS = 10_000
# Less of /dev/shm than this is too little for NCCL between eight devices.
LITTLE_SHM_MIB = 256


def check_node(folder: Path, system: str = "", *, require_decoder: Callable[[Any], None]) -> list[MachineFact]:
    """Look at everything; nothing is changed and nothing is written but a probe file in the cache.

    folder   where runs go
    system   name of the system that this machine should be; "" for none
    require_decoder  raises RecipeError for a JPEG decoder that cannot run
    """

    def of(about: str, result: Iterable[Compared]) -> Iterator[MachineFact]:
        return (MachineFact(level, about, text) for level, text in result)

    return [
        *of("software", _software()),
        *_accelerators(),
        *of("accelerator", _gaudi(system)),
        *of("processor", _processor()),
        *of("topology", _topology()),
        *of("decoder", _decoders(require_decoder)),
        *of("shared memory", _shared_memory()),
        *of("disk", _disk(folder.expanduser().absolute())),
        *of("cache", _cache(cache_folder())),
        *of("processes", _network()),
        *_host(),
    ]


def _software() -> Iterator[Compared]:
    result = collect_versions()
    yield "ok", "  ".join(f"{name} {version}" for name, version in result.items())
    if "mlperf-logging" not in result:
        yield "note", f"paceline writes mllog.txt itself; the compliance checker requires: {install_command('mlperf')}"


def _accelerators() -> list[MachineFact]:
    import torch

    kind, devices = find_accelerators()
    seen = [
        f"{name}={abbreviate(os.environ[name])!r} limits the devices that torch finds"
        for name in VISIBLE
        if name in os.environ
    ]
    if kind not in ("", "cuda"):
        name = get_device_name(torch.device(kind, 0))
        text = f"{devices} x {name} ({NAMES.get(kind, kind)}); not tested with paceline (docs/reference/systems.md)"
        return [MachineFact("note", "accelerator", text)]
    if not torch.cuda.is_available():
        built = torch.version.cuda
        why = "this torch was built without CUDA"
        if built:
            why = f"this torch was built for CUDA {built}, but the driver reports no device"
        texts = [f"none: {why}; training uses the CPU", *seen]
        if pin := next((pin for gpu in query_gpus() if (pin := find_torch_pin(gpu.name))), None):
            texts.append(f"this machine has a {pin.chip}, and {pin.why}. Run:  {pin.install}")
        return [MachineFact("note", "accelerator", text) for text in texts]
    findings = [MachineFact("note", "accelerator", text) for text in seen]
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        kind = "bf16" if facts.major >= 8 else "fp16 (no bf16 in hardware)"
        text = f"cuda:{index} {facts.name}, {facts.total_memory / GIB:.0f} GiB, {kind}"
        findings.append(MachineFact("ok", "accelerator", text))
        # AMD's are numbered otherwise.
        known = torch.cuda.get_arch_list() if torch.version.cuda else []
        if why := explain_unsupported(f"cuda:{index}", (facts.major, facts.minor), torch.__version__, known):
            findings.append(MachineFact("problem", "accelerator", why))
    return findings


def _gaudi(system: str) -> Iterator[Compared]:
    if text := get_gaudi_driver():
        yield "ok", f"Gaudi driver {text} (hl-smi)"
    elif system.startswith("gaudi"):
        yield "note", f"{system}: hl-smi reports no versions. Install habanalabs-dkms and habanalabs-firmware-tools"


def _processor() -> Iterator[Compared]:
    import torch

    capability = torch.backends.cpu.get_cpu_capability()
    threads = f"{capability}, {torch.get_num_threads()} torch threads"
    system = detect_system()
    yield "ok", f"{get_cpu_name()}, {count_cpus()} cores for this process, {threads}"
    if system.device == "cpu" and system.precision == "fp32":
        yield "ok", "trains in fp32, because bf16 without AMX tiles is slower (up to 16 times on AVX2)"


def _topology() -> Iterator[Compared]:
    system, topology = detect_system(), read_topology()
    counts = (
        (len({core.socket for core in topology.cores}), "socket"), (len(topology.nodes), "NUMA node"),
        (len(topology.cores), "core"), (len(topology.cpus), "hardware thread"),
    )  # fmt: skip
    text = ", ".join(f"{count} {what}{'s'[: count != 1]}" for count, what in counts)
    near = [read_device(address).node for address in find_device_addresses(system, system.ranks_per_node)]
    try:
        explicit = [
            format_cpu_list(select_cores(topology, rank, system.ranks_per_node, "exclusive", near))
            for rank in range(system.ranks_per_node)
        ]
    except RecipeError as problem:
        yield "note", f"{text}; {problem}"
        return
    ranks = ", ".join(f"rank {rank} on {cores}" for rank, cores in enumerate(explicit))
    each = count_processing_elements(topology, system.ranks_per_node)
    yield "ok", f"{text}; --system.cpu-bind exclusive: {ranks}; mpirun: --map-by socket:PE={each}"


def _decoders(require_decoder: Callable[[Any], None]) -> Iterator[Compared]:
    try:
        require_decoder("simplejpeg")
        yield "ok", "simplejpeg (default of all recipes)"
    except RecipeError as problem:
        yield "problem", str(problem)
    if not (importlib.util.find_spec("nvidia") and importlib.util.find_spec("nvidia.nvimgcodec")):
        yield "note", f"nvimgcodec is not installed. To install it (Linux):  {install_command('fast')}"
        return
    try:
        require_decoder("nvimgcodec")
        yield "ok", "nvimgcodec is available: --input.decoder nvimgcodec"
    except RecipeError as problem:
        yield "note", str(problem)


def _shared_memory() -> Iterator[Compared]:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        yield "ok", "no /dev/shm, which the loader does not need"
        return
    free = shutil.disk_usage(folder).free / GIB
    text = f"/dev/shm has {free:.1f} GiB free; the loader uses none, and NCCL uses about 0.1 GiB between the GPUs"
    yield ("ok", text) if free > LOW_SHM_GIB else ("note", f"{text}: docker run --shm-size=1g")


def _disk(folder: Path) -> Iterator[Compared]:
    try:
        free = shutil.disk_usage(folder).free / GIB
        yield "ok" if free > LOW_DISK_GIB else "note", f"{free:.0f} GiB free for runs ({folder})"
    except OSError as problem:
        yield "problem", f"{folder}: {problem.strerror}"


def _cache(folder: Path) -> Iterator[Compared]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"probe")
    except OSError as problem:
        yield "problem", f"{folder} is not writable ({problem.strerror}). Set PACELINE_CACHE to a writable folder"
        return
    size = sum(entry.stat().st_size for entry in folder.rglob("*") if entry.is_file()) / GIB
    yield (
        "ok",
        f"{folder} ({size:.2f} GiB): built-in datasets, dataset indexes, and memory estimates. It is safe to delete. "
        "To use another folder, set PACELINE_CACHE",
    )


def _network() -> Iterator[Compared]:
    launch = read_launch(os.environ)
    here = ", ".join(list_interfaces())
    if note := explain_pty_shell(os.environ, launch.world):
        yield "note", note
    yield "ok", f"launcher: {launch.kind}, rank {launch.rank} of {launch.world}; interfaces: {here}"


def _host() -> list[MachineFact]:
    """Inside a container whose host's facts are known: what differs here.

    They come in the variable PACELINE_HOST, which `paceline launch` and `paceline container shell` set; by hand:
        PACELINE_HOST=$(paceline doctor --print-host-info) docker run --env PACELINE_HOST ...
    """
    text = os.environ.get(VARIABLE)
    if not text:
        return []
    try:
        return [
            MachineFact(level, "container", text) for level, text in compare_host(read_host(text), collect_host_facts())
        ]
    except PacelineError as problem:
        return [MachineFact("problem", "container", str(problem))]


def read_host(text: str) -> dict[str, str]:
    """The facts in PACELINE_HOST. Raises PacelineError where it holds none."""
    try:
        result = json.loads(text) if len(text) <= MAX_CHARACTERS else None
    except ValueError:
        result = None
    if not isinstance(result, dict) or not all(isinstance(value, str) for value in result.values()):
        raise PacelineError(
            f"{VARIABLE}={abbreviate(text)}: not a valid host description. Set it to the output of  paceline doctor --print-host-info"
        )
    return {str(name): abbreviate(value, 80) for name, value in result.items()}


def compare_host(host: Mapping[str, str], here: Mapping[str, str]) -> list[Compared]:
    """What differs between the host's facts and those inside, each with the flag that mends it; a first line of what is alike.

    Pure. A fact that the host did not give is not compared.
    """
    names = {"driver": "driver", "mpi": "mpirun", "pmix": "PMIx", "user": "user"}
    alike = [f"{text} {here[name]}" for name, text in names.items() if here.get(name) and here[name] == host.get(name)]
    first: Compared = ("note", "no properties of the host are known to match")
    if alike:
        first = ("ok", "same as the host: " + ", ".join(alike))
    return [first, *_devices(host, here), *_launchers(host, here), *_user_and_limits(host, here)]


def _devices(host: Mapping[str, str], here: Mapping[str, str]) -> Iterator[Compared]:
    if (have := host.get("gpus", "")) and have != here.get("gpus", ""):
        text = (
            f"the host has {have} GPUs, the container {here.get('gpus') or 'none'}. Start it with docker run --gpus all or "
            "apptainer exec --nv (AMD: --rocm)"
        )
        yield "problem", text
    driver, library = here.get("driver") or host.get("driver", ""), here.get("libcuda", "")
    if host.get("libcuda") and not library:
        text = (
            f"the driver library {host['libcuda']} of the host is not in the container. Start it with docker run --gpus all "
            "(requires nvidia-container-toolkit) or apptainer exec --nv"
        )
        yield "problem", text
    elif library and driver and library != driver:
        text = (
            f"driver library {library} in the container, kernel driver {driver} on the host. Remove libcuda from the image; "
            "--gpus all or --nv provides the library of the host"
        )
        yield "problem", text
    if (have := host.get("infiniband", "")) and have != here.get("infiniband", ""):
        text = (
            f"the host has {have} InfiniBand or RoCE devices, the container {here.get('infiniband') or 'none'}, so NCCL uses "
            "TCP. Start it with docker run --device /dev/infiniband"
        )
        yield "note", text


def _launchers(host: Mapping[str, str], here: Mapping[str, str]) -> Iterator[Compared]:
    for name, text in (("mpi", "mpirun"), ("pmix", "PMIx")):
        outside, inside = host.get(name, ""), here.get(name, "")
        if outside and inside and outside != inside:
            text = (
                f"{text} {inside} in the container, {outside} on the host. Either can start ranks of paceline. If one mpirun "
                "has daemons on both sides, the versions must be equal"
            )
            yield "note", text


def _user_and_limits(host: Mapping[str, str], here: Mapping[str, str]) -> Iterator[Compared]:
    outside, inside = host.get("user", ""), here.get("user", "")
    if outside and outside != inside:
        # Rootless Docker and a build's shell look like user 0 outside, and write as they should.
        advice = "" if outside.startswith("0:") else '. Start it with docker run --user "$(id -u):$(id -g)"'
        yield "note", f"user {inside} in the container, {outside} on the host. New files belong to {inside}{advice}"
    pins = host.get("infiniband") or host.get("memlock") == "unlimited"
    if here.get("memlock") not in ("unlimited", None) and pins:
        text = f"memlock is {here['memlock']} KiB, and InfiniBand pins more. Start it with docker run --ulimit memlock=-1"
        yield "note", text
    shm = here.get("shm_mib", "")
    if shm.isdecimal() and int(shm) < LITTLE_SHM_MIB and host.get("shm_mib") != shm:
        yield "note", f"/dev/shm has {shm} MiB. Start it with docker run --ipc host or --shm-size 1g"
