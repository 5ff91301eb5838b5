"""Text files that grow by whole lines and survive a kill (config/journal.py): events.jsonl, mllog.txt, pack.jsonl.

A rewrite (for resuming) appears whole or not at all.
"""

from __future__ import annotations

import errno
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from paceline.config.commands import shown
from paceline.config.errors import UserError
from paceline.config.journal import MOST_BYTES, Journal
from paceline.config.plain_file import read_entry
from paceline.config.whole import write_whole


class LineFile:
    """A journal of text, whose errors say what to do; `torn` as there.

    Raises UserError where the file cannot be written (full disk, read-only folder).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._journal = Journal(path)
        except OSError as error:
            raise cannot_write(path, error) from error
        self.torn = self._journal.torn

    def append(self, line: str, *, durable: bool = False) -> None:
        """Write one line (without its newline). `durable` waits until the disk has it."""
        try:
            self._journal.append(line.encode() + b"\n", durable=durable)
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


def name_lines(numbers: Sequence[int]) -> str:
    """Numbers of lines for a message: "line 7", "lines 7, 9, 12", "lines 1, 2, 3, 4, 5 and 40 more"."""
    shown = ", ".join(map(str, numbers[:5])) + (f" and {len(numbers) - 5} more" if len(numbers) > 5 else "")
    return f"line {shown}" if len(numbers) == 1 else f"lines {shown}"


def cannot_write(path: Path, error: OSError) -> UserError:
    """The error where a file of a run cannot be written."""
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
