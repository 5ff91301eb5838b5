"""Rates of training steps that were measured with paceline on a GPU, by form; and which of the forms ends a run first.

Each row names the page of results/ that has it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.config.plan import BatchPlan


@dataclass(frozen=True)
class StepRate:
    """Images per second of one form of a training step, on one NVIDIA H200 in bf16, with the batch on the device."""

    task: str
    compile: str
    graph: str
    kernels: str
    rate: float
    measured: str = "results/gpu"


RATES = (
    StepRate("classification", "on", "on", "torch", 6827),
    StepRate("classification", "on", "off", "torch", 6719),
    StepRate("classification", "off", "on", "triton", 5741),
    StepRate("classification", "off", "on", "torch", 4776),
    StepRate("classification", "off", "off", "torch", 4689),
    StepRate("classification", "off", "off", "triton", 3230),
    StepRate("ssd", "off", "on", "triton", 3198),
    StepRate("ssd", "off", "off", "triton", 2920),
    StepRate("ssd", "off", "on", "torch", 2741),
    StepRate("ssd", "off", "off", "torch", 2657),
    StepRate("maskrcnn", "off", "on", "triton", 172.1),
    StepRate("maskrcnn", "off", "off", "triton", 166.9),
    StepRate("maskrcnn", "off", "on", "torch", 111.4),
    StepRate("maskrcnn", "off", "off", "torch", 104.3),
)
# Images of a forward in these measurements.
IMAGES = {"classification": 256, "ssd": 128, "maskrcnn": 12}
# Compiling takes at most this long on COMPILE_CORES busy cores (results/gpu), and longer on fewer.
COMPILE_SECONDS, COMPILE_CORES = 120.0, 16


def find_fastest(
    task: str,
    requested: Mapping[str, str],
    plan: BatchPlan,
    *,
    compiles: bool,
    varied: bool,
    seconds: float = math.inf,
    builds: bool = True,
    cores: int = COMPILE_CORES,
) -> StepRate | None:
    """Return the row with which the run ends first, its compilation included; None if none fits what is asked.

    requested  value of --system.compile, .graph and .kernels
    compiles  whether the network can be compiled as a whole
    varied    whether the run's images have several shapes
    seconds   time budget of the run
    builds    whether the machine, which has this number of `cores`, can build kernels
    """
    rows = [
        row
        for row in RATES
        if row.task == task
        and all(requested[name] in ("auto", getattr(row, name)) for name in ("compile", "graph", "kernels"))
        and (builds or (row.compile, row.kernels) == ("off", "torch"))
        and not (row.compile == "on" and not compiles)
        # Graphs were measured on one GPU, with images of one shape.
        and not (row.graph == "on" and requested["graph"] == "auto" and (plan.world > 1 or varied))
    ]
    most = seconds * max((row.rate for row in rows), default=0.0)
    images = min(plan.stop_after * plan.global_batch / plan.world, most)
    compiling = COMPILE_SECONDS * max(1.0, COMPILE_CORES / cores)
    return min(rows, key=lambda row: images / row.rate + compiling * (row.compile == "on"), default=None)
