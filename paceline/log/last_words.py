"""Last words where a C library ends the process.

OpenMP that gets no thread, and OpenBLAS that gets no memory, call exit() in the middle of a run: destructors then run under
threads that still work, and the process crashes or never ends. Here a line is printed, and it ends at once.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import os
import sys
from collections.abc import Callable

_FAILED = 3
# Identifies our handlers to the C library: any address that nobody else has.
_handle = ctypes.create_string_buffer(1)
_callbacks: list[Callable[..., None]] = []  # C code holds them, so they must live


def have_last_words() -> None:
    """From here to the interpreter's end, exit() called by a library says so and ends this process with code 3.

    Call it again after loading libraries: their destructors then come after it.
    A crash (SIGSEGV and its like) prints where each thread was, unless somebody has arranged for that already.
    """
    if not faulthandler.is_enabled():
        faulthandler.enable(2)
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "__cxa_finalize"):
        return
    if not _callbacks:
        atexit.register(_forget, libc)
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_say_and_end)
    _callbacks.append(callback)
    libc.__cxa_atexit(callback, None, _handle)


def _say_and_end(_: object) -> None:
    if not _callbacks:
        return
    # The library's own line stands above this one.
    print(
        "paceline: a library ended this process, most likely for want of memory or threads: give it more "
        "(`ulimit -v`, `ulimit -u`), or fewer --system.loader-threads and a smaller --system.images-per-forward "
        "(the result is the same)",
        file=sys.stderr,
        flush=True,
    )
    os._exit(_FAILED)


def _forget(libc: ctypes.CDLL) -> None:
    """The interpreter ends in good order: no handler may be left that needs Python once Python is gone."""
    kept = _callbacks.copy()
    _callbacks.clear()
    libc.__cxa_finalize(_handle)  # runs the handlers of this handle and removes them
    kept.clear()
