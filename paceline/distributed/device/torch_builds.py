"""Which torch has code for which accelerator of NVIDIA's, and which one a V100 needs.

An accelerator runs machine code (sm_XY) of its own major version up to its own minor one; intermediate code (compute_XY) of any
version up to its own it can compile itself.
Sources: NVIDIA, CUDA C++ Programming Guide (binary and PTX compatibility); PyTorch, RELEASE.md (CUDA support matrix); what the
wheels themselves say (results/images).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


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
    "PyPI's torch has no code for a V100 (sm_70) since 2.11",
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
    return f"{name} is sm_{capability[0]}{capability[1]}, torch {version} has code for {', '.join(known)}: {other}"
