"""The machines: every system by its name for --system. One of your own needs no entry: `./my_site.py:rack7`.

Memory figures are the vendors'. `auto` asks the machine (paceline/systems/detect.py) and is the default.
"""

from __future__ import annotations

from collections.abc import Callable

from paceline.config.system import System
from paceline.systems.detect import auto, cpu, cuda


def h100x8() -> System:
    """Eight NVIDIA H100 SXM 80 GB a node."""
    return System("cuda", per_node=8, memory_gib=80, precision="bf16", compile=True, loader_threads=12)


def h200x8() -> System:
    """Eight NVIDIA H200 SXM 141 GB a node."""
    return System("cuda", per_node=8, memory_gib=141, precision="bf16", compile=True, loader_threads=12)


def a100x8() -> System:
    """Eight NVIDIA A100 SXM 80 GB a node."""
    return System("cuda", per_node=8, memory_gib=80, precision="bf16", compile=True, loader_threads=12)


def v100x8() -> System:
    """Eight NVIDIA V100 32 GB a node: no bf16, so fp16 with a dynamic loss scale."""
    return System("cuda", per_node=8, memory_gib=32, precision="fp16", compile=False, loader_threads=8)


# Those that ask the machine, with torch's help.
DETECTED = ("auto", "cpu", "gpu")
SYSTEMS: dict[str, Callable[[], System]] = {
    "auto": auto,
    "cpu": cpu,
    "gpu": cuda,
    "h100x8": h100x8,
    "h200x8": h200x8,
    "a100x8": a100x8,
    "v100x8": v100x8,
}
