"""Several seeded runs of one recipe: a RESULT line each, and what MLPerf makes of them.

MLPerf's score of five runs drops the fastest and the slowest and takes the mean of the others; a run that missed its target
counts as the slowest (MLPerf training rules, section 12, "Benchmark Results").
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.log.events import read_events
from paceline.log.prose import duration
from paceline.mlperf.logs import LEAST_FOR_MEAN, olympic_mean


@dataclass(frozen=True)
class Trial:
    """One run's end. seconds: from its start to its end; infinite where it reached no target."""

    number: int
    seed: int
    seconds: float
    status: str  # of its `end` event; "no end" where it left none
    checked: bool | None = None  # what MLPerf's compliance checker says of its log; None: it was not asked

    def line(self, name: str) -> str:
        """RESULT,recipe,trial,seed,seconds,status,checker: for scripts."""
        verdict = {True: "passed", False: "failed", None: "unchecked"}[self.checked]
        return f"RESULT,{name},{self.number},{self.seed},{self.seconds:.3f},{self.status},{verdict}"


def trial_folders(base: Path, count: int) -> list[Path]:
    """base/trial-0, base/trial-1, ..."""
    return [base / f"trial-{number}" for number in range(count)]


def read_trial(number: int, seed: int, folder: Path) -> Trial:
    """How the run in `folder` ended."""
    file = folder / "events.jsonl"
    events = read_events(file) if file.exists() else []
    if not events or events[-1]["event"] != "end":
        return Trial(number, seed, math.inf, "no end")
    end = events[-1]
    return Trial(number, seed, end["seconds"] if end["status"] == "success" else math.inf, str(end["status"]))


def summary(trials: Sequence[Trial]) -> str:
    """One line of all trials: how many reached the target, the median, and MLPerf's mean."""
    seconds = [trial.seconds for trial in trials]
    reached = sum(math.isfinite(one) for one in seconds)
    said = [f"{reached} of {len(trials)} trials reached the target", f"median {_time(statistics.median(seconds))}"]
    if len(trials) >= LEAST_FOR_MEAN:
        said.append(f"mean without fastest and slowest {_time(olympic_mean(seconds))}")
    if judged := [trial.checked for trial in trials if trial.checked is not None]:
        said.append(f"MLPerf's checker passed {sum(judged)} of {len(judged)} log{'s'[: len(judged) != 1]}")
    return ", ".join(said)


def _time(seconds: float) -> str:
    return duration(seconds) if math.isfinite(seconds) else "none (a run that missed its target is left)"
