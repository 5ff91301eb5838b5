"""A job: one rank's part of a run, ready to train. What the loop asks of it stands here; how it is made, in setup.py."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from paceline.accelerators import peak_memory
from paceline.checkpoint.writer import CheckpointWriter
from paceline.config.errors import UserError
from paceline.config.length import schedule_in_words
from paceline.config.run import Run, seconds_in
from paceline.config.whole import write_whole
from paceline.dist.roles import Roles
from paceline.dist.stop import StopVote
from paceline.dist.world import World
from paceline.evaluate import run_inference
from paceline.log.lines import cannot_write
from paceline.log.pace import Clock, Interval, Stragglers
from paceline.log.recorder import Recorder
from paceline.metrics.target import in_words
from paceline.own_time import OwnTime
from paceline.scoring import Scoring, ScoringElsewhere
from paceline.state import State
from paceline.tasks.task import Evaluation, Place, Score, Task


@dataclass(frozen=True)
class Pending:
    """An evaluation whose result is not known yet."""

    step: int  # of the weights that are scored
    scoring: Scoring | ScoringElsewhere
    inference_seconds: float  # of these ranks
    went_on: float  # the run's seconds when training could go on


@dataclass
class Job:
    """One rank's part of a run, ready to train."""

    run: Run
    task: Task
    roles: Roles
    place: Place
    state: State
    recorder: Recorder
    writer: CheckpointWriter | None  # rank 0 only
    folder: Path
    clock: Clock
    interval: Interval
    checkpoint_facts: dict[str, Any]
    log_every: int
    save_every: int
    warm_up_due: bool
    eval_batch: int
    last_step: int = 0
    why_here: str = ""
    pending: Pending | None = None
    stragglers: Stragglers = field(default_factory=Stragglers)
    _eval_steps: set[int] = field(default_factory=set)

    @property
    def world(self) -> World:
        """The ranks that do what this one does: all of them, unless some only evaluate."""
        return self.roles.fellows

    @property
    def target(self) -> str:
        """The quality target in words; empty without one."""
        return in_words(self.run.recipe.quality.targets)

    def train_loader(self) -> Any:
        """Batches from the state's step on; a context manager."""
        one = self.run.controls.overfit_one_batch
        return self.task.train_loader(self.run.plan, self.run.system, self.place, first=self.state.step, one_batch=one)

    def log_due(self) -> bool:
        """Whether a train event follows this step."""
        return self.state.step % self.log_every == 0 or self.state.step >= self.last_step

    def evaluation_due(self) -> bool:
        """Whether an evaluation follows this step."""
        return self.state.step in self._eval_steps or self.state.step >= self.last_step

    def save_due(self) -> bool:
        """Whether a checkpoint follows this step (an evaluation saves one anyway)."""
        return self.state.step % self.save_every == 0

    def result_due(self) -> bool:
        """Whether a result still pending is taken after this step: before anything of a later step is written down."""
        ends = self.recorder.epoch_ends(self.state.step)
        return self.log_due() or self.evaluation_due() or self.save_due() or ends

    def begin_evaluation(self, autocast: Callable[[], AbstractContextManager], vote: StopVote) -> bool:
        """Run inference and start the scoring, which is `pending` then; False when it was told to stop.

        Where ranks only evaluate, they are handed the weights instead.
        """
        state, step = self.state, self.state.step
        self.recorder.evaluation_begins(step)
        score = None
        with self.interval.paused() as pause, ExitStack() as weights:
            weights.enter_context(state.averaged(self.world))
            if state.average is not None:
                weights.enter_context(state.average.applied())
            if self.roles.evaluators:
                self.roles.order(evaluate=step)
                self.roles.hand_over(state.model.state_dict().values())
            else:
                score = self.infer(autocast, vote)
        if self.roles.evaluators:
            elsewhere = ScoringElsewhere(self.roles, step, vote.stopping_here)
            self.pending = Pending(step, elsewhere, 0.0, self.clock.seconds())
            return True
        if score is None:
            return False
        self.pending = Pending(step, self.scoring(step, score), pause.seconds, self.clock.seconds())
        return True

    def infer(self, autocast: Callable[[], AbstractContextManager], vote: StopVote) -> Score | None:
        """This rank's share of an evaluation of the weights that the model holds; None when the ranks were told to stop."""
        return run_inference(
            self.state.model,
            self.task,
            batch=self.eval_batch,
            system=self.run.system,
            place=self.place,
            autocast=autocast,
            vote=vote,
            passed=lambda images: self.recorder.scored(images * self.world.world),
        )

    def scoring(self, step: int, score: Score) -> Scoring:
        """The scoring of what these ranks collected in the evaluation of `step`, begun; its predictions are written."""
        return Scoring(self.task, self.world, score, f"step-{step}", lambda found: self.write_predictions(step, found))

    def out_of_time(self) -> bool:
        """Whether --time-budget is used up by this rank's clock."""
        budget = seconds_in(self.run.controls.time_budget)
        return budget > 0 and self.clock.seconds() >= budget

    def own_numbers(self, own_time: OwnTime | None, waited: float) -> tuple[int, int]:
        """Of this rank, for all to see: microseconds that it takes for itself of a step, 0 for a rank alone, and its peak memory."""
        seconds = 0.0 if own_time is None else own_time.seconds()
        took = self.interval.own_microseconds(self.state.step, waited, seconds) if seconds else 0
        return took, peak_memory(self.place.device)

    def facts_of_ranks(self, ranks: Sequence[Sequence[int]]) -> dict[str, Any]:
        """What a train event says of every rank's `own_numbers`; a rank that holds up the others is told of."""
        seconds, peak = [took / 1e6 for took, _ in ranks], max(bytes_ for _, bytes_ in ranks)
        facts: dict[str, Any] = {"peak_memory": peak} if peak else {}
        if len(ranks) > 1 and all(seconds):
            facts |= {"rank_seconds": seconds, "slowest_rank": max(range(len(seconds)), key=seconds.__getitem__)}
            if said := self.stragglers.look(seconds):
                self.recorder.tell(said)
        return facts

    def seconds_left(self, images_per_second: float) -> float:
        """Until the last step at this pace, or until --time-budget is used up where that comes first."""
        plan, budget = self.run.plan, seconds_in(self.run.controls.time_budget)
        left = (plan.stop_after - self.state.step) * plan.global_batch / max(images_per_second, 1e-9)
        return max(0.0, min(left, budget - self.clock.seconds())) if budget else left

    def end_here(self, why: str) -> None:
        """Make this step the run's last: it is evaluated and saved as the last step always is."""
        self.last_step, self.why_here = self.state.step, why

    def end_of_steps(self) -> tuple[Literal["success", "ran_out", "stopped_early"], str]:
        """Status and reason of the end after the last step of this run, at which no target was met."""
        plan, step = self.run.plan, self.state.evaluated_step
        if step >= plan.total_steps:
            return self.end_without_target(f"{step:,} of {plan.total_steps:,} steps done")
        facts = [
            f"{self.why_here or 'as --steps asks,'} at step {step:,} of {plan.total_steps:,}",
            schedule_in_words(self.run.recipe, plan, step),
            f"the target {self.target} belongs to the whole run" if self.target else "",
        ]
        return "stopped_early", "; ".join(fact for fact in facts if fact)

    def end_without_target(self, reason: str) -> tuple[Literal["success", "ran_out"], str]:
        """Status and reason of an end of a run that is over and met no target."""
        if not self.target:
            return "success", f"{reason}; no target was set"
        return "ran_out", f"{reason} without reaching {self.target}"

    def fail(self, reason: str) -> None:
        """Write the `end` event of a run that broke, unless it has one."""
        with suppress(UserError):  # the folder itself may be what is gone, and the reason says more
            self.recorder.fail(self.state.step, self.clock.seconds(), best=self.state.best, reason=reason)

    def explain_non_finite(self, step: int, means: dict[str, float], what: Literal["loss", "gradient"] = "loss") -> str:
        """Write down what is needed to look at a non-finite loss, and say it in a line."""
        files = self.task.images_of_step(step)
        facts = {"step": step, "losses": {name: str(value) for name, value in means.items()}, "images": files}
        bundle = self.folder / f"non-finite-step-{step:06d}.json"
        if self.world.is_main:
            try:
                bundle.write_text(json.dumps(facts, indent=2))
            except OSError as error:
                raise cannot_write(bundle, error) from error
        return (
            f"the {what} of step {step:,} is not finite; its {len(files)} images are named in {bundle.name}. "
            "Usual causes, in order: an lr for another batch, too short a warm-up, fp16 without a dynamic loss scale."
        )

    def write_predictions(self, step: int, result: Evaluation) -> None:
        """RUN/predictions/step-N.json, whole or not at all: what the report's pictures are made of.

        Raises UserError where it cannot be written.
        """
        file = self.folder / "predictions" / f"step-{step:06d}.json"
        try:
            file.parent.mkdir(exist_ok=True)
            write_whole(file, json_in_pieces({"step": step, **result.predictions}))
        except OSError as error:
            raise cannot_write(file, error) from error

    def write_report(self) -> None:
        """RUN/report.html, on rank 0."""
        if self.world.is_main:
            from paceline.report.page import write_report

            try:
                page = write_report(self.folder, self.task.workload)
            except OSError as error:
                raise cannot_write(self.folder / "report.html", error) from error
            self.recorder.tell(f"report: {page}")


def json_in_pieces(facts: Mapping[str, Any]) -> Iterator[str]:
    """The text of a JSON object, each of its lists item by item.

    Encoding one value holds the interpreter's lock to its end; of thousands of images that would stop training for seconds.
    """
    for number, (name, value) in enumerate(facts.items()):
        yield f"{', ' if number else '{'}{json.dumps(name)}: "
        if isinstance(value, list) and value:
            yield from (f"{', ' if place else '['}{json.dumps(item)}" for place, item in enumerate(value))
            yield "]"
        else:
            yield json.dumps(value)
    yield "}"
