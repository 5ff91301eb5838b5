"""Ask the machine what it is. torch is imported inside the functions: naming a system must stay instant."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from paceline.config.errors import RecipeError
from paceline.config.system import System

GIB = 2**30
# Share of a machine's main memory that training may plan with: the page cache and the user's other programs keep the rest.
# Of all memory, not of what is free this minute: the same machine must always give the same plan.
CPU_MEMORY_SHARE = 0.5


def auto() -> System:
    """CUDA where torch sees one, else the CPU."""
    import torch

    return cuda() if torch.cuda.is_available() else cpu()


def cpu() -> System:
    """This machine's CPU. fp32, or bf16 where the CPU multiplies it in hardware: AVX512-BF16 or AMX.

    On an AVX2 CPU, which emulates bf16, autocast was 16 times slower than fp32 for ResNet-50. With AVX512-BF16 it trained
    SSD-ResNet34 and small SSDs 1.6 to 2.0 times as fast as fp32 (results/cpu-bf16).
    """
    return System(
        "cpu", per_node=1, memory_gib=round(_main_memory_gib() * CPU_MEMORY_SHARE, 1), precision=_cpu_precision()
    )


def cuda() -> System:
    """The CUDA devices of this machine: their number, memory and number format (bf16 from compute capability 8.0 on).

    Raises RecipeError when torch sees none.
    """
    import torch

    if not torch.cuda.is_available():
        raise RecipeError(
            "--system gpu: torch sees no CUDA device here. Run `paceline doctor` for the reason, or use --system cpu."
        )
    properties = torch.cuda.get_device_properties(0)
    return System(
        "cuda",
        per_node=torch.cuda.device_count(),
        memory_gib=round(properties.total_memory / GIB, 1),
        precision="bf16" if properties.major >= 8 else "fp16",
        compile=False,
    )


def allowed_cpus() -> set[int]:
    """The hardware threads that this process may run on, by Linux's numbers (containers and Slurm restrict them)."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def cpu_cores() -> int:
    """How many hardware threads this process may run on."""
    return len(allowed_cpus())


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
