"""Whether the GPU driver is new enough for the CUDA that torch was built with.

A driver runs programs of every older CUDA, and of its own major version's newer minor ones as far as they use nothing new.
Source: NVIDIA, CUDA Compatibility (minor version compatibility).
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

LIBRARY = "libcuda.so.1"
VERSION_FILE = Path("/proc/driver/nvidia/version")


def driver_cuda() -> str:
    """The newest CUDA that this machine's driver knows, as "12.4"; "" without a driver."""
    try:
        library = ctypes.CDLL(LIBRARY)
        number = ctypes.c_int(0)
        if library.cuDriverGetVersion(ctypes.byref(number)) != 0:
            return ""
    except (OSError, AttributeError):
        return ""
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


def driver_version(file: Path = VERSION_FILE) -> str:
    """The kernel module's version, as "550.54.15"; "" where there is none."""
    try:
        found = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", file.read_text(errors="replace"))
    except OSError:
        return ""
    return found[1] if found else ""


def too_old(driver: str, torch: str) -> str:
    """Why this driver may not run this torch, in a sentence; "" where it does, or a version is unknown.

    driver, torch   CUDA versions, as "12.4"
    """
    here, built = _parts(driver), _parts(torch)
    if not here or not built or here >= built:
        return ""
    if here[0] < built[0]:
        return f"the driver knows CUDA up to {driver}, this torch is built for {torch}: a newer driver, or a torch for CUDA {here[0]}"
    return ""


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2]) if re.fullmatch(r"\d+\.\d+(\.\d+)*", version) else ()
