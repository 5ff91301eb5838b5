"""What training should reach: published rates of accelerators, and rates that were recorded here on CPUs.

published_rates.json: others' measurements, a row each; of an accelerator's rows in a workload the first is its usual one.
cpu_rates.json: ours, of `paceline check-performance` (results/qualify), with what the same cores did in three small tests.
RATES: ours, of training steps on a GPU, by form; which of the forms ends a run first. Each row names the page of results/ that has it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from paceline.config.constraints import AboveZero, Count, ZeroOrMore, read_rows
from paceline.config.plan import BatchPlan


@dataclass(frozen=True)
class ReferenceRate:
    """One row."""

    workload: str  # what was learned; or "matmul" (TFLOP/s in half precision), "copy" (TB/s, read and written)
    accelerator: str  # as its name begins behind its maker's
    count: Count  # accelerators that trained together
    rate: AboveZero  # images per second of one of them
    seconds: ZeroOrMore  # to the target; 0 = not published
    program: Literal["fused", "plain", "bare"]  # with fused kernels of its own, a framework's, or no training
    source: str  # round, submitter, software


@dataclass(frozen=True)
class RecordedCpuRate:
    """What one core of a CPU does by its own computing time, whoever else wants it."""

    cpu: str  # its name
    machine: str  # in words
    tests: Mapping[str, float]  # matmul GFLOP/s, copy GB/s, inflate MB/s
    cpu_seconds: Mapping[str, float]  # of one image in each measurement; an idle core makes 1 / that of them a second
    all_reduce: AboveZero  # GB/s of bus bandwidth between two ranks


PUBLISHED = read_rows(Path(__file__).with_name("published_rates.json"), ReferenceRate)
RECORDED = read_rows(Path(__file__).with_name("cpu_rates.json"), RecordedCpuRate)


def usual_rates(workload: str) -> dict[str, float]:
    """Accelerator, in small letters -> images per second of one."""
    result: dict[str, float] = {}
    for row in PUBLISHED:
        if row.workload == workload:
            result.setdefault(row.accelerator.lower(), row.rate)
    return result


def find_reference_rate(workload: str, device: str, count: int) -> ReferenceRate | None:
    """The row to judge a device by: of a plain program where there is one, of the nearest number of devices.

    device  as torch calls it, e.g. "NVIDIA H100 80GB HBM3"; None for a card of the same name on PCI Express, which is another chip
    """
    words = device.replace("-", " ").upper().split()
    if {"PCIE", "NVL"} & set(words):
        return None
    rows = [row for row in PUBLISHED if row.workload == workload and row.accelerator.upper() in words]
    return min(rows, key=lambda row: (row.program == "fused", abs(row.count - count)), default=None)


def find_recorded_rate(cpu: str) -> RecordedCpuRate:
    """The row of a CPU of this name, else the first."""
    return next((row for row in RECORDED if row.cpu == cpu), RECORDED[0])


@dataclass(frozen=True)
class StepRate:
    """Images per second of one form of a training step, on one NVIDIA H200 in bf16, with the batch on the device."""

    task: str  # the recipe's
    compile: str  # on or off, as of System
    cuda_graph: str  # on or off
    kernels: str  # torch or triton
    rate: float  # images per second
    measured: str = "results/gpu"  # the page that has it


RATES = (
    StepRate("classification", "on", "on", "torch", 6827),
    StepRate("classification", "on", "off", "torch", 6719),
    StepRate("classification", "off", "on", "triton", 5741),
    StepRate("classification", "off", "on", "torch", 4776),
    StepRate("classification", "off", "off", "torch", 4689),
    StepRate("classification", "off", "off", "triton", 3230),
    StepRate("detection", "off", "on", "triton", 3198),
    StepRate("detection", "off", "off", "triton", 2920),
    StepRate("detection", "off", "on", "torch", 2741),
    StepRate("detection", "off", "off", "torch", 2657),
    StepRate("instance-segmentation", "off", "on", "triton", 172.1),
    StepRate("instance-segmentation", "off", "off", "triton", 166.9),
    StepRate("instance-segmentation", "off", "on", "torch", 111.4),
    StepRate("instance-segmentation", "off", "off", "torch", 104.3),
)
# Images of a forward in these measurements.
IMAGES = {"classification": 256, "detection": 128, "instance-segmentation": 12}
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

    requested  values of --system.compile, --system.cuda-graph and --system.kernels
    compiles  whether the network can be compiled as a whole
    varied    whether the run's images have several shapes
    seconds   time budget of the run
    builds    whether the machine, which has this number of `cores`, can build kernels
    """
    rows = [
        row
        for row in RATES
        if row.task == task
        and all(requested[name] in ("auto", getattr(row, name)) for name in ("compile", "cuda_graph", "kernels"))
        and (builds or (row.compile, row.kernels) == ("off", "torch"))
        and not (row.compile == "on" and not compiles)
        # Graphs were measured on one GPU, with images of one shape.
        and not (row.cuda_graph == "on" and requested["cuda_graph"] == "auto" and (plan.world_size > 1 or varied))
    ]
    most = seconds * max((row.rate for row in rows), default=0.0)
    images = min(plan.stop_after * plan.global_batch_size / plan.world_size, most)
    compiling = COMPILE_SECONDS * max(1.0, COMPILE_CORES / cores)
    return min(rows, key=lambda row: images / row.rate + compiling * (row.compile == "on"), default=None)
