"""A run's moments as MLPerf's lines: which epoch and which block they belong to. mllog.py writes the lines."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path

from paceline._utils.reporter import Reporter
from paceline.config.plan import epoch_ends, epochs_done
from paceline.log.mllog import MLLog
from paceline.log.sinks import Event, Facts, Follower


class BenchmarkLog(Follower):
    """Writes RUN/mllog.txt. Damage of an older log is a warning; the other arguments are those of Recorder."""

    def __init__(
        self,
        folder: Path,
        facts: Facts,
        reporter: Reporter,
        resumed_at: int | None,
        evaluated: bool,
        init_began: float | None,
    ) -> None:
        self._facts = facts
        self._evaluated = evaluated
        self._epoch_begun = (0, 0.0)  # step and seconds from which an epoch's throughput counts
        self._epoch_due = False  # an epoch begins once this step's evaluation is over
        self._went_on: float | None = None  # when training went on beside the scoring under way, seconds since 1970
        self._log = MLLog(folder / "mllog.txt")
        for line in self._log.damage:
            reporter.warning(line)
        # A run that was killed before its first checkpoint starts over, and what it logged is cut. Where a run had ended and
        # is resumed, the final evaluation was off-schedule: keep the block open.
        keep = -1 if resumed_at is None else resumed_at
        self._log.truncate_after(keep, evaluated=evaluated and keep in facts.eval_steps)
        self._log.cache_clear(facts.cache_cleared, at=init_began)
        self._log.init_start(at=init_began)
        self._log.submission(**facts.submission)

    def start(self, step: int, seconds: float) -> None:
        """Write everything up to run_start, and open the first block and epoch."""
        self._log.run_facts(self._facts.mllog)
        self._log.weights_initialization(self._facts.weights)
        self._log.init_stop()
        self._log.run_start(train_samples=self._facts.train_images, eval_samples=self._facts.val_images)
        # A run resumed inside a block or an epoch is still in it: only what begins at `step` was cut.
        self._epoch_begun = (step, seconds)
        epoch_begins = step == 0 or epoch_ends(step, self._facts.steps_per_epoch)
        if not self._evaluated:
            self._epoch_due = epoch_begins
            return
        if step == 0 or step in self._facts.eval_steps:
            self._open_block(step)
        if epoch_begins:
            self._open_epoch(step, seconds)

    def passed(self, step: int, seconds: float) -> None:
        if not epoch_ends(step, self._facts.steps_per_epoch):
            return
        epoch = epochs_done(step, self._facts.steps_per_epoch)
        self._log.epoch_stop(epoch_num=epoch, step=step)
        first, began = self._epoch_begun
        images = (step - first) / self._facts.steps_per_epoch * self._facts.train_images
        self._log.tracked_stats({"throughput": images / max(seconds - began, 1e-9)}, step=step)
        if step in self._facts.eval_steps:
            self._epoch_due = True
        elif step < self._facts.total_steps:
            self._open_epoch(step, seconds)

    def evaluation_begins(self, step: int) -> None:
        self._log.eval_start(epoch_num=self._epoch(step), step=step)
        self._went_on = None

    def training_goes_on(self) -> None:
        self._went_on = time.time()

    def result(self, step: int, metrics: Mapping[str, float], *, headline: str, went_on: float, ends: bool) -> None:
        """Write the accuracy, and the block's end.

        Training may be further by now. The next block and epoch are written here all the same, with the time when training
        continued, so that none is left open where the result ends the run.
        """
        beside = self._went_on is not None and not ends
        if beside:
            self._next_block(step, went_on, at=self._went_on)
        epoch = self._epoch(step)
        self._log.eval_stop(epoch_num=epoch, step=step)
        if not math.isnan(metrics[headline]):  # of synthetic batches there is none
            self._log.eval_accuracy(self._facts.accuracy(metrics), epoch_num=epoch, step=step)
        if ends:
            self._log.block_stop(first_epoch_num=self._block_first(step), step=step)
        elif not beside:
            self._next_block(step, went_on)

    def end(self, event: Event, *, target_met: bool) -> None:
        """Write run_stop; a run without a target, or cut short as asked, is no success."""
        self._log.run_stop("success" if target_met else "aborted", step=event["step"])

    def _next_block(self, step: int, seconds: float, *, at: float | None = None) -> None:
        """at: when that was, seconds since 1970; None: now"""
        self._log.block_stop(first_epoch_num=self._block_first(step), step=step, at=at)
        self._open_block(step, at=at)
        if self._epoch_due:
            self._open_epoch(step, seconds, at=at)

    def _open_epoch(self, step: int, seconds: float, *, at: float | None = None) -> None:
        self._epoch_begun, self._epoch_due = (step, seconds), False
        self._log.epoch_start(epoch_num=epochs_done(step, self._facts.steps_per_epoch) + 1, step=step, at=at)

    def _open_block(self, step: int, *, at: float | None = None) -> None:
        until = next((due for due in self._facts.eval_steps if due > step), self._facts.total_steps)
        count = self._epoch(until) - self._epoch(step)
        self._log.block_start(first_epoch_num=self._epoch(step) + 1, epoch_count=count, step=step, at=at)

    def _block_first(self, step: int) -> float:
        before = max((due for due in self._facts.eval_steps if due < step), default=0)
        return self._epoch(before) + 1

    def _epoch(self, step: int) -> float:
        """Epochs done, a whole number where the recipe counts in whole epochs."""
        epoch = round(step / self._facts.steps_per_epoch, 3)
        return int(epoch) if epoch == int(epoch) else epoch
