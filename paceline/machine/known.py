"""The machines: every system by its name for --system. One of your own needs no entry: `./my_site.py:rack7`.

`auto` asks the machine (paceline/machine/detect.py) and is the default; `cpu` and `gpu` are what is found of either. All others are
paceline/machine/machines.py's.
"""

from __future__ import annotations

from collections.abc import Callable

from paceline.config.system import System
from paceline.machine import machines
from paceline.machine.detect import auto, cpu, gpu

# Those that ask the machine, with torch's help.
DETECTED = ("auto", "cpu", "gpu")
SYSTEMS: dict[str, Callable[[], System]] = {
    "auto": auto,
    "cpu": cpu,
    "gpu": gpu,
    "dgx-h100": machines.dgx_h100,
    "dgx-a100": machines.dgx_a100,
    "dgx1": machines.dgx1,
    "dgx1-16gb": machines.dgx1_16gb,
    "dgx2": machines.dgx2,
    "dss8440": machines.dss8440,
    "c4140": machines.c4140,
    "p3dn": machines.p3dn,
    "gaudi8": machines.gaudi8,
    "gaudi2x8": machines.gaudi2x8,
    "mi300x8": machines.mi300x8,
    "h100x8": machines.h100x8,
    "h200x8": machines.h200x8,
    "a100x8": machines.a100x8,
    "v100x8": machines.v100x8,
}
