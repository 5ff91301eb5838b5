"""A job: one rank's part of a run, ready to train, with what the loop needs of it. setup.py makes it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from paceline._utils.atomic_write import write_whole
from paceline._utils.commands import to_go_on
from paceline._utils.errors import UserError
from paceline._utils.journal import cannot_write
from paceline.accelerators import peak_memory
from paceline.config.length import Due
from paceline.config.plan import evaluation_batch
from paceline.config.run import Run, seconds_in
from paceline.log.pace import Clock, Interval, Neighbours, Spikes, Stragglers
from paceline.log.recorder import Recorder
from paceline.machine.power import PowerMeter
from paceline.ranks.roles import Roles
from paceline.ranks.stop import StopVote
from paceline.ranks.world import World
from paceline.tasks.metrics.stored import intervals_at_end
from paceline.tasks.task import InputRank, Task
from paceline.training.checkpoint.background import CheckpointWriter
from paceline.training.evaluate import Evaluator, predictions_file
from paceline.training.mirror import ENDED_SECONDS, STOPPED_SECONDS, Mirror
from paceline.training.non_finite import where_it_begins
from paceline.training.standing import Standing
from paceline.training.state import State


@dataclass
class Job:
    """One rank's part of a run, ready to train."""

    run: Run
    task: Task
    roles: Roles
    place: InputRank
    state: State
    standing: Standing  # results of the evaluations so far
    evaluation_pending: bool  # the run resumes from a checkpoint whose evaluation is still to come
    recorder: Recorder
    writer: CheckpointWriter | None  # rank 0 only
    mirror: Mirror | None  # --mirror, on rank 0
    folder: Path
    clock: Clock
    interval: Interval
    due: Due
    checkpoint_facts: dict[str, Any]
    stragglers: Stragglers = field(default_factory=Stragglers)
    spikes: Spikes = field(default_factory=Spikes)
    neighbours: Neighbours = field(default_factory=Neighbours)
    power: PowerMeter = field(default_factory=lambda: PowerMeter(()))  # this node's, on its first rank
    others_joules: int = 0  # on rank 0: of the other nodes, when the last train event was written

    @property
    def world(self) -> World:
        """The ranks that do what this one does: all of them, unless some only evaluate."""
        return self.roles.peers

    def how_to_resume(self) -> str:
        """How an interrupted run is resumed, in words: a command without --out begins a new run each time."""
        if self.run.controls.out:
            return "the same command goes on from here"
        again = to_go_on(self.folder, self.run.recipe.task)
        return f"{'under the same launcher ' if self.world.world > 1 else ''}it goes on with:  {again}"

    def train_loader(self) -> Any:
        """Batches from the state's step on, as a context manager."""
        one = self.run.controls.overfit_one_batch
        return self.task.train_loader(self.run.plan, self.run.system, self.place, first=self.state.step, one_batch=one)

    def evaluator(self, vote: StopVote) -> Evaluator:
        """The evaluator of this run on this rank."""
        plan, ranks = self.run.plan, self.world.world
        return Evaluator(
            self.task,
            self.state,
            self.run.system,
            self.place,
            self.roles,
            vote,
            folder=self.folder,
            batch=evaluation_batch(plan.images_per_forward, plan.val_images, plan.evaluators),
            seconds=self.clock.seconds,
            passed=lambda images: self.recorder.scored(images * ranks),
        )

    def out_of_time(self) -> bool:
        """Whether --time-budget is used up by this rank's clock."""
        budget = seconds_in(self.run.controls.time_budget)
        return budget > 0 and self.clock.seconds() >= budget

    def own_numbers(self, seconds: float, waited: float) -> tuple[int, int, int]:
        """This rank's numbers for all ranks: microseconds of a step that are its own; its peak memory; joules of its node so far, 0
        where it is not the node's first rank.

        seconds  of a step that it computes for itself; 0 where that is not known
        """
        took = self.interval.own_microseconds(self.state.step, waited, seconds) if seconds else 0
        return took, peak_memory(self.place.device), round(self.power.joules())

    def intervals(self, status: str) -> dict[str, Any]:
        """Of the best evaluation's scores, for the `end` event of a run that is over; {} where the photos are many."""
        if status in ("interrupted", "failed") or not self.world.is_main or self.standing.best_step < 0:
            return {}
        found = intervals_at_end(predictions_file(self.folder, self.standing.best_step))
        return {"intervals": found, "intervals_step": self.standing.best_step} if found else {}

    def joules(self) -> dict[str, Any]:
        """Energy since this start, for the `end` event: of this node until now, of others until the last train event."""
        if not self.power.names:
            return {}
        return {"joules": round(self.power.joules()) + self.others_joules, "joules_by": self.power.names}

    def facts_of_ranks(self, ranks: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Facts of a train event from every rank's `own_numbers`; warns of a rank that holds up the others."""
        seconds, peak = [took / 1e6 for took, _, _ in ranks], max(bytes_ for _, bytes_, _ in ranks)
        self.others_joules = sum(joules for _, _, joules in ranks[1:])
        facts: dict[str, Any] = {"peak_memory": peak} if peak else {}
        if len(ranks) > 1 and all(seconds):
            facts |= {"rank_seconds": seconds, "slowest_rank": max(range(len(seconds)), key=seconds.__getitem__)}
            if warning := self.stragglers.look(seconds):
                self.recorder.warning(warning)
        return facts

    def facts_of_step(self, sizes: dict[str, Any]) -> dict[str, Any]:
        """Facts of a train event about the size of its step; warns of a gradient far above those before."""
        times = self.spikes.look(sizes["gradient_norm"]) if sizes else 0.0
        if not times:
            return sizes
        self.recorder.warning(
            f"note: the gradient's norm of step {self.state.step:,} is {sizes['gradient_norm']:.3g}, {times:.3g} times the median of "
            "the readings before"
        )
        return sizes | {"gradient_spike": times}

    def seconds_left(self, images_per_second: float) -> float:
        """Seconds until the last step at this pace, or until --time-budget is used up where that comes first."""
        plan, budget = self.run.plan, seconds_in(self.run.controls.time_budget)
        left = (plan.stop_after - self.state.step) * plan.global_batch / max(images_per_second, 1e-9)
        return max(0.0, min(left, budget - self.clock.seconds())) if budget else left

    def report_mirror(self) -> None:
        """Print the mirror's warnings since the last call."""
        for line in self.mirror.warnings() if self.mirror is not None else ():
            self.recorder.warning(line)

    def finish_mirror(self, status: str) -> dict[str, Any]:
        """Wait, within bounds, until the mirror has the last checkpoint; -> its facts for the `end` event."""
        if self.mirror is None:
            return {}
        self.recorder.doing("waiting for the mirror")
        facts = self.mirror.catch_up(STOPPED_SECONDS if status == "interrupted" else ENDED_SECONDS)
        self.report_mirror()
        return {"mirror": facts}

    def fail(self, reason: str) -> None:
        """Write the `end` event of a run that broke, unless it has one."""
        with suppress(UserError):  # the folder itself may be gone, and the reason says more
            self.recorder.fail(self.state.step, self.clock.seconds(), best=self.standing.best, reason=reason)

    def explain_non_finite(self, step: int, means: dict[str, float], what: Literal["loss", "gradient"] = "loss") -> str:
        """Write the facts that explain a non-finite loss into the run's folder; -> a message about it.

        step  0-based; the file and the message have the number of logs and checkpoints, which count completed steps
        """
        files = self.task.images_of_step(0 if self.run.controls.overfit_one_batch else step)
        facts = {"step": step + 1, "losses": {name: str(value) for name, value in means.items()}, "images": files}
        bundle, begins = self.folder / f"non-finite-step-{step + 1:06d}.json", ""
        if self.world.is_main:
            try:
                write_whole(bundle, json.dumps(facts, indent=2))
            except OSError as error:
                raise cannot_write(bundle, error) from error
            if self.writer is not None:
                self.writer.wait()
            begins = where_it_begins(self.run, self.task, self.folder, self.place, step)
        return (
            f"the {what} of step {step + 1:,} is not finite; its {len(files)} images are named in {bundle.name}. {begins} "
            "Usual causes, in order: an lr for another batch, too short a warm-up, fp16 without a dynamic loss scale."
        )

    def write_report(self) -> None:
        """Write RUN/report.html, on rank 0; where that fails, a warning is printed, and the run's ending stays the same."""
        if self.world.is_main:
            from paceline.pages.page import write_report

            try:
                line = f"report: {write_report(self.folder, self.task.workload)}"
            except (UserError, OSError) as error:
                again = f"paceline report {shlex.quote(str(self.folder))}"
                line = f"no report ({' '.join(str(error).split())}) The run is whole; once that is mended:  {again}"
            self.recorder.warning(line)
