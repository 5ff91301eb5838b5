"""Track the evaluations of a run, find the best one, and decide when the run ends.

Results are stored only in the `eval` events (training/logging/events.py), which are written to disk before any other code uses a
result. Checkpoints do not contain results, and no checkpoint is ever changed. A resumed run reads the events up to its checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from typing import Any, Literal

from paceline._utils.commands import resume_command
from paceline.config.run import RunSpec
from paceline.config.run_length import Cadence, format_schedule_progress
from paceline.distributed.comm.exit_code import EXIT_CODES
from paceline.models.metrics import format_targets, is_better, meets_targets
from paceline.training.logging.events import get_metrics

Status = Literal["success", "ran_out", "stopped_early", "interrupted", "failed"]


@dataclass
class EvalHistory:
    """Store the results of the evaluations of a run."""

    headline: str  # the metric that decides which one is the best
    step: int = -1  # of the weights that the newest evaluation scored
    metrics: dict[str, float] = field(default_factory=dict)  # of the newest evaluation
    best: dict[str, float] = field(default_factory=dict)  # best value of each metric so far
    best_step: int = -1  # where the headline metric was best
    since_best: int = 0  # evaluations since then
    discarded_steps: int = 0  # steps trained past the newest evaluation, where it ended the run

    @classmethod
    def of_events(cls, headline: str, events: Iterable[Mapping[str, Any]]) -> EvalHistory:
        """Build the history from the `eval` events in `events`, oldest first."""
        standing = cls(headline)
        for event in events:
            if event["event"] == "eval":
                standing.remember(event["step"], get_metrics(event))
                standing.discarded_steps = event.get("discarded_steps", 0)
        return standing

    def remember(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Add the result of the evaluation after `step` steps. Return True if it is the best one so far."""
        known = {name: value for name, value in self.best.items() if value == value}  # synthetic batches bring NaN
        is_best = is_better(metrics.get(self.headline, nan), known.get(self.headline))
        self.step, self.metrics, self.discarded_steps = step, dict(metrics), 0
        self.best |= {name: value for name, value in metrics.items() if name not in known or value > known[name]}
        self.best_step = step if is_best else self.best_step
        self.since_best = 0 if is_best else self.since_best + 1
        return is_best


@dataclass(frozen=True)
class TrainResult:
    """Summarize a run that ended. `paceline.train` returns it.

    Attributes:
        status (str): result of the run:

            - ``"success"``: the run reached its target. A run without a target was completed or ended by `patience`.
            - ``"ran_out"``: the run was completed or ended by `patience`, and did not reach its target.
            - ``"stopped_early"``: `max_steps` or `max_time` ended the run before the end of its schedule.
            - ``"interrupted"``: a signal stopped the run. It can be resumed.
            - ``"failed"``: the loss or a gradient was not finite.
        reason (str): human-readable reason why the run ended.
        step (int): number of completed optimizer steps. Discarded steps are not counted.
        best_metrics (dict[str, float]): best value of each metric over all evaluations.
        run_dir (str): run folder, which `paceline.load` opens.
    """

    status: Status
    reason: str
    step: int
    best_metrics: dict[str, float]
    run_dir: str

    @property
    def exit_code(self) -> int:
        """int: exit code of ``paceline train`` for this status."""
        return EXIT_CODES[self.status]


class StopTraining(Exception):
    """Signal the end of the run.

    Every rank raises it at the same point, and the training loop handles it in one place.

    Args:
        status (Status): status of the run, as in `TrainResult`.
        reason (str): human-readable reason.
        step (int, optional): step whose weights are the result. Default: the newest step
        discarded (int): number of steps that were trained after `step`.
    """

    def __init__(self, status: Status, reason: str, *, step: int | None = None, discarded: int = 0) -> None:
        super().__init__(reason)
        self.status: Status = status
        self.reason, self.step, self.discarded = reason, step, discarded


def how_to_resume(run: RunSpec, folder: Path, ranks: int) -> str:
    """Describe how to resume an interrupted run.

    Without --output-dir, the original command would start a new run, so the description is another command.
    """
    if run.options.output_dir:
        return "run the same command again to resume"
    return f"resume {'under the same launcher ' if ranks > 1 else ''}with:  {resume_command(folder, run.recipe.task)}"


def check_stop(standing: EvalHistory, run: RunSpec, due: Cadence) -> StopTraining | None:
    """Return the exception that ends the run after its newest evaluation, or None if training continues."""
    targets, plan, patience = run.recipe.target, run.plan, run.options.patience
    if meets_targets(targets, standing.metrics):
        return StopTraining("success", f"target {format_targets(targets)} reached")
    if 0 < patience <= standing.since_best:
        return _without_target(run, f"no better result in {patience} evaluations")
    if standing.step < due.last_step:
        return None
    if standing.step >= plan.total_steps:
        return _without_target(run, f"{standing.step:,} of {plan.total_steps:,} steps completed")
    facts = [
        f"{due.why_last or '--max-steps reached'} at step {standing.step:,} of {plan.total_steps:,}",
        format_schedule_progress(run.recipe, plan, standing.step),
        f"the target {format_targets(targets)} applies to the complete schedule" if targets else "",
    ]
    return StopTraining("stopped_early", "; ".join(fact for fact in facts if fact))


def _without_target(run: RunSpec, reason: str) -> StopTraining:
    """Return the end of a run that did not reach a target or that has none."""
    target = format_targets(run.recipe.target)
    return (
        StopTraining("ran_out", f"{reason} without reaching {target}")
        if target
        else StopTraining("success", f"{reason}; no target was set")
    )
