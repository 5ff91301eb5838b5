"""Where a run came from: versions, command, host, commit, data. Written into run.json, shown by the report."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from paceline._utils.version import PACKAGE, __version__
from paceline.distributed.device.accelerators import find_accelerators, get_device_name

PACKAGES = (
    "torch",
    "torchvision",
    "numpy",
    "pillow",
    "simplejpeg",
    "nvidia-nvimgcodec-cu13",
    "safetensors",
    "hotcoco",
    "mlperf-logging",
    "timm",
)
# The oldest and the newest torch that the suite has run on; docs/tutorials/install.md has the table.
TESTED_TORCH = ((2, 9), (2, 15))


def collect_versions() -> dict[str, str]:
    """Versions of everything that can change a result; absent packages are left out."""
    import torch

    result = {"paceline": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            result[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    if torch.version.cuda:
        result["cuda"] = torch.version.cuda
    return result


def warn_untested_torch(version: str) -> str:
    """A line about a torch older or newer than all that the suite has run on; "" for any other, and for a version in no known form."""
    results = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    oldest, newest = TESTED_TORCH
    if len(results) < 2 or oldest <= results <= newest:
        return ""
    known = " to ".join(f"{major}.{minor}" for major, minor in TESTED_TORCH)
    return f"note: torch {version} is not tested (tested: {known}; docs/tutorials/install.md). If results differ, use one of these."


def get_git_commit() -> str:
    """Commit of the source tree this package runs from, with "+changes" when it was edited; empty for an installed wheel."""
    root = PACKAGE.parent
    if not (root / ".git").exists():
        return ""
    try:
        commit = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "-C", str(root), "status", "--porcelain", "--untracked-files=no"],
            capture_output=True, text=True, timeout=5, check=True,
        ).stdout.strip()  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""  # no git here, or a repository that it will not read: the versions still say what ran
    return commit + ("+changes" if changed else "")


def describe_host() -> dict[str, Any]:
    """The machine rank 0 runs on."""
    import torch

    facts: dict[str, Any] = {
        "name": platform.node(),
        "system": platform.platform(),
        "cpu": get_cpu_name(),
        "cores": os.cpu_count(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
    kind, devices = find_accelerators()
    if devices:
        facts["accelerators"] = [get_device_name(torch.device(kind, index)) for index in range(devices)]
    return facts


def get_cpu_name() -> str:
    """The processor's model name, as the operating system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def collect_provenance(
    command: str,
    launcher: str,
    *,
    threads: Mapping[str, int],
    data: Mapping[str, Any],
    classes: Sequence[str],
    memory: Mapping[str, Any],
) -> dict[str, Any]:
    """The part of run.json that repeats nothing but explains everything."""
    return {
        "versions": collect_versions(),
        "command": command or " ".join(sys.argv),
        "git_commit": get_git_commit(),
        "host": describe_host(),
        "launcher": launcher,
        "threads": dict(threads),
        "data": dict(data),
        "classes": list(classes),
        "memory_estimate": dict(memory),
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
