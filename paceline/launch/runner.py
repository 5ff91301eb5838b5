"""Combine one of each axis into a job's command and files, write the files, run them, and return the run's own exit code.

A job that runs is followed: its log is shown as it grows, Ctrl-C is passed on.

Each combination that does not exist is rejected with its reason; docs/how-to/cluster/launch.md lists the supported ones.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from types import FrameType

from paceline._utils.atomic_write import atomic_writer
from paceline._utils.errors import PacelineError
from paceline._utils.journal import read_lines
from paceline._utils.names import CHECKPOINTS, check_entries
from paceline._utils.platform import handle_signals
from paceline._utils.safe_read import open_plain_sized, read_plain
from paceline._utils.text import escape_line, escape_text
from paceline.distributed.comm.exit_code import EXIT_CODES, FAILED, INTERRUPTED, USER_ERROR, read_exit_code
from paceline.launch.containers.engines import CONTAINERS
from paceline.launch.job import LaunchFile, LaunchJob, RunningJob, Scheduler, Words
from paceline.launch.schedulers.hostfile import HOSTFILE
from paceline.launch.schedulers.local import LOCAL
from paceline.launch.schedulers.slurm import SLURM
from paceline.launch.starters import STARTERS

# Who gives nodes, by name.
SCHEDULERS: dict[str, Scheduler] = {"local": LOCAL, "hostfile": HOSTFILE, "slurm": SLURM}
# Who starts processes with --launcher auto.
USUAL_START = {"local": "torchrun", "hostfile": "torchrun", "slurm": "srun"}
# What a job is handed over by begins so, whoever takes it.
_HEAD = re.compile(rb"#!/usr/bin/env bash\n# [^\n]+: [^\n]+ on [^\n]+, started by [^\n]+\.\n")
MAX_SCRIPT_BYTES = 16 << 20


def explain_conflict(through: str, start: str, container: str, nodes: int) -> str:
    """Why these three do not go together; '' where they do."""
    if start == "srun" and through != "slurm":
        return f"srun only starts processes in Slurm jobs. Use --scheduler slurm, or --launcher {USUAL_START[through]}."
    if container == "pyxis" and (through, start) == ("slurm", "mpirun"):
        return (
            "Pyxis is a plugin of srun, and mpirun starts its ranks without srun. Use --launcher srun (with Pyxis), or "
            "--container-runtime apptainer."
        )
    if container == "pyxis" and through != "slurm":
        return "Pyxis is a plugin of srun. Use --scheduler slurm, or --container-runtime docker or apptainer."
    if container == "docker" and start == "srun":
        return (
            "one Docker container per rank has no Slurm variables and no shared memory. Use --launcher "
            "torchrun (one container per node), or --container-runtime pyxis or apptainer."
        )
    if container == "docker" and start == "mpirun" and nodes > 1:
        return (
            "the daemons of mpirun on other nodes do not run in a Docker container. Use --launcher torchrun (one container per "
            "node), or --container-runtime apptainer."
        )
    if container == "docker" and start == "mpirun" and through != "local":
        return "with Docker, mpirun runs inside one container. Use --scheduler local, or --launcher torchrun."
    if through == "local" and nodes > 1:
        return f"--scheduler local only supports this machine, not --nodes {nodes}. Use --scheduler slurm or hostfile."
    return ""


def check_together(through: str, start: str, container: str, nodes: int) -> None:
    """Raises PacelineError with the reason, and with another way, where these do not go together."""
    if why := explain_conflict(through, start, container, nodes):
        raise PacelineError(f"--scheduler {through} --launcher {start} --container-runtime {container}: {why}")


def check_combination(job: LaunchJob) -> None:
    """Refuse what does not go together, and what one of the three cannot do.

    Raises PacelineError with the reason and another way.
    """
    check_together(job.through, job.start, job.container, job.nodes)
    _check_lines(job)
    SCHEDULERS[job.through].check(job)
    CONTAINERS[job.container].check(job)


def _check_lines(job: LaunchJob) -> None:
    """Refuse what would not stay on its line: comments and #SBATCH lines end with the line, and no quotes help there."""
    for what, text in _texts_on_lines(job):
        if text != escape_line(text):
            raise PacelineError(
                f"{what} {escape_line(text)}: must not contain a line break or another control character, which would change the "
                "script. Choose another name."
            )
    if job.through == "slurm" and "\\" in str(job.workdir):
        raise PacelineError(f"the working directory {job.workdir}: must not contain \\ for Slurm. Start in another folder.")


def _texts_on_lines(job: LaunchJob) -> Iterator[tuple[str, str]]:
    """(where it comes from, what stands on a line of its own or behind a #)."""
    yield "--output-dir", str(job.folder)
    yield "the working directory", str(job.workdir)
    yield "--container-image", job.image
    for mount in job.mounts:
        yield "--mount", str(mount.host)
        yield "--mount", mount.inside
    for field in fields(job.batch):
        value = getattr(job.batch, field.name)
        for text in value if isinstance(value, tuple) else (value,):
            yield f"--slurm.{field.name}", str(text)


def make_command(job: LaunchJob) -> Words:
    """The command to run: once for the whole job, or once on every node where the starter reaches no further.

    Containers stand around each rank; but around the starter where that starts one node's ranks (torchrun), and where the
    container wants to be one a node (`whole`), so that mpirun runs inside.
    """
    starter, container = STARTERS[job.start], CONTAINERS[job.container]
    if container.python is not None:
        job = replace(job, python=container.python)
    if starter.reach == "node" or container.whole:
        return container.wrap(job, starter.command(job, job.program))
    return starter.command(job, container.wrap(job, job.program))


def make_files(job: LaunchJob) -> tuple[LaunchFile, ...]:
    """Every file of this job; what is handed over to whoever gives the nodes comes first. Pure."""
    return (*SCHEDULERS[job.through].files(job, make_command(job)), *CONTAINERS[job.container].files(job))


def launch_job(job: LaunchJob, *, dry: bool = False, say: Callable[[str], None] = print) -> int:
    """Carry out `job.words` on all its ranks; -> their own exit code (0 for a dry run).

    dry    only write and print the files
    Raises PacelineError for what does not go together, and for what this machine, the cluster or a host refuses.
    """
    check_combination(job)
    axes = SCHEDULERS[job.through], STARTERS[job.start], CONTAINERS[job.container]
    lacks = [line for axis in axes if (line := axis.missing(job))]  # its files can be written all the same
    if lacks and not dry:
        raise PacelineError(lacks[0])
    check_entries(job.folder)
    files = make_files(job)
    earlier = SCHEDULERS[job.through].earlier(job, files)
    paths = write_files(job, files)
    for file, path in zip(files, paths):
        if file.shown:
            say(f"--- {path}\n{file.text.rstrip()}\n")
    if dry:
        for line in lacks:
            say(f"warning: {line}")
        say(f"Nothing was started (--dry-run). Start:  {shlex.join((*SCHEDULERS[job.through].by_hand, str(paths[0])))}")
        return 0
    if earlier is not None:
        return follow(job, lambda: earlier, say=say)
    job.exit_code_file.unlink(missing_ok=True)
    return follow(job, lambda: SCHEDULERS[job.through].begin(job, paths), say=say)


def write_files(job: LaunchJob, files: tuple[LaunchFile, ...]) -> tuple[Path, ...]:
    """Write the files into RUN/launch, each whole or not at all; -> their paths.

    Raises PacelineError where the folder cannot be written, is a link, or its script is not ours.
    """
    paths = []
    try:
        first = job.launch_folder / files[0].name
        ours = not os.path.lexists(first) or (not first.is_symlink() and _HEAD.match(read_plain(first, MAX_SCRIPT_BYTES)))
        if job.launch_folder.is_symlink() or not ours:
            raise PacelineError(
                f"{first}: already exists and is not a paceline file. Choose another folder with --output-dir."
            )
        job.launch_folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            path = job.launch_folder / file.name
            path.parent.mkdir(exist_ok=True)
            with atomic_writer(path, sync=True) as part:
                part.write_text(file.text, encoding="utf-8")
                part.chmod(0o755 if file.runs else 0o644)
            paths.append(path)
    except OSError as problem:
        raise PacelineError(
            f"{job.launch_folder}: the folder is not writable ({problem.strerror}). Choose another folder with --output-dir."
        ) from None
    return tuple(paths)


# Following a job.


LOOK_SECONDS = 0.2
LAST_LINES = 20
MAX_BYTES = 1 << 24


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
            say(f"{running.name} {now or 'is running'}")
        if time.monotonic() > limit:
            limit = math.inf
            requested.append(signal.SIGTERM)
            say(f"the walltime of {minutes} min is over")
        if len(requested) > handled:
            handled += 1
            say(f"{running.name}: sent a stop request" if handled == 1 else f"{running.name}: killed")
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
        return USER_ERROR if status == "failed" and left == USER_ERROR else EXIT_CODES[status]
    if left is not None:
        return left
    if stopped:
        saved = (job.folder / CHECKPOINTS / "last").exists()
        next_start = "resumes from its newest checkpoint" if saved else "starts from the beginning"
        say(f"{job.name}: stopped before the end. To continue, run {job.again}; it {next_start}")
        return INTERRUPTED
    say(f"{job.name}: all ranks exited without reporting a status. Last lines of {job.log}:\n{escape_text(kept.rstrip())}")
    return FAILED


@contextmanager
def _asked_to_stop(job: LaunchJob) -> Iterator[list[int]]:
    """The signals that asked us to stop so far; nothing is caught outside the main thread, where Python allows no handlers.

    A terminal that is closed (SIGHUP) stops what only we look after; a Slurm job is the scheduler's, and goes on.
    """
    requested: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        requested.append(number)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if job.through != "slurm" and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # ignored: under nohup
        numbers.append(signal.SIGHUP)
    with handle_signals(numbers, note):
        yield requested
