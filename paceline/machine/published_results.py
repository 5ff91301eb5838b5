"""What the published systems measured: epochs and minutes to the target, and images per second of one accelerator.

Others' measurements, computed from their public logs (MLPerf Training v0.7 to v4.0); ours stand in results/.
Minutes: from run_start to run_stop, the mean without the fastest and the slowest of five runs.
Rate: of training alone, evaluations left out, over the accelerators that train (of 384 H100, 256).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from paceline.config.bounds import AboveZero, Count, ZeroOrMore
from paceline.config.table import read_rows
from paceline.machine.published import Workload


@dataclass(frozen=True)
class Result:
    """One published row."""

    workload: Workload  # what was learned
    system: str  # name in SYSTEMS that the machine is, or is like
    nodes: Count  # machines
    accelerators: Count  # that train
    global_batch: Count  # images of one step
    epochs: AboveZero  # to the target; the median where runs differ
    minutes: AboveZero  # to the target
    rate: ZeroOrMore  # images per second of one training accelerator; 0 = not logged
    source: str  # round, submitter and system, software
    recipe: str = ""  # ours with the same settings; empty where the row has others, or does not tell them


RESULTS = read_rows(Path(__file__).with_suffix(".json"), Result)


def results_of(workload: str, system_name: str, recipe_name: str = "") -> list[Result]:
    """The published results of a workload on a system, by number of nodes; those with a recipe's own settings where named."""
    found = [
        result
        for result in RESULTS
        if (result.workload, result.system) == (workload, system_name) and recipe_name in ("", result.recipe)
    ]
    return sorted(found, key=lambda result: result.nodes)
