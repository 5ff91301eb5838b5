"""What a container should share with its host: driver, MPI, PMIx, user, limits, devices. One program for both sides.

Outside, container.sh runs this file with any Python 3 and puts its line into PACELINE_HOST; inside, `paceline doctor` collects
the same facts and compares. So it imports nothing but the standard library, and nothing of paceline.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

VARIABLE = "PACELINE_HOST"
NVIDIA_DRIVER = "/proc/driver/nvidia/version"


def collect_host_facts() -> dict[str, str]:
    """Fact -> its value as text; '' for what is not here."""
    return {
        "driver": get_kernel_driver(),
        "libcuda": _library_version("libcuda.so.1"),
        # NVIDIA's devices; else AMD's, whose compute driver is /dev/kfd.
        "gpus": str(
            _count("/dev", r"nvidia\d+") or (os.path.exists("/dev/kfd") and _count("/dev/dri", r"renderD\d+")) or ""
        ),
        "infiniband": str(_count("/dev/infiniband", r"uverbs\d+") or ""),
        "mpi": _mpi_version(),
        "pmix": _pmix_version(),
        "user": f"{os.getuid()}:{os.getgid()}",
        "memlock": _limit("RLIMIT_MEMLOCK"),
        "stack": _limit("RLIMIT_STACK"),
        "shm_mib": _shared_memory(),
    }


def get_kernel_driver(files: Iterable[str] = (NVIDIA_DRIVER, "/sys/module/amdgpu/version")) -> str:
    """The version of NVIDIA's kernel module, as "550.54.15", which all containers share with the host; else AMD's; "" without."""
    for file in files:
        try:
            result = re.search(r"\d+\.\d+(\.\d+)?", Path(file).read_text())
        except OSError:
            continue
        if result:
            return result[0]
    return ""


def _library_version(name: str) -> str:
    """The version at the end of a library's file name, e.g. 580.65.06 of libcuda.so.580.65.06; '' where it does not load."""
    try:
        ctypes.CDLL(name)
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return ""
    stem = re.escape(name.partition(".so")[0])
    result = re.search(rf"/{stem}\.so\.(\S+)$", maps, re.MULTILINE)
    return result[1] if result else ""


def _count(folder: str, pattern: str) -> int:
    try:
        return sum(re.fullmatch(pattern, name) is not None for name in os.listdir(folder))
    except OSError:
        return 0


def _mpi_version() -> str:
    """Of `mpirun`, e.g. "Open MPI 4.1.4"."""
    try:
        output = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    open_mpi = re.search(r"\(Open MPI\) (\S+)", output)
    return f"Open MPI {open_mpi[1]}" if open_mpi else output.partition("\n")[0].strip()[:40]


def _pmix_version() -> str:
    """Of the PMIx library, e.g. 4.2.2."""
    try:
        library = ctypes.CDLL("libpmix.so.2")
        library.PMIx_Get_version.restype = ctypes.c_char_p
        result = re.search(r"\d+\.\d+\.\d+", library.PMIx_Get_version().decode(errors="replace"))
    except (OSError, AttributeError):
        return ""
    return result[0] if result else ""


def _limit(name: str) -> str:
    """A resource limit in KiB, or "unlimited"."""
    import resource

    soft = resource.getrlimit(getattr(resource, name))[0]
    return "unlimited" if soft == resource.RLIM_INFINITY else str(soft // 1024)


def _shared_memory() -> str:
    """Size of /dev/shm in MiB."""
    try:
        size = os.statvfs("/dev/shm")
    except OSError:
        return ""
    return str(size.f_blocks * size.f_frsize // 2**20)


if __name__ == "__main__":
    json.dump(collect_host_facts(), sys.stdout, separators=(",", ":"))
    print()
