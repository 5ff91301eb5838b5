"""This machine alone: the script is run here, as a process of ours in a session of its own."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from paceline.launch import process_guard
from paceline.launch.job import (
    LaunchFile,
    LaunchJob,
    RunningJob,
    Scheduler,
    Words,
    format_command_lines,
    format_exports,
    make_environment,
)
from paceline.launch.preflight.node import node_program, preflight_lines
from paceline.launch.starters import STARTERS


class LocalProcess:
    """A command in a session of its own, so that a terminal's Ctrl-C reaches it through us alone, and once.

    On Linux it does not outlive us, whatever ends us, and is ended with all that it started: attend.py holds it.
    """

    def __init__(self, command: Words, log: Path, stop: signal.Signals):
        held = (sys.executable, "-I", process_guard.__file__) if sys.platform == "linux" else ()
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                (*held, *command),
                stdin=subprocess.PIPE if held else subprocess.DEVNULL,  # it is closed when we end
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                bufsize=0,
            )
        self._stop = stop
        self.name = f"process {self._process.pid}"

    def poll(self) -> int | None:
        """None while it runs; then its exit code."""
        code = self._process.poll()
        if code is not None and self._process.stdin is not None:
            self._process.stdin.close()
        return code

    def stop(self) -> None:
        """Send the starter its own signal, to it alone: it passes it on to its ranks."""
        if self._process.poll() is None and not self._order(f"stop {int(self._stop)}"):
            self._process.send_signal(self._stop)

    def kill(self) -> None:
        """End all of it."""
        if self._process.poll() is None and not self._order("end"):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.poll()

    def _order(self, line: str) -> bool:
        """Send attend.py a line; -> whether it holds the command."""
        if self._process.stdin is None:
            return False
        with suppress(BrokenPipeError):  # it has just ended
            self._process.stdin.write(f"{line}\n".encode())
        return True

    def waiting_for(self) -> str:
        """Nothing: it runs from the start."""
        return ""


def run_script(job: LaunchJob, paths: tuple[Path, ...]) -> RunningJob:
    """Run the script here; all that it and its ranks print goes into the job's log."""
    return LocalProcess(("bash", str(paths[0])), job.log, STARTERS[job.start].stop)


def _files(job: LaunchJob, command: Words) -> tuple[LaunchFile, ...]:
    """run.sh: what to type by hand for the same."""
    text = (
        "#!/usr/bin/env bash\n"
        f"# {job.name}: {job.ranks} rank{'s'[: job.ranks > 1]} on this machine, started by {job.start}.\n"
        "set -euo pipefail\n"
        f"cd {shlex.quote(str(job.workdir))}\n\n"
        f"{format_exports(make_environment(job))}\n"
        + (
            preflight_lines(job, format_command_lines((*node_program(job), "--number", "0"))) + "\n"
            if job.preflight
            else ""
        )
        + (f"# Before the ranks start.\n{job.between}\n\n" if job.between else "")
        + STARTERS[job.start].notes(job)
        + f"exec {format_command_lines(command)}\n"
    )
    return (LaunchFile("run.sh", text, runs=True),)


LOCAL = Scheduler(_files, lambda job: None, run_script)
