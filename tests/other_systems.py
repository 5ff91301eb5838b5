"""Takes away on Linux what macOS or Windows lacks: names of os, signal and time, modules, /proc and /sys, and opening a folder.

It is no other system: torch and the decoders are Linux's, and so are the file system (an open file can be renamed, links need no
right), shutil, subprocess and tempfile.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import types
from typing import Any

MACOS = {
    os: "sched_getaffinity sched_setaffinity posix_fadvise posix_fallocate memfd_create eventfd O_TMPFILE O_PATH O_DIRECT",
    time: "CLOCK_BOOTTIME",
}
WINDOWS = {
    os: "O_CLOEXEC O_NOFOLLOW O_NONBLOCK O_NOCTTY O_DIRECTORY O_SYNC O_DSYNC fork forkpty register_at_fork "
    "getuid geteuid getgid getegid getgroups setuid setgid killpg setsid getpgid getpgrp getsid pread pwrite preadv pwritev statvfs "
    "fstatvfs fchmod fchown chown lchown mkfifo mknod sysconf uname getloadavg nice getpriority setpriority sendfile wait wait3 wait4 "
    "WNOHANG fdatasync fchdir chroot ctermid openpty ttyname " + MACOS[os],
    signal: "SIGUSR1 SIGUSR2 SIGHUP SIGALRM SIGCHLD SIGPIPE pthread_kill pthread_sigmask sigwait setitimer alarm",
    time: "clock_gettime clock_getres",
}


def windows_locks() -> types.ModuleType:
    """msvcrt with its locks alone: of bytes, held by one opening of a file, refused to all others."""
    module: Any = types.ModuleType("msvcrt")
    module.LK_UNLCK, module.LK_NBLCK = 0, 2
    call, command = fcntl.fcntl, fcntl.F_OFD_SETLK

    def locking(descriptor: int, mode: int, length: int) -> None:
        kind = fcntl.F_WRLCK if mode == module.LK_NBLCK else fcntl.F_UNLCK
        at = os.lseek(descriptor, 0, os.SEEK_CUR)
        try:
            call(descriptor, command, struct.pack("hhqqixxxx", kind, os.SEEK_SET, at, length, 0))
        except BlockingIOError:
            raise PermissionError(13, "Permission denied") from None

    module.locking = locking
    return module


def become(system: str) -> None:
    """Make this process lack what `system`, darwin or win32, lacks. Whatever looks at Linux as it is imported comes before."""
    whole = types.ModuleType("os")
    vars(whole).update(vars(os))
    vars(shutil)["os"] = vars(subprocess)["os"] = vars(tempfile)["_os"] = whole
    for module, names in (WINDOWS if system == "win32" else MACOS).items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    if system == "win32":
        sys.modules["msvcrt"] = windows_locks()
        for name in ("fcntl", "resource", "pwd", "grp", "termios"):
            sys.modules[name] = None  # pyright: ignore[reportArgumentType]
    sys.platform = system
    real = os.stat

    def stat(path: Any, *arguments: Any, **keywords: Any) -> os.stat_result:
        if isinstance(path, str | bytes | os.PathLike) and os.fsdecode(path).startswith(("/proc/", "/sys/")):
            raise FileNotFoundError(2, "no such file", os.fsdecode(path))
        return real(path, *arguments, **keywords)

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], str | bytes):
            path = os.fsdecode(arguments[0])
            if path.startswith(("/proc/", "/sys/")):
                raise FileNotFoundError(2, "no such file", path)
            # By os.open, which has no mode; open() may have an opener of its own.
            if system == "win32" and event == "open" and arguments[1] is None and os.path.isdir(path):
                raise PermissionError(13, "Windows opens no folder", path)

    os.stat = stat
    sys.addaudithook(refuse)
