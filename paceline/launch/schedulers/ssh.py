"""Commands on other hosts over the user's own ssh; and, as a program, a launch's node script on all hosts at once.

    python -m paceline.launch.schedulers.ssh RUN/launch 'python3' node1 node2

Keys, names and users come from ~/.ssh/config and nothing else; a host that is this machine is reached without ssh.
The program shows the output of all hosts with their names. Each host's number is its place in the list. SIGTERM and SIGINT ask
all hosts to save and end; when one host ends badly, the others get a little time to print why they end, and are ended then.
Killed, it leaves nothing behind either: see attend.py.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline._utils.text import escape_line, escape_text
from paceline.distributed.comm.interfaces import is_address_of_this_host
from paceline.launch.job import Words

LOOK_SECONDS = 0.1
# For what a host printed last to be read; somebody who outlives it may hold the pipe open.
LAST_WORDS_SECONDS = 5.0
# After one host has gone: longer than ranks take to notice a silence (20 s) and torchrun to end them (30 s).
OTHERS_SECONDS = 60.0
# From hanging up to nobody being there: attend.py's grace, and some.
HANG_UP_SECONDS = 20.0
LOST = 3
LIKE_A_LOGIN = ("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "TMPDIR")
# ssh's own exit code where it could not connect, or lost the connection; else the command's.
NO_CONNECTION = 255


def ssh_options() -> Words:
    """ssh's options: nobody is there to type a password; a dead host is noticed when connecting, and within 15 s later on."""
    values = {"BatchMode": "yes", "ConnectTimeout": 10, "ServerAliveInterval": 5, "ServerAliveCountMax": 3}
    return tuple(word for name, value in values.items() for word in ("-o", f"{name}={value}"))


def wrap_for_host(address: str, command: Words) -> Words:
    """What runs `command` on the host `address`, standard input and output included."""
    if is_address_of_this_host(address):
        return command
    return ("ssh", "-T", *ssh_options(), "--", address, shlex.join(command))


def make_host_environment(command: Words, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Environment for `command`, of `wrap_for_host`: a host that is this machine gets no more than a login gives the others.

    Otherwise ranks here would have variables that ranks on other hosts lack, from PACELINE_SECRET to NCCL's switches.
    """
    if command[0] == "ssh":
        return dict(environ)
    return {name: value for name, value in environ.items() if name in LIKE_A_LOGIN}


def find_ssh_reason(output: str) -> str:
    """The line of ssh's own output that gives the reason, for a message; ssh writes what it tried before what failed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return escape_line(lines[-1].rstrip(".")[:300]) if lines else "no output of ssh"


_printing = threading.Lock()


def print_line(line: str) -> None:
    """Print one whole line, from any thread."""
    with _printing:
        print(line, flush=True)


class SSHConnection:
    """One host's part of the job."""

    def __init__(self, address: str, command: Words):
        self.address = address
        words = wrap_for_host(address, command)
        self._over_ssh = words != command
        pipe, env = subprocess.PIPE, make_host_environment(words)
        self._process = subprocess.Popen(words, env=env, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT)
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

    def ask_to_stop(self) -> None:
        """Ask it to save and end."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"stop\n")
            self._process.stdin.flush()
        except (OSError, ValueError):  # it has gone by itself, or was hung up
            return

    def hang_up(self) -> None:
        """End it: attend.py on the other side then ends what runs there."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except OSError:  # it has gone by itself
            return

    def kill(self) -> None:
        """No longer wait for the other side."""
        self._process.kill()

    def _show(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                print_line(f"{self.address}: {escape_text(line.decode(errors='replace').rstrip())}")


def run_on_hosts(folder: Path, python: Words, addresses: Sequence[str]) -> int:
    """Start all hosts and wait for all; -> 0, or the exit code of the first host that ended otherwise."""
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, frame: signals.append(received))
    script, holder = str(folder / "node.sh"), str(folder / "attend.py")
    going = [
        SSHConnection(address, (*python, holder, "bash", script, str(number))) for number, address in enumerate(addresses)
    ]
    code, handled, hang_up_at = 0, 0, float("inf")
    while going:
        for connection in list(going):
            ended = connection.ended()
            if ended is None:
                continue
            going.remove(connection)
            if connection.is_lost():
                print_line(f"{connection.address}: connection lost. The processes on this host end when they detect it.")
                ended = LOST
            if ended:
                code = code or ended
                hang_up_at = min(hang_up_at, time.monotonic() + OTHERS_SECONDS)
        if len(signals) > handled:
            handled = len(signals)
            for connection in going:
                connection.ask_to_stop()
        if time.monotonic() > hang_up_at:
            for connection in going:
                connection.hang_up()
            if time.monotonic() > hang_up_at + HANG_UP_SECONDS:
                for connection in going:
                    print_line(f"{connection.address}: does not end; killing the connection")
                    connection.kill()
        time.sleep(LOOK_SECONDS)
    return code


if __name__ == "__main__":
    sys.exit(run_on_hosts(Path(sys.argv[1]), tuple(shlex.split(sys.argv[2])), sys.argv[3:]))
