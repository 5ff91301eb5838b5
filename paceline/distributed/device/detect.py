"""Ask the machine what it is. torch is imported inside the functions: naming a system must stay instant."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from paceline._utils.errors import RecipeError
from paceline.config.system import Precision, System

GIB = 2**30
# Share of a machine's main memory that training may plan with: the page cache and the user's other programs keep the rest.
# Of all memory, not of what is free this minute: the same machine must always give the same plan.
CPU_MEMORY_SHARE = 0.5


def detect_system() -> System:
    """An accelerator where torch sees one (CUDA, ROCm, Gaudi, Intel's), else the CPU."""
    from paceline.distributed.device.accelerators import default_accelerator

    return detect_gpu() if default_accelerator() else detect_cpu()


def detect_cpu() -> System:
    """This machine's CPU. fp32, or bf16 where the CPU multiplies it in hardware: AVX512-BF16 or AMX.

    On an AVX2 CPU, which emulates bf16, autocast was 16 times slower than fp32 for ResNet-50. With AVX512-BF16 it trained
    SSD-ResNet34 and small SSDs 1.6 to 2.0 times as fast as fp32 (results/cpu-bf16).
    """
    return System("cpu", per_node=1, memory_gib=round(_main_memory_gib() * CPU_MEMORY_SHARE, 1), precision=_cpu_precision())


def detect_gpu() -> System:
    """The accelerators of this machine, whoever made them: their number, memory and number format.

    Raises RecipeError when torch sees none.
    """
    import torch

    from paceline.distributed.device.accelerators import find_accelerators, get_device_name, get_memory_bytes

    kind, devices = find_accelerators()
    if not devices:
        raise RecipeError(
            "--system gpu: torch sees no CUDA device here, nor another accelerator. Run `paceline doctor` for the reason, or use "
            "--system cpu."
        )
    memory = get_memory_bytes(kind)
    if not memory:
        raise RecipeError(
            f"--system gpu: torch does not say how much memory its {kind} devices have. Name the machine: `paceline list systems`, "
            "or a system of your own."
        )
    return System(
        kind,  # pyright: ignore[reportArgumentType]  # torch has no other types than System knows
        per_node=devices,
        memory_gib=round(memory / GIB, 1),
        precision=_accelerator_precision(kind),
        chip=get_device_name(torch.device(kind, 0)),
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
