"""A job that is a process of ours: the script that starts ranks here, or on other hosts over ssh."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from paceline.launch.job import Words


class Process:
    """A command in a process group of its own, so that a terminal's Ctrl-C reaches it through us alone, and once."""

    def __init__(self, command: Words, log: Path, stop: signal.Signals):
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
        self._stop = stop
        self.name = f"process {self._process.pid}"

    def poll(self) -> int | None:
        """None while it runs; then its exit code."""
        return self._process.poll()

    def stop(self) -> None:
        """The starter's own signal, to it alone: it tells its ranks."""
        if self._process.poll() is None:
            self._process.send_signal(self._stop)

    def kill(self) -> None:
        """End the whole group."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def standing(self) -> str:
        """It runs as soon as it is there."""
        return ""
