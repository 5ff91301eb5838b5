"""How a run ends: its status, in words why, and after which step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from paceline.config.due import Due
from paceline.config.length import schedule_in_words
from paceline.config.run import Run
from paceline.metrics.target import in_words, reached
from paceline.standing import Standing

Status = Literal["success", "ran_out", "stopped_early", "interrupted", "failed"]
# Stopping early is what --steps or --time-budget asked for, so a script that asked goes on.
EXIT_CODES: dict[Status, int] = {"success": 0, "stopped_early": 0, "ran_out": 1, "failed": 3, "interrupted": 75}


@dataclass(frozen=True)
class Ending:
    """How a run ended."""

    status: Status  # success: target reached, or no target and the whole length done
    reason: str  # in words
    step: int  # optimiser steps done, less discarded ones
    best: dict[str, float]  # best value of each metric
    run: str  # the run's folder

    @property
    def exit_code(self) -> int:
        """The command line's exit code for this status."""
        return EXIT_CODES[self.status]


class Over(Exception):
    """The run is over. Raised wherever that is found, on every rank alike; the loop ends the run in one place.

    step       after which its weights are the result; None: the newest
    discarded  steps trained past these
    """

    def __init__(self, status: Status, reason: str, *, step: int | None = None, discarded: int = 0) -> None:
        super().__init__(reason)
        self.status: Status = status
        self.reason, self.step, self.discarded = reason, step, discarded


def over_after(standing: Standing, run: Run, due: Due) -> Over | None:
    """The end that the newest evaluation brings; None when training goes on."""
    targets, plan, patience = run.recipe.quality.targets, run.plan, run.controls.patience
    if reached(targets, standing.metrics):
        return Over("success", f"target {in_words(targets)} reached")
    if 0 < patience <= standing.since_best:
        return _without_target(run, f"no better result in {patience} evaluations")
    if standing.step < due.last_step:
        return None
    if standing.step >= plan.total_steps:
        return _without_target(run, f"{standing.step:,} of {plan.total_steps:,} steps done")
    facts = [
        f"{due.why_last or 'as --steps asks,'} at step {standing.step:,} of {plan.total_steps:,}",
        schedule_in_words(run.recipe, plan, standing.step),
        f"the target {in_words(targets)} belongs to the whole run" if targets else "",
    ]
    return Over("stopped_early", "; ".join(fact for fact in facts if fact))


def _without_target(run: Run, reason: str) -> Over:
    """A run that is over and met no target."""
    target = in_words(run.recipe.quality.targets)
    return (
        Over("ran_out", f"{reason} without reaching {target}")
        if target
        else Over("success", f"{reason}; no target was set")
    )
