"""One host's end of a launch, here or over ssh: runs the command that starts this host's ranks, and leaves nothing of it behind.

    python3 attend.py bash RUN/launch/node.sh 1        (its standard input is the connection to whoever launched)

A line `stop` asks the command to save and end (`stop 10`: by that signal), `end` ends it at once. The end of the input means that
the launcher has gone: the command is asked once, and ended a little later. What is ended is all that it ever started, whatever
sessions and process groups those are in.
Copied into the run's folder and run there by itself: standard library only, and any Python from 3.8 on.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
# Between asking and ending, once nobody is there to see a checkpoint being written.
GRACE_SECONDS = 10.0
AGAIN_SECONDS = 0.05


def run_guarded(command: list[str]) -> int:
    """Run `command` to its end; -> its exit code, 128 + the signal where one ended it."""
    # Whoever loses its parent becomes our child, so that nothing escapes from `list_descendants`.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: request_stop(child))
    threading.Thread(target=obey_launcher, args=(child,), daemon=True).start()
    code = child.wait()
    kill_descendants()
    return code if code >= 0 else 128 - code


def obey_launcher(child: subprocess.Popen[bytes]) -> None:
    """Obey the launcher for as long as it is there."""
    while line := os.read(0, 64):
        for word, *number in map(bytes.split, line.splitlines()):
            if word == b"stop":
                request_stop(child, *map(int, number))
            elif word == b"end":
                kill_descendants()
    request_stop(child)
    time.sleep(GRACE_SECONDS)
    kill_descendants()


def request_stop(child: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> None:
    """By default SIGTERM, which torchrun hands on to its ranks."""
    if child.poll() is None:
        child.send_signal(number)


def kill_descendants() -> None:
    """Kill what is left below this process, until nothing is."""
    while left := list_descendants():
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(AGAIN_SECONDS)


def list_descendants() -> list[int]:
    """All processes that come from this one and still run; a zombie is none."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]  # its name may hold blanks and brackets
        except OSError:  # it ended meanwhile
            continue
        if state not in (b"Z", b"X"):
            children.setdefault(int(parent), []).append(int(name))
    results = list(children.get(os.getpid(), []))
    for process in results:
        results += children.get(process, [])
    return results


if __name__ == "__main__":
    sys.exit(run_guarded(sys.argv[1:]))
