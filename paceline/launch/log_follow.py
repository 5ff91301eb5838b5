"""Follow a job: show its log as it grows, pass Ctrl-C on, and return the exit code of the run itself."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from paceline._utils.journal import read_lines
from paceline._utils.names import CHECKPOINTS
from paceline._utils.safe_read import open_plain_sized
from paceline._utils.text import escape_text
from paceline.distributed.comm.exit_code import FAILED, INTERRUPTED, USER_ERROR, read_exit_code
from paceline.launch.job import LaunchJob, RunningJob

LOOK_SECONDS = 0.2
LAST_LINES = 20
MAX_BYTES = 1 << 24
# The exit code of each status of an `end` event, which decides, whatever the launcher made of the code.
CODES = {"success": 0, "stopped_early": 0, "ran_out": 1, "interrupted": INTERRUPTED, "failed": FAILED}


class LogTail:
    """What is appended to a text file from now on."""

    def __init__(self, path: Path):
        self._path = path
        self._at = path.stat().st_size if path.exists() else 0

    def more(self, *, all_of_it: bool = False) -> str:
        """What came since the last look, up to MAX_BYTES: whole lines, unless the file is at its end or they are as long."""
        try:
            with os.fdopen(open_plain_sized(self._path, links=False)[0], "rb") as file:
                file.seek(self._at)
                new = file.read(MAX_BYTES)
        except OSError:  # none yet, or nothing that a job writes
            return ""
        end = new.rfind(b"\n") + 1
        new = new if all_of_it or (not end and len(new) == MAX_BYTES) else new[:end]
        self._at += len(new)
        return new.decode(errors="replace")


class EndWatcher:
    """The `end` event that this start of the run leaves, and none of an earlier one."""

    def __init__(self, folder: Path):
        self._file = folder / "events.jsonl"
        self._before = self._stamp()

    def found(self) -> tuple[str, str]:
        """Its status and reason; '' and '' where there is none."""
        if self._stamp() == self._before:
            return "", ""
        try:
            event = json.loads([b"", *read_lines(self._file, MAX_BYTES)][-1])
            return (str(event["status"]), str(event.get("reason", ""))) if event["event"] == "end" else ("", "")
        except (OSError, ValueError, KeyError, TypeError):  # no event yet, or a damaged file: the exit code decides
            return "", ""

    def _stamp(self) -> tuple[int, int] | None:
        try:
            stat = self._file.stat()
        except FileNotFoundError:
            return None
        return stat.st_size, stat.st_mtime_ns


def follow(job: LaunchJob, begin: Callable[[], RunningJob], *, say: Callable[[str], None]) -> int:
    """Start the job and stay with it to its end; -> the exit code of the run itself.

    The first Ctrl-C (or SIGTERM, or SIGHUP but for Slurm) asks the run to save and end, the second ends the job.
    """
    tail, ended = LogTail(job.log), EndWatcher(job.folder)
    with _asked_to_stop(job) as requested:  # before it begins: whoever types Ctrl-C while it does means it too
        running = begin()
        say(f"{job.name}: {running.name}, output in {job.log}")
        kept = _stay_with(job, running, tail, requested, say)
        stopped = bool(requested)
    status, reason = ended.found()
    if status == "failed" and reason:  # launchers print pages of their own after the ranks' words
        say(escape_text(f"{job.name}: {reason}"))
    return find_exit_code(job, status, read_exit_code(job.exit_code_file), kept, say, stopped=stopped)


def _stay_with(job: LaunchJob, running: RunningJob, tail: LogTail, requested: list[int], say: Callable[[str], None]) -> str:
    """Until it has ended; -> the last lines of its log.

    requested  grows while we are here: one entry for each signal that asks us to stop
    """
    kept, waited_for, handled = "", "", 0
    # A scheduler keeps the time itself; elsewhere the walltime's end is a wish to stop like any other.
    minutes = 0 if job.through == "slurm" else job.walltime_minutes
    limit = time.monotonic() + 60 * minutes if minutes else math.inf
    while True:
        code = running.poll()
        while text := tail.more(all_of_it=code is not None):
            say(escape_text(text.rstrip("\n")))
            kept = "\n".join((kept + text).splitlines()[-LAST_LINES:]) + "\n"
        if code is not None:
            return kept
        if (now := running.waiting_for()) != waited_for:
            waited_for = now
            say(f"{running.name} {now or 'runs'}")
        if time.monotonic() > limit:
            limit = math.inf
            requested.append(signal.SIGTERM)
            say(f"the walltime of {minutes} min is up")
        if len(requested) > handled:
            handled += 1
            say(f"{running.name}: asked to stop" if handled == 1 else f"{running.name}: ended at once")
            (running.stop if handled == 1 else running.kill)()
        time.sleep(LOOK_SECONDS)


def find_exit_code(
    job: LaunchJob, status: str, left: int | None, kept: str, say: Callable[[str], None], *, stopped: bool = False
) -> int:
    """The run's own exit code from its `end` event; else what rank 0 left; else 3, with the log's last lines.

    status   of the `end` event; '' where there is none
    left     rank 0's exit code, None where it left none
    kept     the last lines of the log
    stopped  somebody asked it to: without a word of its own it is interrupted, not failed
    """
    if status:
        # Bad input that is found while training ends the run as failed and its process with 2.
        return USER_ERROR if status == "failed" and left == USER_ERROR else CODES[status]
    if left is not None:
        return left
    if stopped:
        saved = (job.folder / CHECKPOINTS / "last").exists()
        next_start = "resumes from its newest checkpoint" if saved else "starts from the beginning"
        say(f"{job.name}: stopped before its end; {job.again} {next_start}")
        return INTERRUPTED
    say(f"{job.name}: its ranks ended without a word of how. The last lines of {job.log}:\n{escape_text(kept.rstrip())}")
    return FAILED


@contextmanager
def _asked_to_stop(job: LaunchJob) -> Iterator[list[int]]:
    """The signals that asked us to stop so far; nothing is caught outside the main thread, where Python allows no handlers.

    A terminal that is closed (SIGHUP) stops what only we look after; a Slurm job is the scheduler's, and goes on.
    """
    requested: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield requested
        return

    def note(number: int, frame: FrameType | None) -> None:
        requested.append(number)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if job.through != "slurm" and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # ignored: under nohup
        numbers.append(signal.SIGHUP)
    previous = {number: signal.signal(number, note) for number in numbers}
    try:
        yield requested
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
