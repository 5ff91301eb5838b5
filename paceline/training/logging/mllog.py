"""mllog.txt: a run as MLPerf's :::MLLOG lines, as the official compliance checker reads them.

The order of calls is the order of the lines:

    cache_clear, init_start, submission, run_facts, weights_initialization, init_stop, run_start,
    then for every block of epochs up to an evaluation:
        block_start, (epoch_start, epoch_stop, tracked_stats) for each epoch,
        eval_start, eval_stop, eval_accuracy, block_stop
    run_stop
Where training continues beside scoring, block_stop and the next block's block_start and epoch_start come before eval_stop, with the
time when training continued, as in NVIDIA's Mask R-CNN logs.

Epochs count from 1, steps are optimizer steps done. The lines are those that the mlperf-logging package would write, byte for byte.
The workload defines the keys of its benchmark (`Reporting` in models/workload.py: benchmark, log_facts, log_accuracy, log_tensors).
Source: MLPerf training rules; mlperf_logging/compliance_checker; keys as in the submissions to v0.7 (SSD) and v3.0.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from paceline._utils.journal import LineWriter, name_lines
from paceline._utils.reporter import Reporter
from paceline._utils.safe_read import parse_json
from paceline.config.plan import epochs_done, is_epoch_end
from paceline.training.logging.callbacks import Callback, Event, RunInfo
from paceline.training.logging.events import to_json_value

Kind = Literal["POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"]
PREFIX = ":::MLLOG "
_BEGUN_AGAIN = ("block_start", "epoch_start")
_EVALUATION = ("eval_start", "eval_stop", "eval_accuracy", "block_stop")
# File names in the log start at the package, so that they are the same on every machine.
_ROOT = str(Path(__file__).parents[3])


class MLLog:
    """Appends to a file such as RUN/mllog.txt. One process writes it: rank 0.

    clock  seconds since 1970

    An existing file is continued: everything up to run_start and its sample counts is not written a second time, so a log has
    exactly one of each, however often the run was resumed. A file without them is begun again.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lines = LineWriter(path)
        lines = self._lines.lines()
        # The format has no room for a checksum: only a line that does not parse is noticed.
        damaged = [number for number, line in enumerate(lines, start=1) if _parsed(line) is None]
        self.damage = [f"{path}: {name_lines(damaged)} damaged and ignored"] if damaged else []
        if self._lines.torn:
            self.damage.append(f"{path}: the last line was truncated and is removed. The run may have been killed.")
        # eval_samples is the last line of run_start(), and block_start the next: one of them may be damaged.
        self.started = any(_key(line) in ("eval_samples", "block_start") for line in lines)
        if not self.started:
            self._lines.rewrite(lambda line: False)

    def submission(
        self, benchmark: str, *, org: str, division: str, status: str, platform: str, accelerators: int = 0
    ) -> None:
        """Write the submission.

        benchmark: resnet, ssd, maskrcnn; division: closed, open; status: onprem, cloud, preview, research.
        accelerators: number in this run, written beside the platform's name, which anybody may choose; 0: left out
        """
        facts = {"benchmark": benchmark, "org": org, "division": division, "status": status}
        for name, value in facts.items():
            self._before_run("POINT_IN_TIME", f"submission_{name}", value)
        counted = {"accelerators": accelerators} if accelerators else {}
        self._before_run("POINT_IN_TIME", "submission_platform", platform, counted)

    def cache_clear(self, cleared: bool, *, at: float | None = None) -> None:
        """Whether the system's caches were cleared before this run, as a submission must. at: see init_start"""
        self._before_run("POINT_IN_TIME", "cache_clear", cleared, at=at)

    def init_start(self, *, at: float | None = None) -> None:
        """Everything that touches no training data begins: opening the data set, building the model.

        at  when it began, seconds since 1970, where the log was not open yet; None: now
        """
        self._before_run("INTERVAL_START", "init_start", None, at=at)

    def run_facts(self, facts: Mapping[str, Any]) -> None:
        """One line a fact, in the order given: seed, global_batch_size, opt_name, ..."""
        for key, value in facts.items():
            self._before_run("POINT_IN_TIME", key, value)

    def weights_initialization(self, tensor_names: Iterable[str]) -> None:
        """One line for every parameter and buffer that was initialized."""
        for name in tensor_names:
            self._before_run("POINT_IN_TIME", "weights_initialization", None, {"tensor": name})

    def init_stop(self) -> None:
        """Everything is built; the clock of the benchmark has not started."""
        self._before_run("INTERVAL_END", "init_stop", None)

    def run_start(self, *, train_samples: int, eval_samples: int) -> None:
        """The benchmark's clock starts; training data is first touched after this. The counts are measured."""
        self._before_run("INTERVAL_START", "run_start", None)
        self._before_run("POINT_IN_TIME", "train_samples", train_samples)
        self._before_run("POINT_IN_TIME", "eval_samples", eval_samples)
        self.started = True

    def block_start(self, *, first_epoch_num: float, epoch_count: float, step: int, at: float | None = None) -> None:
        """The epochs up to the next evaluation begin. at: as for init_start, in this and the next two"""
        metadata = {"first_epoch_num": first_epoch_num, "epoch_count": epoch_count, "step_num": step}
        self._write("INTERVAL_START", "block_start", None, metadata, at=at)

    def block_stop(self, *, first_epoch_num: float, step: int, at: float | None = None) -> None:
        self._write("INTERVAL_END", "block_stop", None, {"first_epoch_num": first_epoch_num, "step_num": step}, at=at)

    def epoch_start(self, *, epoch_num: float, step: int, at: float | None = None) -> None:
        self._write("INTERVAL_START", "epoch_start", None, {"epoch_num": epoch_num, "step_num": step}, at=at)

    def epoch_stop(self, *, epoch_num: float, step: int) -> None:
        self._write("INTERVAL_END", "epoch_stop", None, {"epoch_num": epoch_num, "step_num": step})

    def tracked_stats(self, stats: Mapping[str, float], *, step: int) -> None:
        """Numbers worth following, such as {"throughput": images per second of all ranks}."""
        self._write("POINT_IN_TIME", "tracked_stats", dict(stats), {"step": step, "step_num": step})

    def eval_start(self, *, epoch_num: float, step: int) -> None:
        self._write("INTERVAL_START", "eval_start", None, {"epoch_num": epoch_num, "step_num": step})

    def eval_stop(self, *, epoch_num: float, step: int) -> None:
        self._write("INTERVAL_END", "eval_stop", None, {"epoch_num": epoch_num, "step_num": step})

    def eval_accuracy(self, value: float | Mapping[str, float], *, epoch_num: float, step: int) -> None:
        """The benchmark's metric after `epoch_num` epochs, as a fraction; or several, by the names of its rules."""
        self._write("POINT_IN_TIME", "eval_accuracy", value, {"epoch_num": epoch_num, "step_num": step})

    def run_stop(self, status: Literal["success", "aborted"], *, step: int) -> None:
        """The clock stops. success: the target is met; aborted: anything else, an interruption that may resume too."""
        self._write("INTERVAL_END", "run_stop", None, {"status": status, "step_num": step})

    def truncate_after(self, step: int, *, evaluated: bool = True) -> int:
        """Cut what a run resumed after `step` will do again, and run_stop; -> how many lines.

        Blocks and epochs that begin at `step` are begun again. evaluated: whether its evaluation's result is known; else it is made
        again.
        """
        at_step = _BEGUN_AGAIN if evaluated else (*_BEGUN_AGAIN, *_EVALUATION)

        def keep(line: str) -> bool:
            record = _parsed(line)
            if record is None or record.get("key") == "run_stop":
                return False
            metadata = record.get("metadata")
            line_step = metadata.get("step_num", -1) if isinstance(metadata, dict) else -1
            if not isinstance(line_step, int):
                return False
            return line_step < step or (line_step == step and record.get("key") not in at_step)

        return self._lines.rewrite(keep)

    def _before_run(
        self, kind: Kind, key: str, value: Any, metadata: Mapping[str, Any] | None = None, *, at: float | None = None
    ) -> None:
        if not self.started:
            self._write(kind, key, value, metadata or {}, at=at)

    def _write(self, kind: Kind, key: str, value: Any, metadata: Mapping[str, Any], *, at: float | None = None) -> None:
        frame = sys._getframe(1)
        while frame.f_globals is globals() and frame.f_back:  # out to the caller of a public method
            frame = frame.f_back
        where = {"file": frame.f_code.co_filename.removeprefix(f"{_ROOT}/"), "lineno": frame.f_lineno}
        time_ms = round((self._clock() if at is None else at) * 1000)
        record = {"namespace": "", "time_ms": time_ms, "event_type": kind, "key": key, "value": to_json_value(value)}
        text = json.dumps({**record, "metadata": {**where, **metadata}})
        self._lines.append(PREFIX + text, durable=key in ("run_start", "eval_accuracy", "run_stop"))


def _parsed(line: str) -> dict[str, Any] | None:
    if not line.startswith(PREFIX):
        return None
    try:
        record = parse_json(line.removeprefix(PREFIX))
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _key(line: str) -> str | None:
    record = _parsed(line)
    return None if record is None else record.get("key")


# A run's moments as MLPerf's lines: which epoch and which block they belong to. MLLog writes the lines.


class BenchmarkLog(Callback):
    """Writes RUN/mllog.txt. Damage of an older log is a warning; the other arguments are those of Recorder."""

    def __init__(
        self,
        folder: Path,
        facts: RunInfo,
        reporter: Reporter,
        resumed_at: int | None,
        evaluated: bool,
        init_began: float | None,
    ) -> None:
        self._facts = facts
        self._evaluated = evaluated
        self._epoch_begun = (0, 0.0)  # step and seconds from which an epoch's throughput counts
        self._epoch_due = False  # an epoch begins once this step's evaluation is over
        self._went_on: float | None = None  # when training continued during the scoring under way, seconds since 1970
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
        epoch_begins = step == 0 or is_epoch_end(step, self._facts.steps_per_epoch)
        if not self._evaluated:
            self._epoch_due = epoch_begins
            return
        if step == 0 or step in self._facts.eval_steps:
            self._open_block(step)
        if epoch_begins:
            self._open_epoch(step, seconds)

    def passed(self, step: int, seconds: float) -> None:
        if not is_epoch_end(step, self._facts.steps_per_epoch):
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
