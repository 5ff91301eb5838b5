"""Every system by its name for --system. One of your own needs no entry: `./my_site.py:rack7`.

`auto` asks the machine and is the default; `cpu` and `gpu` are what it finds of either. torch is imported inside the functions:
naming a system must stay instant.
All others are the machines that the published systems ran on, and today's, as far as their sources describe them: what a source
leaves out stays unknown (0 or empty) and is not guessed.
Sources: the configuration files, launch scripts and `systems/*.json` of MLPerf
Training v0.7 (SSD: Dell, NVIDIA) and v3.0 (ResNet-50, Mask R-CNN: NVIDIA, ASUS, Habana), Habana's Model-References 1.5.0, and
GluonCV's benchmark of Mask R-CNN on AWS. Memory of an accelerator is its maker's figure.
What a recipe was published with on a machine (images a forward, number format, loss scale) stands in config/published.py.

Left out: variables of MXNet and Horovod, which nothing here reads. Horovod's fusion threshold is `ddp_bucket_mib`, OMP_NUM_THREADS
is `intra_op_threads`. DALI's few CPU threads fed a decoder on the GPU; ours decode, so their number stays automatic.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from paceline._utils.errors import RecipeError
from paceline._utils.user_code import choose_named
from paceline.config.system import Precision, System
from paceline.distributed.device.accelerators import (
    default_accelerator,
    find_accelerators,
    get_device_name,
    get_memory_bytes,
)

GIB = 2**30
# Share of a machine's main memory that training may plan with: the page cache and the user's other programs keep the rest.
# Of all memory, not of what is free this minute: the same machine must always give the same plan.
CPU_MEMORY_SHARE = 0.5


def detect_system() -> System:
    """An accelerator where torch sees one (CUDA, ROCm, Gaudi, Intel's), else the CPU."""
    return detect_gpu() if default_accelerator() else detect_cpu()


def detect_cpu() -> System:
    """This machine's CPU. fp32, or bf16 where the CPU multiplies it in hardware: AVX512-BF16 or AMX.

    On an AVX2 CPU, which emulates bf16, autocast was 16 times slower than fp32 for ResNet-50. With AVX512-BF16 it trained
    SSD-ResNet34 and small SSDs 1.6 to 2.0 times as fast as fp32 (results/cpu-bf16).
    """
    return System(
        "cpu", ranks_per_node=1, memory_gib=round(_main_memory_gib() * CPU_MEMORY_SHARE, 1), precision=_cpu_precision()
    )


def detect_gpu() -> System:
    """The accelerators of this machine, whoever made them: their number, memory and number format.

    Raises RecipeError when torch sees none.
    """
    import torch

    kind, devices = find_accelerators()
    if not devices:
        raise RecipeError(
            "--system gpu: torch finds no CUDA device or other accelerator. To see the reason, run `paceline doctor`. "
            "To train on the CPU, set --system cpu."
        )
    memory = get_memory_bytes(kind)
    if not memory:
        raise RecipeError(
            f"--system gpu: torch does not report the memory of its {kind} devices. Choose a system from `paceline list systems`, "
            "or write a custom system file."
        )
    return System(
        kind,  # pyright: ignore[reportArgumentType]  # torch has no other types than System knows
        ranks_per_node=devices,
        memory_gib=round(memory / GIB, 1),
        precision=_accelerator_precision(kind),
        device_name=get_device_name(torch.device(kind, 0)),
    )


def _accelerator_precision(kind: str) -> Precision:
    """bf16 where the hardware multiplies it: from CUDA's compute capability 8.0 on, and wherever an Intel GPU or Gaudi has it."""
    import torch

    if kind == "cuda":
        return "bf16" if torch.cuda.get_device_properties(0).major >= 8 else "fp16"
    if kind == "xpu":
        return "bf16" if torch.xpu.is_bf16_supported(including_emulation=False) else "fp16"
    return "bf16" if kind == "hpu" else "fp32"


def _cpu_precision() -> Literal["fp32", "bf16"]:
    import torch

    # torch has no public question for this yet; a version without these two functions trains in fp32.
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        supported = getattr(torch.cpu, name, None)
        if supported is not None and supported():
            return "bf16"
    return "fp32"


def _main_memory_gib() -> float:
    """Main memory, or a container's smaller limit, in GiB."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 8.0  # this operating system does not say: plan for a small laptop
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file():
        text = limit.read_text().strip()
        total = min(total, int(text)) if text.isdigit() else total
    return max(total / GIB, 1.0)


def _two_sockets(chip: str, memory_gib: float, precision: Precision, *, cores: int, **more: Any) -> System:
    """Eight accelerators of NVIDIA's in a node of two sockets, each of so many cores of two threads; one compute thread a rank."""
    facts = {"ranks_per_node": 8, "intra_op_threads": 1, "sockets": 2, "cores_per_socket": cores, "threads_per_core": 2}
    return System("cuda", memory_gib=memory_gib, precision=precision, device_name=chip, **{**facts, **more})


def dgx_h100() -> System:
    """NVIDIA DGX H100: eight H100 SXM5 80 GB, two Xeon 8480C, eight NDR400 InfiniBand adapters."""
    more = {"cpu_bind": "exclusive", "fabric": "ib", "ddp_bucket_mib": 64, "host_memory_gib": 2048}
    return _two_sockets("H100-SXM5-80GB", 80, "bf16", cores=56, **more)


def dgx_a100() -> System:
    """NVIDIA DGX A100: eight A100 SXM 40 GB, two sockets of 64 cores, InfiniBand (one of 80 GB: --system.memory-gib 80)."""
    more = {"cpu_bind": "exclusive", "interface": "ib0", "fabric": "ib"}
    return _two_sockets("A100-SXM4-40GB", 40, "bf16", cores=64, **more)


def dgx1() -> System:
    """NVIDIA DGX-1: eight V100 SXM2 32 GB, two sockets of 20 cores, InfiniBand."""
    return _two_sockets("V100-SXM2-32GB", 32, "fp16", cores=20, cpu_bind="node", fabric="ib")


def dgx1_16gb() -> System:
    """NVIDIA DGX-1 of the first kind: eight V100 SXM2 16 GB, two sockets of 20 cores, InfiniBand."""
    return replace(dgx1(), memory_gib=16, device_name="V100-SXM2-16GB")


def dgx2() -> System:
    """NVIDIA DGX-2: sixteen V100 SXM3 32 GB, two sockets of 24 cores, InfiniBand."""
    return replace(dgx1(), ranks_per_node=16, device_name="V100-SXM3-32GB", cores_per_socket=24)


def dss8440() -> System:
    """Dell DSS 8440: eight V100S PCIe 32 GB, two Xeon Gold 6248."""
    return _two_sockets("V100S-PCIe-32GB", 32, "fp16", cores=20, host_memory_gib=384)


def c4140() -> System:
    """Dell C4140: four V100 SXM2 32 GB, two Xeon Gold 6148 without hyper-threading."""
    return replace(dss8440(), ranks_per_node=4, device_name="V100-SXM2-32GB", threads_per_core=1)


def p3dn() -> System:
    """AWS p3dn.24xlarge: eight V100 SXM2 32 GB, two sockets of 24 cores, EFA."""
    # Its other NCCL variables are gone since NCCL 2.5 (NCCL_TREE_THRESHOLD), or only print (NCCL_DEBUG).
    env = (
        *("FI_EFA_TX_MIN_CREDITS=64", "NCCL_MIN_NRINGS=1", "NCCL_NSOCKS_PERTHREAD=8", "NCCL_SOCKET_NTHREADS=2"),
        *("NCCL_BUFFSIZE=16777216", "NCCL_NET_GDR_READ=1"),
    )
    more = {"intra_op_threads": 2, "cpu_bind": "exclusive", "interface": "ens5", "fabric": "efa", "env": env}
    return _two_sockets("V100-SXM2-32GB", 32, "fp16", cores=24, ddp_bucket_mib=128, **more)


def gaudi8() -> System:
    """Eight Habana Gaudi 32 GB, each rank bound to cores of its own (mpirun --map-by socket:PE=7)."""
    return System("hpu", ranks_per_node=8, memory_gib=32, precision="bf16", cpu_bind="exclusive", device_name="Gaudi")


def gaudi2x8() -> System:
    """Eight Habana Gaudi2 96 GB a node."""
    return System("hpu", ranks_per_node=8, memory_gib=96, precision="bf16", device_name="Gaudi2")


def mi300x8() -> System:
    """Eight AMD Instinct MI300X 192 GB a node, under ROCm."""
    return System("cuda", ranks_per_node=8, memory_gib=192, precision="bf16", device_name="MI300X")


def h100x8() -> System:
    """Eight NVIDIA H100 SXM 80 GB a node."""
    chip = "H100-SXM5-80GB"
    return System("cuda", ranks_per_node=8, memory_gib=80, precision="bf16", num_workers=12, device_name=chip)


def h200x8() -> System:
    """Eight NVIDIA H200 SXM 141 GB a node."""
    return replace(h100x8(), memory_gib=141, device_name="H200-SXM-141GB")


def a100x8() -> System:
    """Eight NVIDIA A100 SXM 80 GB a node."""
    return replace(h100x8(), device_name="A100-SXM4-80GB")


def v100x8() -> System:
    """Eight NVIDIA V100 32 GB a node: no bf16, so fp16 with a dynamic loss scale."""
    return System("cuda", ranks_per_node=8, memory_gib=32, precision="fp16", num_workers=8, device_name="V100-32GB")


# Those that ask the machine, with torch's help.
DETECTED = ("auto", "cpu", "gpu")
_MACHINES = (
    *(dgx_h100, dgx_a100, dgx1, dgx1_16gb, dgx2, dss8440, c4140, p3dn, gaudi8, gaudi2x8, mi300x8),
    *(h100x8, h200x8, a100x8, v100x8),
)
SYSTEMS: dict[str, Callable[[], System]] = {
    **dict(zip(DETECTED, (detect_system, detect_cpu, detect_gpu))),
    **{make.__name__.replace("_", "-"): make for make in _MACHINES},
}


def choose_system(name: str) -> System:
    """The system called `name`: from the menu, or `path/to/file.py:function`.

    Raises RecipeError naming the nearest neighbors.
    """
    return choose_named(name, SYSTEMS, (System,), "system")
