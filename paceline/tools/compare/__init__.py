"""Comparison of runs: what each came to, and the search for the first step and tensor at which two of them differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline._utils.reporter import Lines
from paceline.config.run import RunRecord, read_run
from paceline.models.registry import WORKLOADS
from paceline.training.logging.events import get_metrics, read_events


@dataclass(frozen=True)
class RunSummary:
    """One run: its folder, what `paceline runs` prints of it in JSON's types, its run.json, and the metrics of its evaluations."""

    folder: Path
    row: Mapping[str, Any]
    facts: RunRecord
    evaluations: Sequence[Mapping[str, float]]

    @property
    def scored(self) -> list[Mapping[str, float]]:
        """The evaluations that have the headline's number."""
        return [one for one in self.evaluations if math.isfinite(one.get(self.row["headline"], math.nan))]

    @property
    def best(self) -> Mapping[str, float]:
        """The metrics of the best evaluation by the headline; {} without any."""
        return max(self.scored, key=lambda one: one[self.row["headline"]], default={})


def summarize_run(folder: Path, damaged: list[str]) -> RunSummary:
    """What run.json and the events of a run say.

    damaged   gets a line about events that are left out
    Raises PacelineError for a folder whose run.json is none, or not as it was written.
    """
    facts = read_run(folder)
    events = read_events(folder / "events.jsonl", Lines(damaged.append))
    last = events[-1] if events else {"event": "", "step": 0, "seconds": 0.0}
    workload = WORKLOADS.get(str(facts.recipe.get("task")))
    scores = [get_metrics(event) for event in events if event["event"] == "eval"]
    # A workload of one's own has a headline that its run does not name, boxes alone no mask_ap: the first metric then.
    first = next(iter(scores[0]), "") if scores else ""
    usual = workload.reporting.headline if workload is not None else ""
    headline = usual if usual and (not scores or usual in scores[0]) else first
    values = [result[headline] for result in scores if headline in result]
    row = {
        "name": folder.resolve().name,
        "recipe": facts.name,
        "status": last["status"] if last["event"] == "end" else "unfinished",
        "step": last["step"],
        # The recipe's length, whatever ended the run or cut it short: --max-steps is one command's, and the last one's alone is kept.
        "steps": facts.plan.get("total_steps"),
        "headline": headline,
        "best": max((value for value in values if not math.isnan(value)), default=None),
        "synthetic": bool(facts.options.get("synthetic")),
        "seconds": last["seconds"],
        "started": facts.started,
    }
    return RunSummary(folder, row, facts, scores)
