"""Accelerators by torch's device types, of any vendor: how many there are, their names, the backends of their ranks, and which
torch has code for which of NVIDIA's.

torch has one interface for all (torch.accelerator) and one module for each (torch.cuda, torch.xpu, ...); AMD's ROCm is cuda in both.
Only the CPU has been run on so far; the rest follows torch's documentation. torch is imported inside the functions: refusing a command
must not wait for it.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# Device type -> its common name.
NAMES = {"cuda": "CUDA", "hpu": "Gaudi (hpu)", "xpu": "Intel GPU (xpu)", "mps": "Apple GPU (mps)"}
# Device type -> backend for its tensors between ranks; "": none, so there is one rank alone.
BACKENDS = {"cpu": "gloo", "cuda": "nccl", "hpu": "hccl", "xpu": "xccl", "mps": ""}
# Device type or backend -> module that registers it with torch where torch does not find it by itself.
BRIDGES = {"hpu": "habana_frameworks.torch.core", "hccl": "habana_frameworks.torch.distributed.hccl"}


def register_backend(name: str) -> None:
    """Import the module that registers a device type or a backend with torch, if there is one and it is installed."""
    if name in BRIDGES:
        with suppress(ImportError):  # then torch has no such device, which the caller's count shows
            importlib.import_module(BRIDGES[name])


def find_accelerators() -> tuple[str, int]:
    """-> (type of this machine's accelerators, their number in torch); ("", 0) without any."""
    import torch

    kind = torch.accelerator.current_accelerator(check_available=True)
    return ("", 0) if kind is None else (kind.type, torch.accelerator.device_count())


def default_accelerator() -> str:
    """The default type of accelerator; "" for none. Apple's is never the default: it is untested, and has no float64."""
    kind, _ = find_accelerators()
    return "" if kind == "mps" else kind


def count_devices(kind: str) -> int:
    """Devices of a type that this process can use."""
    register_backend(kind)
    here, devices = find_accelerators()
    return devices if here == kind else 0


def get_device_name(device: torch.device) -> str:
    """A device's own name, "NVIDIA H100 80GB HBM3"; its type where it has none, "CPU" for a CPU."""
    if device.type == "cpu":
        return "CPU"
    ask = getattr(get_device_module(device.type), "get_device_name", None)  # Apple's has none
    return str(ask(device)) if ask is not None else NAMES.get(device.type, device.type)


def get_memory_bytes(kind: str) -> int:
    """Memory of the first device of a type; 0 if unknown."""
    import torch

    if kind == "mps":
        return int(torch.mps.recommended_max_memory())
    if (ask := getattr(get_device_module(kind), "get_device_properties", None)) is not None:
        total = getattr(ask(0), "total_memory", 0)
        if total:
            return int(total)
    ask = getattr(torch.accelerator, "get_memory_info", None)  # newer than torch 2.9
    return int(ask(0)[1]) if ask is not None else 0


def get_peak_memory(device: torch.device) -> int:
    """Peak memory of this process, bytes: an accelerator's tensors, or all of it on a CPU; 0 if unknown."""
    if device.type != "cpu":
        ask = getattr(get_device_module(device.type), "max_memory_allocated", None)
        return int(ask(device)) if ask is not None else 0
    with suppress(OSError):
        # Not getrusage: after an exec it still counts the parent's peak.
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def synchronize(device: torch.device) -> None:
    """Wait until a device has finished its work; a CPU always has."""
    if device.type != "cpu":
        get_device_module(device.type).synchronize()


def empty_cache(device: torch.device) -> None:
    """Free the memory that a device's allocator caches, and reset the peak counter."""
    for name in ("empty_cache", "reset_peak_memory_stats"):
        if (call := getattr(get_device_module(device.type), name, None)) is not None:
            call()


def set_device(device: torch.device) -> None:
    """Make a device the current one of this thread, so that nothing is created on device 0 by accident."""
    if device.type not in ("cpu", "mps"):
        get_device_module(device.type).set_device(device)


def get_device_module(kind: str) -> Any:
    """torch's module of a device type: torch.cuda, torch.xpu, ..."""
    import torch

    return torch.get_device_module(kind)


# Which torch has code for which accelerator of NVIDIA's, and which one a V100 needs.
#
# An accelerator runs machine code (sm_XY) of its own major version up to its own minor one; intermediate code (compute_XY) of any
# version up to its own it can compile itself.
# Sources: NVIDIA, CUDA C++ Programming Guide (binary and PTX compatibility); PyTorch, RELEASE.md (CUDA support matrix); what the
# wheels themselves say (results/images).


@dataclass(frozen=True)
class TorchPin:
    """Versions for an accelerator that newer ones have no code for."""

    chip: str  # what names of such accelerators contain
    capability: tuple[int, int]  # CUDA's compute capability
    torch: str
    torchvision: str
    constraints: str  # versions of every package, a path in the checkout
    why: str

    @property
    def install(self) -> str:
        """The command that installs both, to be pasted."""
        return f"pip install torch=={self.torch} torchvision=={self.torchvision}"


# PyPI's 2.9 and 2.10 are built with CUDA 12.8 and have code for it. Since 2.11 PyPI's come with CUDA 13, which knows no Volta.
V100 = TorchPin(
    "V100",
    (7, 0),
    "2.9.1",
    "0.24.1",
    "containers/constraints-v100.txt",
    "PyPI's torch does not support V100 (sm_70) since 2.11",
)


def find_torch_pin(chip: str) -> TorchPin | None:
    """What an accelerator of this name needs; None where any torch will do, or the name says nothing."""
    return V100 if V100.chip in chip else None


def supports_accelerator(capability: tuple[int, int], architectures: Iterable[str]) -> bool:
    """Whether an accelerator can run a torch built for these.

    capability     as (8, 9)
    architectures  as torch.cuda.get_arch_list() has them: "sm_80", "sm_90a", "compute_120"
    """
    for name in architectures:
        result = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name)
        if result is None:
            continue
        built = int(result[2]), int(result[3])
        if result[4]:  # for one architecture, or one family, alone
            fits = built == capability
        elif result[1] == "sm":
            fits = built[0] == capability[0] and built[1] <= capability[1]
        else:
            fits = built <= capability
        if fits:
            return True
    return False


def explain_unsupported(name: str, capability: tuple[int, int], version: str, architectures: Iterable[str]) -> str:
    """That this torch cannot compute on an accelerator, and which one can, in a sentence; "" where it can."""
    known = list(architectures)
    if not known or supports_accelerator(capability, known):
        return ""
    other = V100.install if capability == V100.capability else "install a torch built for it"
    return f"{name} is sm_{capability[0]}{capability[1]}, but torch {version} supports {', '.join(known)}. Fix: {other}"
