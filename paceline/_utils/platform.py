"""What POSIX has and Windows lacks, behind one door: flags of open, locks between processes, reading by position, limits, users.

Where a system has none of it, the nearest that it has stands in, or OSError is raised as by a file system that lacks it, which callers
expect. macOS has all. Nothing here has run on Windows (docs/reference/platform-support.md): tests/training/test_other_systems.py
takes away on Linux what Windows lacks.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

try:
    import fcntl
    import resource
except ImportError:  # Windows
    fcntl = resource = None

# Flags that a system lacks are 0. Windows would translate newlines without O_BINARY. Python's descriptors are not inherited: PEP 446.
O_NOFOLLOW, O_NONBLOCK, O_NOCTTY, O_DIRECTORY = (
    getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_DIRECTORY")
)
O_BINARY = getattr(os, "O_BINARY", 0)
# What asks a rank to save and end, as SIGTERM does.
SIGUSR1 = getattr(signal, "SIGUSR1", signal.SIGTERM)
# Whether a file or a folder can be held open and locked while it is written, renamed and removed.
HOLDS = fcntl is not None
# On Windows the byte of a file that is locked: nobody may read what is locked there, and no file with a lock is as long.
_FAR = 2**31 - 2
_POSITION = threading.Lock()


@contextmanager
def handle_signals(numbers: Iterable[int], handler: Callable[[int, FrameType | None], object]) -> Iterator[dict[int, Any]]:
    """These signals call `handler` inside the block; yields the previous handlers, which come back after it.

    Nothing is caught outside the main thread, where Python allows no handlers.
    """
    main = threading.current_thread() is threading.main_thread()
    previous = {number: signal.signal(number, handler) for number in numbers if main}
    try:
        yield previous
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


def flock(descriptor: int, *, shared: bool = False, waits: bool = False) -> None:
    """Lock an open file against other processes until it is closed.

    shared  beside others that share it
    waits   for a process that holds it; else BlockingIOError
    Raises OSError where there are no such locks: some file systems, and shared ones on Windows.
    """
    if fcntl is not None:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if waits else fcntl.LOCK_NB))
        return
    if shared:
        raise OSError(errno.ENOLCK, "this system has no shared locks")
    while not _lock_byte(descriptor, "LK_NBLCK"):
        if not waits:
            raise BlockingIOError(errno.EAGAIN, "another process holds it")
        time.sleep(0.05)


def unlock(descriptor: int) -> None:
    """Undo `flock` before the file is closed. Raises OSError."""
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    else:
        _lock_byte(descriptor, "LK_UNLCK")


def _lock_byte(descriptor: int, how: str) -> bool:
    """Windows' lock of one byte -> whether it was free. Raises OSError for all else."""
    import msvcrt

    before = os.lseek(descriptor, 0, os.SEEK_CUR)
    os.lseek(descriptor, _FAR, os.SEEK_SET)
    try:
        msvcrt.locking(descriptor, getattr(msvcrt, how), 1)  # pyright: ignore[reportAttributeAccessIssue]
    except PermissionError:
        return False
    finally:
        os.lseek(descriptor, before, os.SEEK_SET)
    return True


def pread(descriptor: int, length: int, offset: int) -> bytes:
    """At most `length` bytes from `offset` on, by one system call; threads may share the descriptor. Raises OSError."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, length, offset)
    with _POSITION:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, length)


def pwrite(descriptor: int, data: bytes | memoryview, offset: int) -> int:
    """Write at `offset` -> how many bytes the system took; threads may share the descriptor. Raises OSError."""
    if hasattr(os, "pwrite"):
        return os.pwrite(descriptor, data, offset)
    with _POSITION:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.write(descriptor, data)


def get_user_id() -> int:
    """The number of this process's user, as `st_uid` of its files has it: 0 on Windows."""
    return os.geteuid() if hasattr(os, "geteuid") else 0


def get_soft_limit(name: str) -> int | None:
    """This process's limit, e.g. of RLIMIT_AS; None without one."""
    if resource is None or not hasattr(resource, name):
        return None
    soft, _ = resource.getrlimit(getattr(resource, name))
    return None if soft == resource.RLIM_INFINITY else soft


def allow_open_files(wanted: int) -> None:
    """Raise this process's limit of open files to `wanted`, or as far as its user may."""
    soft = get_soft_limit("RLIMIT_NOFILE")
    if resource is None or soft is None:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def get_allowed_cpus() -> set[int]:
    """The hardware threads that this process may run on, by Linux's numbers (containers and Slurm restrict them)."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def count_cpus() -> int:
    """How many hardware threads this process may run on."""
    return len(get_allowed_cpus())
