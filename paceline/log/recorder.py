"""One place that a run tells what happens; it reaches events.jsonl and its SINKS, the console and mllog.txt.

Only rank 0 speaks and writes. Every other rank has a Recorder too, whose methods do nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from paceline.log.console import Console
from paceline.log.events import EventLog, one_line
from paceline.log.mllog import MLLog
from paceline.log.prose import captured_late, compiled_again, left_open, warm_up_text
from paceline.log.tensorboard import TensorBoard


class Sink(Protocol):
    """Somebody who follows events.jsonl as it is written: a tracker. A failure of its own must end no run."""

    def write(self, event: Mapping[str, Any]) -> None:
        """One event, as log/events.py describes it."""
        ...

    def close(self) -> None: ...


# (the run's folder with its run.json, the step that a resumed run goes on from or None) -> Sink, made on rank 0 alone.
SINKS: list[Callable[[Path, int | None], Sink]] = [
    lambda run, resumed_at: TensorBoard(run / "tensorboard", purge_step=resumed_at),
]


@dataclass(frozen=True)
class Facts:
    """What the logs say of a run before it starts."""

    target: str  # in words, for the console
    total_steps: int
    global_batch: int
    steps_per_epoch: float
    eval_steps: Sequence[int]
    train_images: int
    val_images: int
    submission: Mapping[str, Any]  # MLPerf's benchmark, org, division, status, platform, and its number of accelerators
    cache_cleared: bool  # for MLPerf: whether the systems' caches were cleared before
    mllog: Mapping[str, Any]  # MLPerf keys and values, in order
    weights: Iterable[str]  # names of the tensors that were initialised
    accuracy: Callable[[Mapping[str, float]], Any]  # an evaluation's metrics -> MLPerf's eval_accuracy


class Recorder:
    """Tells a run's story to every log.

    folder       the run's folder; None on ranks that keep quiet
    console      where people are told
    json         whether events are printed to stdout too, one JSON object a line
    resumed_at   the checkpoint's step where the run goes on; None for a fresh run
    evaluated    whether the result of that step's evaluation is known, if one is due; otherwise it comes again
    init_began   when this process began to build what the run needs, seconds since 1970
    """

    def __init__(
        self,
        folder: Path | None,
        facts: Facts,
        console: Console,
        *,
        json: bool = False,
        resumed_at: int | None,
        evaluated: bool = True,
        init_began: float | None = None,
    ) -> None:
        self._facts = facts
        self._quiet = folder is None
        self._sinks: list[Sink] = []
        self._json = json
        self.console = console
        self._evaluated = evaluated
        self._ended = False
        self._warned: set[str] = set()  # kinds of approximation that a line was said of
        self._epoch_begun = (0, 0.0)  # step and seconds from which an epoch's throughput counts
        self._epoch_due = False  # an epoch begins once this step's evaluation is over
        self._went_on: float | None = None  # when training went on beside the scoring under way, seconds since 1970
        if folder is None:
            return
        console.plan(facts.total_steps, target=facts.target, global_batch=facts.global_batch)
        self._events = EventLog(folder / "events.jsonl")
        self._mllog = MLLog(folder / "mllog.txt")
        for line in (*self._events.damage(), *self._mllog.damage):
            self.console.tell(line)
        # A run that was killed before its first checkpoint starts over, and what it logged goes.
        keep = -1 if resumed_at is None else resumed_at
        self._events.truncate_after(keep)
        # Where a run was ended and goes on, the evaluation that the end brought is none of MLPerf's: the block goes on.
        self._mllog.truncate_after(keep, evaluated=evaluated and keep in facts.eval_steps)
        self._sinks = [make(folder, resumed_at) for make in SINKS]
        self._mllog.cache_clear(facts.cache_cleared, at=init_began)
        self._mllog.init_start(at=init_began)
        self._mllog.submission(**facts.submission)

    def tell(self, text: str) -> None:
        """A line for people, however quiet they want it."""
        if not self._quiet:
            self.console.tell(text)

    def doing(self, what: str, of: int = 0) -> None:
        """What goes on where that is not training, for the live line; empty is training."""
        if not self._quiet:
            self.console.doing(what, of)

    def stopping(self, asked: Callable[[], bool]) -> None:
        """`asked` tells whether the run was told to stop, for the live line."""
        if not self._quiet:
            self.console.stopping(asked)

    def scored(self, images: int) -> None:
        """So many more images of the evaluation under way are done, on all ranks."""
        if not self._quiet:
            self.console.done(images)

    def start(self, step: int, seconds: float) -> None:
        """Everything is built; training goes on from `step`."""
        if self._quiet:
            return
        self._mllog.run_facts(self._facts.mllog)
        self._mllog.weights_initialization(self._facts.weights)
        self._mllog.init_stop()
        self._mllog.run_start(train_samples=self._facts.train_images, eval_samples=self._facts.val_images)
        # A run that goes on inside a block or an epoch is still in it: only what begins at `step` was cut.
        self._epoch_begun = (step, seconds)
        epoch_begins = step == 0 or self.epoch_ends(step)
        if not self._evaluated:
            self._epoch_due = epoch_begins
            return
        if step == 0 or step in self._facts.eval_steps:
            self._open_block(step)
        if epoch_begins:
            self._open_epoch(step, seconds)

    def resume(self, step: int, seconds: float, *, checkpoint: str, world: int, after: str = "") -> None:
        """The run goes on from a checkpoint; `after` is the status with which it had ended, where it was given more."""
        if not self._quiet:
            facts = {"after": after} if after else {}
            self._write("resume", step, seconds, checkpoint=checkpoint, world=world, **facts)
            given_more = f": it had ended ({after.replace('_', ' ')}), and was given more" if after else ""
            self.console.say(f"resumed from {checkpoint} on {world} rank{'s' if world > 1 else ''}{given_more}")

    def warmed_up(self, step: int, seconds: float, **facts: Any) -> None:
        """The discarded steps before `step` are done; facts: as log/events.py has them."""
        if not self._quiet:
            self._write("warm_up", step, seconds, **facts)
            self.console.say(warm_up_text(facts))

    def epoch_ends(self, step: int) -> bool:
        """Whether an epoch's last sample is in this step; the same on every rank."""
        return self._epochs_done(step) > self._epochs_done(step - 1)

    def passed(self, step: int, seconds: float) -> None:
        """After every step: moves the live line, and closes an epoch of MLPerf's log where one ends."""
        if self._quiet:
            return
        self.console.stepped(step)
        if not self.epoch_ends(step):
            return
        epoch = self._epochs_done(step)
        self._mllog.epoch_stop(epoch_num=epoch, step=step)
        first, began = self._epoch_begun
        images = (step - first) / self._facts.steps_per_epoch * self._facts.train_images
        self._mllog.tracked_stats({"throughput": images / max(seconds - began, 1e-9)}, step=step)
        if step in self._facts.eval_steps:
            self._epoch_due = True
        elif step < self._facts.total_steps:
            self._open_epoch(step, seconds)

    def train(self, step: int, seconds: float, *, eta_seconds: float, **facts: Any) -> None:
        """An interval of training: loss and its parts, lr, images_per_second, data_wait, samples, and what else is known."""
        if self._quiet:
            return
        self._write("train", step, seconds, **facts)
        self._warn_of(facts.get("approximated", {}), step)
        if (again := facts.get("recompilations")) and "recompilations" not in self._warned:
            self._warned.add("recompilations")
            self.console.tell(compiled_again(again, step))
        if (late := facts.get("late_captures")) and "late_captures" not in self._warned:
            self._warned.add("late_captures")
            self.console.tell(captured_late(late, step))
        self.console.train(
            step,
            step / self._facts.steps_per_epoch,
            facts["loss"],
            facts["lr"],
            facts["images_per_second"],
            facts["data_wait"],
            eta_seconds,
            facts.get("flop_per_second", 0.0),
            facts.get("peak_memory", 0),
        )

    def evaluation_begins(self, step: int) -> None:
        """An evaluation after `step` steps starts."""
        if not self._quiet:
            self.console.doing("evaluating", self._facts.val_images)
            self._mllog.eval_start(epoch_num=self._mlperf_epoch(step), step=step)
            self._went_on = None

    def training_goes_on(self) -> None:
        """Training goes on beside the scoring of the evaluation that began last."""
        self._went_on = time.time()

    def evaluation(
        self,
        step: int,
        seconds: float,
        *,
        metrics: Mapping[str, float],
        headline: str,
        images: int,
        eval_seconds: float,
        best: bool,
        approximated: Mapping[str, int] | None = None,
        went_on: float,
        ends: bool,
        discarded_steps: int = 0,
    ) -> None:
        """The result of the evaluation after `step` steps.

        best     whether it is the best so far
        approximated  what accelerators left open, by name; none on a CPU
        went_on  the run's seconds from which the training after that step counts
        ends     whether that training counts for nothing: the run ends with this result
        discarded_steps  how many steps of it there were
        Training may be further by now. MLPerf's next block and epoch are written here all the same, with the time when training
        went on, so that none is left open where the result ends the run.
        """
        if self._quiet:
            return
        beside = self._went_on is not None and not ends
        if beside:
            self._next_block(step, went_on, at=self._went_on)
        epoch = self._mlperf_epoch(step)
        self._mllog.eval_stop(epoch_num=epoch, step=step)
        if not math.isnan(metrics[headline]):  # of synthetic batches there is none
            self._mllog.eval_accuracy(self._facts.accuracy(metrics), epoch_num=epoch, step=step)
        if ends:
            self._mllog.block_stop(first_epoch_num=self._block_first(step), step=step)
        elif not beside:
            self._next_block(step, went_on)
        # The event comes last: where it is, all else is, and a run that goes on does not evaluate again.
        facts: dict[str, Any] = {"discarded_steps": discarded_steps} if discarded_steps else {}
        if approximated:
            facts["approximated"] = dict(approximated)
        self._write("eval", step, seconds, images=images, eval_seconds=eval_seconds, **metrics, **facts)
        self._warn_of(approximated or {}, step)
        self.console.evaluation(step, step / self._facts.steps_per_epoch, metrics, eval_seconds, best)

    def _warn_of(self, approximated: Mapping[str, int], step: int) -> None:
        """Say once of each kind that an accelerator left something open; the events have every number."""
        for name, count in approximated.items():
            if count and name not in self._warned:
                self._warned.add(name)
                self.console.tell(left_open(name, count, step))

    def checkpoint(self, step: int, seconds: float, *, name: str) -> None:
        """A checkpoint of `step` is being written."""
        if not self._quiet:
            self._write("checkpoint", step, seconds, name=name)
            self.console.note_checkpoint(step, name)

    def end(
        self,
        step: int,
        seconds: float,
        *,
        status: str,
        target_met: bool,
        best: Mapping[str, float],
        reason: str,
        since_best: int = 0,
        discarded_steps: int = 0,
    ) -> None:
        """The run ends, one way or another, with the weights after `step` steps; so many were trained past them.

        target_met  MLPerf's success: a run without a target, or cut short as asked, did its work but has none to show
        since_best  evaluations since the best one
        """
        if self._quiet:
            return
        self._ended = True
        facts = {"status": status, "best": dict(best), "reason": reason, "discarded_steps": discarded_steps}
        self._write("end", step, seconds, evaluations_since_best=since_best, **facts)
        self._mllog.run_stop("success" if target_met else "aborted", step=step)
        self.console.close()  # nothing is drawn below the end
        self.console.tell(f"{status.replace('_', ' ')}: {reason}")
        if discarded_steps:
            self.console.tell(f"{discarded_steps:,} steps trained while step {step:,} was being scored are discarded")

    def fail(self, step: int, seconds: float, *, best: Mapping[str, float], reason: str) -> None:
        """The run broke; nothing happens when it had ended already."""
        if not self._quiet and not self._ended:
            self.end(step, seconds, status="failed", target_met=False, best=best, reason=reason)

    def close(self) -> None:
        """Flush and close every log."""
        for sink in self._sinks:
            sink.close()

    def _write(self, kind: str, step: int, seconds: float, **facts: Any) -> None:
        record = self._events.write(kind, step=step, epoch=step / self._facts.steps_per_epoch, seconds=seconds, **facts)
        for sink in self._sinks:
            sink.write(record)
        if self._json:
            print(one_line(record), flush=True)

    def _next_block(self, step: int, seconds: float, *, at: float | None = None) -> None:
        """at: when that was, seconds since 1970; None: now"""
        self._mllog.block_stop(first_epoch_num=self._block_first(step), step=step, at=at)
        self._open_block(step, at=at)
        if self._epoch_due:
            self._open_epoch(step, seconds, at=at)

    def _open_epoch(self, step: int, seconds: float, *, at: float | None = None) -> None:
        self._epoch_begun, self._epoch_due = (step, seconds), False
        self._mllog.epoch_start(epoch_num=self._epochs_done(step) + 1, step=step, at=at)

    def _epochs_done(self, step: int) -> int:
        return int(step / self._facts.steps_per_epoch + 1e-9)

    def _open_block(self, step: int, *, at: float | None = None) -> None:
        until = next((due for due in self._facts.eval_steps if due > step), self._facts.total_steps)
        count = self._mlperf_epoch(until) - self._mlperf_epoch(step)
        self._mllog.block_start(first_epoch_num=self._mlperf_epoch(step) + 1, epoch_count=count, step=step, at=at)

    def _block_first(self, step: int) -> float:
        before = max((due for due in self._facts.eval_steps if due < step), default=0)
        return self._mlperf_epoch(before) + 1

    def _mlperf_epoch(self, step: int) -> float:
        """Epochs done, a whole number where the recipe counts in whole epochs."""
        epoch = round(step / self._facts.steps_per_epoch, 3)
        return int(epoch) if epoch == int(epoch) else epoch
