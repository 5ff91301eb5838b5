"""A text file that grows by whole lines and survives a kill: what events.jsonl and mllog.txt are written through.

A process killed in the middle of a write leaves a torn last line. It is cut when the file is taken up again, so every
line that a reader finds is whole; a rewrite (for resuming) appears whole or not at all.
"""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from paceline.config.commands import shown
from paceline.config.errors import UserError
from paceline.config.plain_file import read_entry
from paceline.config.whole import write_whole

_BLOCK = 1 << 16
# Three thousand ranks that log every step of a day write half of it.
MOST_BYTES = 1 << 29


class LineFile:
    """Appends lines to `path`; each has left the process when `append` returns, and is on the disk if `durable`.

    It is opened for each line: a line an interval is rare, and there is nothing to close, whatever way a run ends.
    torn: whether a last line without its end was cut when the file was taken up.
    Raises UserError where the file cannot be written (full disk, read-only folder).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.torn = _cut_torn_tail(path)
        except OSError as error:
            raise cannot_write(path, error) from error

    def append(self, line: str, *, durable: bool = False) -> None:
        """Write one line (without its newline). `durable` waits until the disk has it."""
        try:
            with open(self.path, "ab", opener=_own) as file:
                file.write(line.encode() + b"\n")
                file.flush()
                if durable:
                    os.fsync(file.fileno())
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def lines(self) -> list[str]:
        """Every line without its newline; bytes that are no UTF-8 come as lone surrogates. Raises UserError."""
        try:
            content = read_entry(self.path, MOST_BYTES)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        return content.decode(errors="surrogateescape").split("\n")[:-1]

    def rewrite(self, keep: Callable[[str], bool]) -> int:
        """Drop every line for which `keep` is false, and return how many were dropped."""
        try:
            lines = self.lines()
            kept = [line for line in lines if keep(line)]
            pieces = (line.encode(errors="surrogateescape") + b"\n" for line in kept)
            write_whole(self.path, pieces, sync=True)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        return len(lines) - len(kept)


def _own(path: str, flags: int) -> int:
    """An opener: neither follows a link nor waits for a pipe's reader, nor makes a file anew that was removed meanwhile."""
    return os.open(path, flags & ~os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)


def _cut_torn_tail(path: Path) -> bool:
    with open(
        os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666), "r+b"
    ) as file:
        size = end = file.seek(0, os.SEEK_END)
        if size > MOST_BYTES:  # a hole of any length, which is read as zeros
            raise OSError(errno.EFBIG, f"{size:,} bytes, more than the {MOST_BYTES:,} that are read", str(path))
        whole = 0
        while end > 0 and whole == 0:
            start = max(0, end - _BLOCK)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            whole = 0 if newline < 0 else start + newline + 1
            end = start
        if whole < size:
            file.truncate(whole)
        return whole < size


def name_lines(numbers: Sequence[int]) -> str:
    """Numbers of lines for a message: "line 7", "lines 7, 9, 12", "lines 1, 2, 3, 4, 5 and 40 more"."""
    shown = ", ".join(map(str, numbers[:5])) + (f" and {len(numbers) - 5} more" if len(numbers) > 5 else "")
    return f"line {shown}" if len(numbers) == 1 else f"lines {shown}"


def cannot_write(path: Path, error: OSError) -> UserError:
    """What to say where a file of a run cannot be written."""
    folder = path.parent.parent if path.parent.name == "predictions" else path.parent
    remedy = (
        "Free some space or make the folder writable, then give the same command again, with "
        f"{shlex.join(['--out', str(shown(folder))])}: an unfinished run resumes."
    )
    if isinstance(error, FileNotFoundError):
        remedy = "The run's folder was removed while the run was using it; the same command starts anew."
    elif error.errno in (errno.EFBIG, errno.ELOOP, errno.EINVAL):
        remedy = "Move it away, and give the same command again."
    return UserError(f"{path}: cannot write: {error.strerror or error}.\n{remedy}")
