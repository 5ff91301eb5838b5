"""What training should reach: published rates of accelerators, and rates that were recorded here on CPUs.

published_rates.json: others' measurements, a row each; of an accelerator's rows in a workload the first is its usual one.
cpu_rates.json: ours, of `paceline qualify` (results/qualify), with what the same cores did in three small tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from paceline.config.constraints import AboveZero, Count, ZeroOrMore, read_rows


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
