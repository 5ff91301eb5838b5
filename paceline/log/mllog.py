"""mllog.txt: a run as MLPerf's :::MLLOG lines, as the official compliance checker reads them.

The order of calls is the order of the lines:

    cache_clear, init_start, submission, run_facts, weights_initialization, init_stop, run_start,
    then for every block of epochs up to an evaluation:
        block_start, (epoch_start, epoch_stop, tracked_stats) for each epoch,
        eval_start, eval_stop, eval_accuracy, block_stop
    run_stop
Where training continues beside scoring, block_stop and the next block's block_start and epoch_start come before eval_stop, with the
time when training continued, as in NVIDIA's Mask R-CNN logs.

Epochs count from 1, steps are optimiser steps done. The lines are those that the mlperf-logging package would write, byte for byte.
The workload defines the keys of its benchmark (tasks/workload.py: benchmark, log_facts, log_accuracy, log_tensors).
Source: MLPerf training rules; mlperf_logging/compliance_checker; keys as in the submissions to v0.7 (SSD) and v3.0.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from paceline._utils.journal import LineFile, name_lines
from paceline._utils.safe_read import parse
from paceline.log.events import plain

Kind = Literal["POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"]
PREFIX = ":::MLLOG "
_BEGUN_AGAIN = ("block_start", "epoch_start")
_EVALUATION = ("eval_start", "eval_stop", "eval_accuracy", "block_stop")
# File names in the log start at the package, so that they are the same on every machine.
_ROOT = str(Path(__file__).parents[2])


class MLLog:
    """Appends to a file such as RUN/mllog.txt. One process writes it: rank 0.

    clock  seconds since 1970

    An existing file is continued: everything up to run_start and its sample counts is not written a second time, so a log has
    exactly one of each, however often the run was resumed. A file without them is begun again.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lines = LineFile(path)
        lines = self._lines.lines()
        # The format has no room for a checksum: only a line that does not parse is noticed.
        damaged = [number for number, line in enumerate(lines, start=1) if _parsed(line) is None]
        self.damage = [f"{path}: {name_lines(damaged)} damaged: left out"] if damaged else []
        if self._lines.torn:
            self.damage.append(f"{path}: its last line had no end and is cut; the run may have been killed there")
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
        """One line for every parameter and buffer that was initialised."""
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
        record = {"namespace": "", "time_ms": time_ms, "event_type": kind, "key": key, "value": plain(value)}
        text = json.dumps({**record, "metadata": {**where, **metadata}})
        self._lines.append(PREFIX + text, durable=key in ("run_start", "eval_accuracy", "run_stop"))


def _parsed(line: str) -> dict[str, Any] | None:
    if not line.startswith(PREFIX):
        return None
    try:
        record = parse(line.removeprefix(PREFIX))
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _key(line: str) -> str | None:
    record = _parsed(line)
    return None if record is None else record.get("key")
