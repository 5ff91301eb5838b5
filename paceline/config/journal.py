"""Files that grow by whole lines and survive a kill, and locks between processes.

A process that is killed in the middle of a write leaves a torn last line. Readers leave it out, and the next writer cuts it.
No link is followed: somebody else could have put one there that leads to another file.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from paceline.config.plain_file import open_plain_sized
from paceline.config.posix import O_BINARY, O_NOFOLLOW, O_NONBLOCK, flock, own_user, pread

# Three thousand ranks that log every step of a day write half of it.
MOST_BYTES = 1 << 29
_BLOCK = 1 << 16
# What file systems without locks answer.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_FLAGS = os.O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_BINARY


class Journal:
    """Lines are appended to `path`; each has left the process when `append` returns.

    The file is opened for each append: there is nothing to close, and a file that was removed meanwhile is not made anew.
    torn: whether a last line without its end was cut at the beginning.
    """

    def __init__(self, path: Path, *, shared: bool = False, most: int | None = MOST_BYTES, mode: int = 0o666) -> None:
        """Make the file, or take up what is there.

        shared  other processes append too, so a torn last line may be one that is just being written: it is ended, not cut
        most    bytes that an existing file may have
        Raises OSError for a link, a longer file, and what cannot be written.
        """
        self.path = path
        with open(os.open(path, _FLAGS | os.O_CREAT, mode), "r+b", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            if most is not None and size > most:  # a hole of any length, which is read as zeros
                raise OSError(errno.EFBIG, f"{size:,} bytes, more than the {most:,} that are read", str(path))
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
        if own and os.fstat(descriptor).st_uid != own_user():
            return
        begins = True
        for line in iter(lambda: file.readline(longest), b""):
            ends = line.endswith(b"\n")
            if begins and ends:
                yield line[:-1]
            begins = ends


def lock(
    path: Path,
    *,
    shared: bool = False,
    waits: Callable[[], None] | None = None,
    no_locks: Callable[[], None] | None = None,
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
