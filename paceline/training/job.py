"""A job: one rank's part of a run, ready to train. What the loop asks of it stands here; how it is made, in setup.py."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from paceline.accelerators import peak_memory
from paceline.checkpoint.background import CheckpointWriter
from paceline.config.commands import to_go_on
from paceline.config.due import Due
from paceline.config.errors import UserError
from paceline.config.plan import evaluation_batch
from paceline.config.run import Run, seconds_in
from paceline.config.whole import write_whole
from paceline.log.lines import cannot_write
from paceline.log.pace import Clock, Interval, Spikes, Stragglers
from paceline.log.recorder import Recorder
from paceline.machine.power import PowerMeter
from paceline.ranks.roles import Roles
from paceline.ranks.stop import StopVote
from paceline.ranks.world import World
from paceline.tasks.task import InputRank, Task
from paceline.training.evaluate import Evaluator
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
    standing: Standing  # what the evaluations so far have found
    evaluation_pending: bool  # the run goes on from a checkpoint whose evaluation is to come
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
    power: PowerMeter = field(default_factory=lambda: PowerMeter(()))  # this node's, on its first rank
    others_joules: int = 0  # on rank 0: of the other nodes, when the last train event was written

    @property
    def world(self) -> World:
        """The ranks that do what this one does: all of them, unless some only evaluate."""
        return self.roles.peers

    def goes_on(self) -> str:
        """How a run that was interrupted goes on, in words: a command without --out began a run of its own each time."""
        if self.run.controls.out:
            return "the same command goes on from here"
        again = to_go_on(self.folder, self.run.recipe.task)
        return f"{'under the same launcher ' if self.world.world > 1 else ''}it goes on with:  {again}"

    def train_loader(self) -> Any:
        """Batches from the state's step on; a context manager."""
        one = self.run.controls.overfit_one_batch
        return self.task.train_loader(self.run.plan, self.run.system, self.place, first=self.state.step, one_batch=one)

    def evaluator(self, vote: StopVote) -> Evaluator:
        """What evaluates this run on this rank."""
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
        """Of this rank, for all to see: microseconds that it takes for itself of a step; its peak memory; joules of its node so far, 0
        where it is not the node's first.

        seconds  that it computes for itself; 0 where that is not known
        """
        took = self.interval.own_microseconds(self.state.step, waited, seconds) if seconds else 0
        return took, peak_memory(self.place.device), round(self.power.joules())

    def joules(self) -> dict[str, Any]:
        """What the `end` event says of energy since this start: of this node until now, of others until the last train event."""
        if not self.power.names:
            return {}
        return {"joules": round(self.power.joules()) + self.others_joules, "joules_by": self.power.names}

    def facts_of_ranks(self, ranks: Sequence[Sequence[int]]) -> dict[str, Any]:
        """What a train event says of every rank's `own_numbers`; a rank that holds up the others is told of."""
        seconds, peak = [took / 1e6 for took, _, _ in ranks], max(bytes_ for _, bytes_, _ in ranks)
        self.others_joules = sum(joules for _, _, joules in ranks[1:])
        facts: dict[str, Any] = {"peak_memory": peak} if peak else {}
        if len(ranks) > 1 and all(seconds):
            facts |= {"rank_seconds": seconds, "slowest_rank": max(range(len(seconds)), key=seconds.__getitem__)}
            if said := self.stragglers.look(seconds):
                self.recorder.warning(said)
        return facts

    def facts_of_step(self, sizes: dict[str, Any]) -> dict[str, Any]:
        """What a train event says of how large its step was; a gradient far above those before is told of."""
        times = self.spikes.look(sizes["gradient_norm"]) if sizes else 0.0
        if not times:
            return sizes
        self.recorder.warning(
            f"note: the gradient's norm of step {self.state.step:,} is {sizes['gradient_norm']:.3g}, {times:.3g} times the median of "
            "the readings before"
        )
        return sizes | {"gradient_spike": times}

    def seconds_left(self, images_per_second: float) -> float:
        """Until the last step at this pace, or until --time-budget is used up where that comes first."""
        plan, budget = self.run.plan, seconds_in(self.run.controls.time_budget)
        left = (plan.stop_after - self.state.step) * plan.global_batch / max(images_per_second, 1e-9)
        return max(0.0, min(left, budget - self.clock.seconds())) if budget else left

    def pass_on_news(self) -> None:
        """Tell people what the mirror has to say."""
        for line in self.mirror.news() if self.mirror is not None else ():
            self.recorder.warning(line)

    def mirrored(self, status: str) -> dict[str, Any]:
        """Wait, within bounds, until the mirror has the last checkpoint; -> what the `end` event says of it."""
        if self.mirror is None:
            return {}
        self.recorder.doing("waiting for the mirror")
        facts = self.mirror.catch_up(STOPPED_SECONDS if status == "interrupted" else ENDED_SECONDS)
        self.pass_on_news()
        return {"mirror": facts}

    def fail(self, reason: str) -> None:
        """Write the `end` event of a run that broke, unless it has one."""
        with suppress(UserError):  # the folder itself may be what is gone, and the reason says more
            self.recorder.fail(self.state.step, self.clock.seconds(), best=self.standing.best, reason=reason)

    def explain_non_finite(self, step: int, means: dict[str, float], what: Literal["loss", "gradient"] = "loss") -> str:
        """Write down what is needed to look at a non-finite loss, and say it in a line."""
        files = self.task.images_of_step(step)
        facts = {"step": step, "losses": {name: str(value) for name, value in means.items()}, "images": files}
        bundle, begins = self.folder / f"non-finite-step-{step:06d}.json", ""
        if self.world.is_main:
            try:
                write_whole(bundle, json.dumps(facts, indent=2))
            except OSError as error:
                raise cannot_write(bundle, error) from error
            if self.writer is not None:
                self.writer.wait()
            begins = where_it_begins(self.run, self.task, self.folder, self.place, step)
        return (
            f"the {what} of step {step:,} is not finite; its {len(files)} images are named in {bundle.name}. {begins} "
            "Usual causes, in order: an lr for another batch, too short a warm-up, fp16 without a dynamic loss scale."
        )

    def write_report(self) -> None:
        """RUN/report.html, on rank 0; one that cannot be written is told of, and changes nothing of how the run ended."""
        if self.world.is_main:
            from paceline.pages.page import write_report

            try:
                said = f"report: {write_report(self.folder, self.task.workload)}"
            except (UserError, OSError) as error:
                again = f"paceline report {shlex.quote(str(self.folder))}"
                said = f"no report ({' '.join(str(error).split())}) The run is whole; once that is mended:  {again}"
            self.recorder.warning(said)
