"""What a run costs in energy: joules of this node since the meter was opened, by what the machine itself counts or measures.

A meter of the whole machine (hwmon: acpi_power_meter, which is IPMI's reading on most servers) stands for all. Else the sum of what
there is: processor packages (RAPL: a counter of microjoules that begins again at max_energy_range_uj) and NVIDIA GPUs (NVML: a counter
of millijoules since Volta, else their watts). What is not there, or not readable (RAPL is root's on most systems), is left out and
not named; where nothing is, there are no joules. Each is read once a second by a thread, which costs some 0.1 ms.
Sources: Linux, Documentation/power/powercap/powercap.rst and hwmon/sysfs-interface.rst; NVML API reference.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.distributed.device.topology import SYSFS

if TYPE_CHECKING:
    import torch

NVML = "libnvidia-ml.so.1"
INTERVAL_SECONDS = 1.0


class EnergyCounter:
    """Joules by a counter that only grows, but for beginning again at `span`; 0 = it never does.

    read   the counter now, in units of `unit` joules; raises OSError or ValueError where it cannot be read
    """

    def __init__(self, read: Callable[[], int], *, unit: float, span: int = 0):
        self._read, self._unit, self._span = read, unit, span
        self._last, self.joules = read(), 0.0

    def look(self, seconds: float) -> None:
        """Add what came since the last look; one that goes back without a span was reset, and its joules before are unknown."""
        now = self._read()
        grown = now - self._last
        if grown < 0:
            grown = grown + self._span if self._span else 0
        self._last = now
        self.joules += grown * self._unit


class PowerSource:
    """Joules by a power that is measured: each value stands for the time since the one before."""

    def __init__(self, read: Callable[[], int], *, unit: float):
        self._read, self._unit = read, unit
        read()
        self.joules = 0.0

    def look(self, seconds: float) -> None:
        """`seconds` since the last look."""
        self.joules += self._read() * self._unit * seconds


class PowerMeter:
    """The sources of one node, added up. names: what is read, "" = nothing."""

    def __init__(self, sources: Sequence[tuple[str, EnergyCounter | PowerSource]]):
        self._sources = list(sources)
        self.names = ", ".join(dict.fromkeys(name for name, _ in sources))
        self._at, self._lock = time.monotonic(), threading.Lock()

    def joules(self) -> float:
        """Since it was opened; 0 without sources."""
        with self._lock:
            now = time.monotonic()
            seconds, self._at = now - self._at, now
            for _, source in self._sources:
                try:
                    source.look(seconds)
                except (OSError, ValueError):  # a device that has gone keeps what it had
                    continue
            return sum(source.joules for _, source in self._sources)


def find_gpu_uuids(device: torch.device, count: int) -> list[str]:
    """UUIDs of the node's first `count` GPUs, as its ranks take them; none where they are not NVIDIA's."""
    import torch

    if device.type != "cuda" or not torch.version.cuda:
        return []
    return [f"GPU-{torch.cuda.get_device_properties(index).uuid}" for index in range(min(count, torch.cuda.device_count()))]


@contextmanager
def open_power_meter(gpus: Sequence[str] = (), *, root: Path = SYSFS, proceed: bool = True) -> Iterator[PowerMeter]:
    """This node's meter, read once a second until the block ends.

    gpus     UUIDs of the GPUs that the run uses
    proceed  False: a meter that has nothing and does nothing, for a rank that is not its node's first
    """
    sources = (find_hwmon_meters(root) or [*find_rapl_packages(root), *open_nvml(gpus)]) if proceed else []
    meter, over = PowerMeter(sources), threading.Event()

    def sample() -> None:
        while not over.wait(INTERVAL_SECONDS):
            meter.joules()

    thread = threading.Thread(target=sample, name="paceline-power", daemon=True) if sources else None
    if thread:
        thread.start()
    try:
        yield meter
    finally:
        over.set()
        if thread:
            thread.join(INTERVAL_SECONDS)  # a file that does not answer keeps nobody


def find_rapl_packages(root: Path) -> list[tuple[str, EnergyCounter | PowerSource]]:
    """RAPL's package domains: cores and memory lie inside of them, or, as `psys`, around them."""
    results: list[tuple[str, EnergyCounter | PowerSource]] = []
    for folder in sorted((root / "class/powercap").glob("*-rapl:*")):
        try:
            if (folder / "name").read_text().startswith("package"):
                span = int((folder / "max_energy_range_uj").read_text())
                results.append(("RAPL", EnergyCounter(_number(folder / "energy_uj"), unit=1e-6, span=span)))
        except (OSError, ValueError):
            continue
    return results


def find_hwmon_meters(root: Path) -> list[tuple[str, EnergyCounter | PowerSource]]:
    """hwmon's meters of a whole machine, in microwatts."""
    results: list[tuple[str, EnergyCounter | PowerSource]] = []
    for folder in sorted((root / "class/hwmon").glob("hwmon*")):
        try:
            if (folder / "name").read_text().strip() != "power_meter":
                continue
            file = next(path for name in ("power1_average", "power1_input") if (path := folder / name).exists())
            results.append(("power meter", PowerSource(_number(file), unit=1e-6)))
        except (OSError, ValueError, StopIteration):
            continue
    return results


def _number(file: Path) -> Callable[[], int]:
    return lambda: int(file.read_text())


# What NVML is asked for, the first that a GPU has.
NVML_SOURCES = (
    (EnergyCounter, "nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong),
    (PowerSource, "nvmlDeviceGetPowerUsage", ctypes.c_uint),
)


def open_nvml(uuids: Sequence[str]) -> list[tuple[str, EnergyCounter | PowerSource]]:
    """NVML's counters of these GPUs, or their watts; none without the driver's library."""
    if not uuids:
        return []
    try:
        library = ctypes.CDLL(NVML)
        if library.nvmlInit_v2() != 0:
            return []
    except (OSError, AttributeError):
        return []
    results: list[tuple[str, EnergyCounter | PowerSource]] = []
    for uuid in uuids:
        device = ctypes.c_void_p()
        if library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(device)) != 0:
            continue
        for source, name, kind in NVML_SOURCES:
            with suppress(OSError, AttributeError):
                results.append(("NVML", source(partial(_read_nvml, library, device, name, kind), unit=1e-3)))
                break
    return results


def _read_nvml(library: ctypes.CDLL, device: ctypes.c_void_p, name: str, kind: type) -> int:
    value = kind()
    if (code := getattr(library, name)(device, ctypes.byref(value))) != 0:
        raise OSError(code, name)
    return int(value.value)
