"""Files that grow by whole lines and survive a kill, and locks between processes.

A process that is killed in the middle of a write leaves a torn last line. Readers leave it out, and the next writer cuts it.
No link is followed: somebody else could have put one there that leads to another file.
"""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from paceline._utils.atomic_write import atomic_write
from paceline._utils.commands import format_path
from paceline._utils.errors import PacelineError
from paceline._utils.platform import O_BINARY, O_NOFOLLOW, O_NONBLOCK, flock, get_user_id, pread
from paceline._utils.safe_read import open_plain_sized, read_entry

# Three thousand ranks that log every step of a day write half of it.
MAX_BYTES = 1 << 29
_BLOCK = 1 << 16
# What file systems without locks answer.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_FLAGS = os.O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_BINARY


class Journal:
    """Lines are appended to `path`; each has left the process when `append` returns.

    The file is opened for each append: there is nothing to close, and a file that was removed meanwhile is not made anew.
    torn: whether a last line without its end was cut at the beginning.
    """

    def __init__(self, path: Path, *, shared: bool = False, most: int | None = MAX_BYTES, mode: int = 0o666) -> None:
        """Make the file, or take up what is there.

        shared  other processes append too, so a torn last line may be one that is just being written: it is ended, not cut
        most    bytes that an existing file may have
        Raises OSError for a link, a longer file, and what cannot be written.
        """
        self.path = path
        with open(os.open(path, _FLAGS | os.O_CREAT, mode), "r+b", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            if most is not None and size > most:  # a hole of any length, which is read as zeros
                raise OSError(errno.EFBIG, f"{size:,} bytes; the limit is {most:,}", str(path))
            whole, end = 0, size
            while end > 0 and whole == 0:
                start = max(0, end - _BLOCK)
                whole = start + pread(file.fileno(), end - start, start).rfind(b"\n") + 1
                whole, end = 0 if whole == start else whole, start
            self.torn = whole < size and not shared
            if self.torn:
                file.truncate(whole)
        if whole < size and shared:
            self.append(b"\n")

    def append(self, lines: bytes, *, durable: bool = False) -> None:
        """Write whole lines, with their newlines, by one write where the disk takes all of it. Raises OSError.

        durable  wait until the disk has them
        """
        with open(os.open(self.path, _FLAGS | os.O_APPEND), "ab", buffering=0) as file:
            left = memoryview(lines)
            while left:  # a nearly full disk takes a part, and the next write raises
                left = left[file.write(left) :]
            if durable:
                os.fsync(file.fileno())

    def clear(self) -> None:
        """Drop all lines. Raises OSError."""
        os.close(os.open(self.path, _FLAGS | os.O_TRUNC))


def read_lines(path: Path, longest: int, *, own: bool = False) -> Iterator[bytes]:
    """Every whole line of a journal without its newline; none where there is no file. Longer lines are left out.

    own  only of a file that belongs to this user
    Raises OSError.
    """
    try:
        descriptor, _ = open_plain_sized(path, links=False)
    except FileNotFoundError:
        return
    with open(descriptor, "rb") as file:
        if own and os.fstat(descriptor).st_uid != get_user_id():
            return
        begins = True
        for line in iter(lambda: file.readline(longest), b""):
            ends = line.endswith(b"\n")
            if begins and ends:
                yield line[:-1]
            begins = ends


def lock(
    path: Path, *, shared: bool = False, waits: Callable[[], None] | None = None, no_locks: Callable[[], None] | None = None
) -> int:
    """-> a descriptor that holds the lock of the file `path`, which is made where there is none, until it is closed.

    shared  beside others that share it
    waits   called once where another process holds it, which is then waited for; None: BlockingIOError instead
    no_locks  called if the file system has no locks, and the descriptor holds none; None: OSError instead
    Raises OSError; FileNotFoundError where its folder is gone.
    """
    while True:
        descriptor = os.open(path, _FLAGS | os.O_CREAT, 0o666)
        try:
            try:
                flock(descriptor, shared=shared)
            except BlockingIOError:
                if waits is None:
                    raise
                waits()
                flock(descriptor, shared=shared, waits=True)
            except OSError as error:
                if no_locks is None or error.errno not in _NO_LOCKS:
                    raise
                no_locks()
            if os.fstat(descriptor).st_nlink:
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # removed between opening and locking: that file has no name any more


class LineWriter:
    """A journal of text, whose errors say what to do; `torn` as there.

    Raises PacelineError where the file cannot be written (full disk, read-only folder).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._journal = Journal(path)
        except OSError as error:
            raise write_error(path, error) from error
        self.torn = self._journal.torn

    def append(self, line: str, *, durable: bool = False) -> None:
        """Write one line (without its newline). `durable` waits until the disk has it."""
        try:
            self._journal.append(line.encode() + b"\n", durable=durable)
        except OSError as error:
            raise write_error(self.path, error) from error

    def lines(self) -> list[str]:
        """Every line without its newline; bytes that are no UTF-8 come as lone surrogates. Raises PacelineError."""
        try:
            content = read_entry(self.path, MAX_BYTES)
        except OSError as error:
            raise write_error(self.path, error) from error
        return content.decode(errors="surrogateescape").split("\n")[:-1]

    def rewrite(self, keep: Callable[[str], bool]) -> int:
        """Drop every line for which `keep` is false, and return how many were dropped."""
        try:
            lines = self.lines()
            kept = [line for line in lines if keep(line)]
            pieces = (line.encode(errors="surrogateescape") + b"\n" for line in kept)
            atomic_write(self.path, pieces, sync=True)
        except OSError as error:
            raise write_error(self.path, error) from error
        return len(lines) - len(kept)


def name_lines(numbers: Sequence[int]) -> str:
    """Numbers of lines for a message: "line 7", "lines 7, 9, 12", "lines 1, 2, 3, 4, 5 and 40 more"."""
    shown = ", ".join(map(str, numbers[:5])) + (f" and {len(numbers) - 5} more" if len(numbers) > 5 else "")
    return f"line {shown}" if len(numbers) == 1 else f"lines {shown}"


def write_error(path: Path, error: OSError) -> PacelineError:
    """The error where a file of a run cannot be written."""
    folder = path.parent.parent if path.parent.name == "predictions" else path.parent
    remedy = (
        "Free some space or make the folder writable. To resume the run, repeat the command with "
        f"{shlex.join(['--output-dir', str(format_path(folder))])}"
    )
    if isinstance(error, FileNotFoundError):
        remedy = "The run folder was removed during the run. The same command starts a new run."
    elif error.errno in (errno.EFBIG, errno.ELOOP, errno.EINVAL):
        remedy = "Move the file, and repeat the command."
    return PacelineError(f"{path}: not writable ({error.strerror or error}).\n{remedy}")
