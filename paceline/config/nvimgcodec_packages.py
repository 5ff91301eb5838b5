"""nvImageCodec's packages: which of them fits the installed torch. Standard library only.

NVIDIA builds one for each major version of CUDA. Both write the same files: of two that are installed the later one is there, and
removing either leaves none. A region's pixels on a CPU are the same from both; on a device the package must be for torch's CUDA,
since a driver that runs torch may be too old for a newer one. No requirement of ours can follow torch's CUDA: markers know nothing
of it, and a bound on CUDA's own packages would let pip replace the torch. So there are two extras.
"""

from __future__ import annotations

import importlib.metadata
import runpy
from importlib.util import find_spec
from pathlib import Path

from paceline.config.commands import EXTRAS, to_install

# Major version of CUDA -> the extra whose package is for it (config/commands.py). The first is for a torch without CUDA too.
_EXTRAS = {13: "fast", 12: "fast-cu12"}


def cuda_of_torch() -> int | None:
    """The major version of CUDA that the installed torch is built for; None where it is built without, or not there."""
    torch = find_spec("torch")
    if torch is None or torch.origin is None:
        return None
    version = runpy.run_path(str(Path(torch.origin).with_name("version.py"))).get("cuda")
    return int(version.partition(".")[0]) if version else None


def installed_packages() -> dict[int, str]:
    """Major version of CUDA -> nvImageCodec's package for it, of those that are installed."""
    found = {}
    for cuda, extra in _EXTRAS.items():
        name = EXTRAS[extra][0].partition("[")[0]
        try:
            importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        found[cuda] = name
    return found


def to_install_nvimgcodec() -> str:
    """The command that installs what fits the installed torch, and removes first what does not; to be pasted."""
    install = to_install(_EXTRAS.get(cuda_of_torch() or 0, "fast"))
    # What is left of two packages is broken by removing one, so both go.
    there = installed_packages().values()
    return f"pip uninstall -y {' '.join(there)} && {install}" if there else install


def misfit() -> str:
    """Why the installed nvImageCodec cannot decode on this torch's device, with the command that mends it; "" where nothing is wrong.

    On a CPU one package for another CUDA decodes as well as the right one.
    """
    there, cuda = installed_packages(), cuda_of_torch()
    if len(there) > 1:
        return f"{' and '.join(there.values())} write the same files, install one alone:  {to_install_nvimgcodec()}"
    if there and cuda in _EXTRAS and cuda not in there:
        (built,) = there
        return (
            f"{there[built]} is for CUDA {built}, torch is built for CUDA {cuda}: fit for the CPU alone. For a device:  "
            f"{to_install_nvimgcodec()}"
        )
    return ""
