"""Input that nobody made by accident: what the tables beside this file have in common, and what came of a case.

A table maps the name of a case to what is done to a good folder, and to what the refusal says; "" where the case is harmless and
is taken. Nothing may execute, wait, fill the memory, or print what a terminal obeys.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from paceline._utils.errors import PacelineError
from paceline._utils.text import escape_text
from paceline.cli.main import main

# What is done to the folder; what the refusal says, or "".
Case = tuple[Callable[[Path], object], str]
MAX_LINES = 8
ESCAPE = "\x1b]0;owned\x07"


@dataclass(frozen=True)
class Family:
    """good     makes a folder that is taken
    read     the readers that the command is made of, on that folder
    words    the command
    """

    name: str
    good: Callable[[Path], object]
    read: Callable[[Path], object]
    words: Callable[[Path], list[object]]
    cases: Mapping[str, Case]


def parameters(family: Family) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", family.cases)


def judge(family: Family, name: str, folder: Path) -> None:
    """Carry out one case under the readers."""
    change, says = family.cases[name]
    family.good(folder)
    change(folder)
    if not says:
        family.read(folder)
        return
    with pytest.raises(PacelineError) as refused:
        family.read(folder)
    check_message(str(refused.value), says)


def check_message(message: str, says: str) -> None:
    assert re.search(says, message), message
    lines = escape_text(message).splitlines()
    assert len(lines) <= MAX_LINES and len(message) < 4000, message
    assert not any(line.startswith("forged") for line in lines), message


@dataclass(frozen=True)
class Outcome:
    """What came of a case through the command line.

    mebibytes  that the process had resident at its most, beyond what it had from the process that it was forked from
    seconds    of the processor, user and system
    """

    kind: str  # refused, taken, or what is wrong
    mebibytes: float
    seconds: float


def through_the_command_line(family: Family, name: str, folder: Path, limit_seconds: int = 120) -> Outcome:
    """Carry out one case as a command in a process of its own, forked from this one."""
    change, says = family.cases[name]
    family.good(folder)
    change(folder)
    with tempfile.TemporaryFile("w+b") as said:
        before = resident_mebibytes()
        child = os.fork()
        if child == 0:
            _carry_out(family.words(folder), said.fileno())
        deadline = time.monotonic() + limit_seconds
        while True:
            pid, status, used = os.wait4(child, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > deadline:
                os.kill(child, 9)
                os.wait4(child, 0)
                return Outcome("hangs", 0, limit_seconds)
            time.sleep(0.005)
        said.seek(0)
        text = said.read().decode("utf-8", "backslashreplace")
    kind = _kind(os.waitstatus_to_exitcode(status), text, says)
    return Outcome(kind, used.ru_maxrss / 1024 - before, used.ru_utime + used.ru_stime)


def resident_mebibytes() -> float:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def _carry_out(words: list[object], out: int) -> None:
    try:
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.stdout = sys.stderr = os.fdopen(os.dup(out), "w", errors="backslashreplace", buffering=1)
        code = main([str(word) for word in words])
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        code = 99
    os._exit(code)


def _kind(code: int, text: str, says: str) -> str:
    if "Traceback" in text:
        return "traceback"
    if "\x1b" in text or "\x07" in text or any(line.startswith("forged") for line in text.splitlines()):
        return "reaches the terminal"
    if code == 2 and says and re.search(says, text):
        return "refused"
    return "taken" if code == 0 and not says else f"exit code {code}: {text[-300:]!r}"


def fifo(path: Path) -> None:
    """Put a named pipe in the place of a file."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def zeros(path: Path) -> None:
    """Put a link to endless zeros in the place of a file."""
    path.unlink(missing_ok=True)
    os.symlink("/dev/zero", path)


def unix_socket(path: Path) -> None:
    """Put a socket in the place of a file."""
    path.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{short}/s")
        os.rename(f"{short}/s", path)


def sparse(path: Path, size: int, start: bytes = b"") -> None:
    """A file of zeros that takes no room on the disk."""
    path.unlink(missing_ok=True)
    with open(path, "wb") as file:
        file.write(start)
        file.truncate(size)
