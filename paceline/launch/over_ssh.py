"""Run a launch's node script on every host at once, and stay with them: their output with their names, and one end for all.

    python -m paceline.launch.over_ssh RUN/launch 'python3' node1 node2

Each host's number is its place in the list. SIGTERM and SIGINT ask all hosts to save and end; when one host ends badly, the
others get a little time to say why they end, and are ended then. Killed, it leaves nothing behind either: see attend.py.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from paceline.config.printable import printable
from paceline.launch.hosts import NO_CONNECTION, environment_for, on_host
from paceline.launch.job import Words

LOOK_SECONDS = 0.1
# For what a host printed last to be read; somebody who outlives it may hold the pipe open.
LAST_WORDS_SECONDS = 5.0
# After one host has gone: longer than ranks take to notice a silence (20 s) and torchrun to end them (30 s).
OTHERS_SECONDS = 60.0
# From hanging up to nobody being there: attend.py's grace, and some.
HANG_UP_SECONDS = 20.0
LOST = 3


class Connection:
    """One host's part of the job."""

    def __init__(self, address: str, command: Words):
        self.address = address
        words = on_host(address, command)
        self._over_ssh = words != command
        self._process = subprocess.Popen(
            words,
            env=environment_for(words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._reader = threading.Thread(target=self._show, daemon=True)
        self._reader.start()

    def ended(self) -> int | None:
        """None while it goes on; then its exit code, once all that it printed is shown."""
        code = self._process.poll()
        if code is not None:
            self._reader.join(LAST_WORDS_SECONDS)
            self.hang_up()
        return code

    def is_lost(self) -> bool:
        """Whether it ended because ssh did."""
        return self._over_ssh and self._process.poll() == NO_CONNECTION

    def ask(self) -> None:
        """To save and end."""
        self._write(b"stop\n")

    def hang_up(self) -> None:
        """End it; the other side is alone from now on, and knows what to do."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except OSError:  # it has gone by itself
            return

    def kill(self) -> None:
        """No longer wait for the other side."""
        self._process.kill()

    def _write(self, text: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(text)
            self._process.stdin.flush()
        except (OSError, ValueError):  # it has gone by itself, or was hung up
            return

    def _show(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                say(f"{self.address}: {printable(line.decode(errors='replace').rstrip())}")


_one_at_a_time = threading.Lock()


def say(line: str) -> None:
    """One whole line, whichever thread."""
    with _one_at_a_time:
        print(line, flush=True)


def run(folder: Path, python: Words, addresses: Sequence[str]) -> int:
    """Start all hosts and wait for all; -> 0, or the exit code of the first host that ended otherwise."""
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, frame: asked.append(received))
    script, holder = str(folder / "node.sh"), str(folder / "attend.py")
    going = [
        Connection(address, (*python, holder, "bash", script, str(number))) for number, address in enumerate(addresses)
    ]
    code, told, hang_up_at = 0, 0, float("inf")
    while going:
        for connection in list(going):
            ended = connection.ended()
            if ended is None:
                continue
            going.remove(connection)
            if connection.is_lost():
                say(
                    f"{connection.address}: its connection broke off. What runs there ends as soon as it misses the others."
                )
                ended = LOST
            if ended:
                code = code or ended
                hang_up_at = min(hang_up_at, time.monotonic() + OTHERS_SECONDS)
        if len(asked) > told:
            told = len(asked)
            for connection in going:
                connection.ask()
        if time.monotonic() > hang_up_at:
            for connection in going:
                connection.hang_up()
            if time.monotonic() > hang_up_at + HANG_UP_SECONDS:
                for connection in going:
                    say(f"{connection.address}: does not end; given up")
                    connection.kill()
        time.sleep(LOOK_SECONDS)
    return code


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), tuple(shlex.split(sys.argv[2])), sys.argv[3:]))
