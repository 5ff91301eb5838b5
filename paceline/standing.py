"""Where a run stands: what its evaluations have found so far, the best among them.

It follows from the `eval` events alone (log/events.py), which are on the disk before anything else learns of a result. So no
checkpoint holds it, and none is ever changed: a run that goes on reads it from the events up to its checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import nan
from typing import Any

from paceline.log.events import metrics_of
from paceline.metrics.target import better


@dataclass
class Standing:
    """The results of a run's evaluations, remembered one after another."""

    headline: str  # the metric that decides which one is the best
    step: int = -1  # of the newest evaluation: of the weights that it scored
    metrics: dict[str, float] = field(default_factory=dict)  # of the newest evaluation
    best: dict[str, float] = field(default_factory=dict)  # best value of each metric so far
    best_step: int = -1  # where the headline metric was best
    since_best: int = 0  # evaluations since then
    discarded_steps: int = 0  # steps trained past the newest evaluation, where it ended the run

    @classmethod
    def of_events(cls, headline: str, events: Iterable[Mapping[str, Any]]) -> Standing:
        """What the `eval` events among `events`, oldest first, amount to."""
        standing = cls(headline)
        for event in events:
            if event["event"] == "eval":
                standing.remember(event["step"], metrics_of(event))
                standing.discarded_steps = event.get("discarded_steps", 0)
        return standing

    def remember(self, step: int, metrics: Mapping[str, float]) -> bool:
        """The result of the evaluation after `step` steps; -> whether it is the best so far."""
        known = {name: value for name, value in self.best.items() if value == value}  # synthetic batches bring NaN
        is_best = better(metrics.get(self.headline, nan), known.get(self.headline))
        self.step, self.metrics, self.discarded_steps = step, dict(metrics), 0
        self.best |= {name: value for name, value in metrics.items() if name not in known or value > known[name]}
        self.best_step = step if is_best else self.best_step
        self.since_best = 0 if is_best else self.since_best + 1
        return is_best
