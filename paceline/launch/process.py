"""A job that is a process of ours: the script that starts ranks here, or on other hosts over ssh."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from paceline.launch import attend
from paceline.launch.job import Words


class Process:
    """A command in a session of its own, so that a terminal's Ctrl-C reaches it through us alone, and once.

    On Linux it does not outlive us, whatever ends us, and is ended with all that it started: attend.py holds it.
    """

    def __init__(self, command: Words, log: Path, stop: signal.Signals):
        held = (sys.executable, "-I", attend.__file__) if sys.platform == "linux" else ()
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                (*held, *command),
                stdin=subprocess.PIPE if held else subprocess.DEVNULL,  # its end is what tells of ours
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
        """The starter's own signal, to it alone: it tells its ranks."""
        if self._process.poll() is None and not self._order(f"stop {int(self._stop)}"):
            self._process.send_signal(self._stop)

    def kill(self) -> None:
        """End all of it."""
        if self._process.poll() is None and not self._order("end"):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.poll()

    def _order(self, what: str) -> bool:
        """Leave it to who holds the command; -> whether somebody does."""
        if self._process.stdin is None:
            return False
        with suppress(BrokenPipeError):  # it has just ended
            self._process.stdin.write(f"{what}\n".encode())
        return True

    def standing(self) -> str:
        """It runs as soon as it is there."""
        return ""
