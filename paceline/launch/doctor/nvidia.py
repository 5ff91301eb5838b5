"""nvidia-smi's facts about a machine's GPUs: memory, driver, clocks, why they are held back, errors, and how GPUs are connected.

Readers of its text are pure; where the program or a field is absent, the answer is None or empty: "unknown", never a guess.
Source: nvidia-smi(1), --query-gpu and topo -m; NVML's header for the bits of nvmlClocksEventReasons.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ANSWER_SECONDS = 20
# Drivers before 535 know the reasons under their former name only.
REASONS_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
FIELDS = (
    "index", "name", "memory.total", "driver_version", "clocks.sm", "clocks.max.sm", "temperature.gpu", "power.draw",
    "ecc.errors.uncorrected.volatile.total",
)  # fmt: skip
# What holds a GPU back although it has work and a cool machine would not: a run is slow for it.
SLOWED = {
    0x8: "slowed down by its hardware (heat, power or an external brake)",
    0x20: "slowed down by its driver for heat",
    0x40: "slowed down by its hardware for heat",
    0x80: "slowed down by the power supply's brake",
}
# Why else clocks are below the highest: nothing is wrong.
USUAL = {0x1: "idle", 0x2: "clocks set by hand", 0x4: "at its power limit", 0x10: "synchronised", 0x100: "display"}
# A GPU's row in the matrix of topo -m; letters of its links: NV18 is NVLink, the others are PCI Express and the CPUs between.
_ROW = re.compile(r"GPU(\d+)\t(.*)")
_COLORS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Gpu:
    """One GPU as nvidia-smi sees it. None is unknown."""

    index: int
    name: str
    driver: str
    memory_mib: float | None = None
    sm_mhz: float | None = None
    most_sm_mhz: float | None = None
    celsius: float | None = None
    watts: float | None = None
    errors: float | None = None  # uncorrected memory errors since the driver was loaded
    reasons: int | None = None  # bits of SLOWED and USUAL

    def slowed(self) -> list[str]:
        """What holds it back, in words; empty where nothing does, or it is unknown."""
        return [text for bit, text in SLOWED.items() if (self.reasons or 0) & bit]

    def usual(self) -> list[str]:
        """Other reasons for its clock, in a word each."""
        return [text for bit, text in USUAL.items() if (self.reasons or 0) & bit]


def query_gpus() -> list[Gpu]:
    """All GPUs of this machine, whichever this process may use; none where there is no nvidia-smi, or it does not answer."""
    for reasons in REASONS_FIELDS:
        text = run_query(f"--query-gpu={','.join((*FIELDS, reasons))}", "--format=csv,noheader,nounits")
        if text:
            return read_gpus(text)
    return []


def query_links() -> dict[tuple[int, int], str]:
    """How each two GPUs are connected; empty where unknown."""
    return read_links(run_query("topo", "-m"))


def run_query(*words: str, program: str = "nvidia-smi") -> str:
    """Return what `PROGRAM WORDS` prints; "" if it is missing, fails, or hangs (as nvidia-smi does if a GPU fell off its bus)."""
    try:
        done = subprocess.run([program, *words], capture_output=True, text=True, errors="replace", timeout=ANSWER_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def read_gpus(text: str) -> list[Gpu]:
    """The answer to a query of FIELDS and the reasons, as csv without header and units; lines that are none are left out."""
    results = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(FIELDS) + 1 or not cells[0].isdigit():
            continue
        memory, sm, most, celsius, watts, errors = (_number(cells[location]) for location in (2, 4, 5, 6, 7, 8))
        reasons = int(cells[-1], 16) if re.fullmatch(r"0x[0-9a-fA-F]+", cells[-1]) else None
        results.append(Gpu(int(cells[0]), cells[1], cells[3], memory, sm, most, celsius, watts, errors, reasons))
    return results


def read_links(text: str) -> dict[tuple[int, int], str]:
    """The matrix that `topo -m` prints -> (GPU, later GPU) -> "NV18", "SYS", ...; empty where there is none."""
    rows: dict[int, list[str]] = {}
    for line in _COLORS.sub("", text).splitlines():
        match = _ROW.match(line)
        if match:
            rows[int(match[1])] = [cell.strip() for cell in match[2].split("\t")]
    numbers = sorted(rows)
    return {
        (one, other): rows[one][index]
        for one in numbers
        for index, other in enumerate(numbers)
        if other > one and index < len(rows[one]) and rows[one][index]
    }


def format_links(links: Mapping[tuple[int, int], str]) -> str:
    """As "NV18 between all", or each kind with the number of pairs: "16 x NV2, 12 x SYS"; "" without any."""
    kinds = Counter(links.values())
    if len(kinds) == 1:
        return f"{next(iter(kinds))} between all"
    return ", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items(), key=lambda item: (-item[1], item[0])))


def _number(cell: str) -> float | None:
    """A cell's number; None for [N/A], [Not Supported] and the like."""
    return float(cell) if re.fullmatch(r"-?\d+(\.\d+)?", cell) else None


# Whether the GPU driver is new enough for the CUDA that torch was built with.
#
# A driver runs programs of every older CUDA, and of its own major version's newer minor ones as far as they use nothing new.
# Source: NVIDIA, CUDA Compatibility (minor version compatibility).


LIBRARY = "libcuda.so.1"
VERSION_FILE = Path("/proc/driver/nvidia/version")


def get_driver_cuda() -> str:
    """The newest CUDA that this machine's driver knows, as "12.4"; "" without a driver."""
    try:
        library = ctypes.CDLL(LIBRARY)
        number = ctypes.c_int(0)
        if library.cuDriverGetVersion(ctypes.byref(number)) != 0:
            return ""
    except (OSError, AttributeError):
        return ""
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


def get_driver_version(file: Path = VERSION_FILE) -> str:
    """The kernel module's version, as "550.54.15"; "" where there is none."""
    try:
        result = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", file.read_text(errors="replace"))
    except OSError:
        return ""
    return result[1] if result else ""


def explain_old_driver(driver: str, torch: str) -> str:
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
