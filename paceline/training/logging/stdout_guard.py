"""Standard output that may fail (a pipe's reader that leaves, a full disk, a closed terminal), and libraries that call exit().

What a command prints is not its work: training continues without a reader, and prints so once where it still can. While
`keep_output_open` holds, nothing that prints, in any thread or library, is stopped by that.
OpenMP that gets no thread, and OpenBLAS that gets no memory, call exit() in the middle of a run: destructors then run under
threads that still work, and the process crashes or never ends. After `guard_exit` a line is printed, and it ends at once.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

_FAILED = 3
# Identifies our handlers to the C library: any address that nobody else has.
_handle = ctypes.create_string_buffer(1)
_callbacks: list[Callable[..., None]] = []  # C code holds them, so they must live


class SafeStream:
    """A text stream whose writes do not fail; what comes after the first failure is dropped.

    goes_on     what happens without output, in words, for the message; "" prints none
    quiet_pipe  print no message where a pipe's reader left, as `head` does on purpose
    lost        the error that ended the output; None while it works
    """

    def __init__(self, stream: TextIO, goes_on: str) -> None:
        self._stream = stream
        self.goes_on = goes_on
        self.quiet_pipe = False
        self.lost: Exception | None = None

    def write(self, text: str) -> int:
        """Write, or drop what cannot be written; characters that the stream has no code for are escaped."""
        if self.lost is None:
            try:
                try:
                    self._stream.write(text)
                except UnicodeEncodeError:
                    encoding = self._stream.encoding
                    self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
            except (OSError, ValueError) as error:  # ValueError: somebody closed it
                self._lose(error)
        return len(text)

    def flush(self) -> None:
        """Hand over what is buffered, or drop it."""
        if self.lost is None:
            try:
                self._stream.flush()
            except (OSError, ValueError) as error:
                self._lose(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _lose(self, error: Exception) -> None:
        self.lost = error
        with suppress(OSError, ValueError, AttributeError):  # a stream without a descriptor has nothing left to flush
            # What is still buffered must go somewhere when the interpreter ends, and so must what C libraries print.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)
        if self.goes_on and not (self.quiet_pipe and isinstance(error, BrokenPipeError)):
            reason = getattr(error, "strerror", None) or str(error)
            print(f"paceline: writing to stdout failed ({reason}); {self.goes_on}", file=sys.stderr, flush=True)


@contextmanager
def keep_output_open() -> Iterator[SafeStream]:
    """Printing to stdout and stderr cannot fail inside; -> stdout, whose `goes_on` the caller may set.

    Inside another such block it is that block's.
    """
    if isinstance(sys.stdout, SafeStream):
        yield sys.stdout
        return
    _fill_closed()
    kept = sys.stdout, sys.stderr
    out = SafeStream(sys.stdout, "the command continues without output")
    # typing knows TextIO alone; whoever prints needs write and flush, and finds all else through __getattr__.
    sys.stdout, sys.stderr = out, SafeStream(sys.stderr, "")  # type: ignore[assignment]
    try:
        yield out
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        out.goes_on = ""  # whoever still holds it prints no message any more
        sys.stdout, sys.stderr = kept


def _fill_closed() -> None:
    """Descriptors 0 to 2 that are closed (`>&-`) refuse writing from here on; left free, the next file opened would get them."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDONLY)
            if null != number:
                os.dup2(null, number)
                os.close(null)
    # Python has no stream object for a descriptor that was closed when it started.
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def guard_exit() -> None:
    """From here to the interpreter's end, exit() called by a library prints why and ends this process with code 3.

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
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_print_and_end)
    _callbacks.append(callback)
    libc.__cxa_atexit(callback, None, _handle)


def _print_and_end(_: object) -> None:
    if not _callbacks:
        return
    # The library's own line stands above this one.
    print(
        "paceline: a library ended this process, probably because memory or threads were exhausted. Raise the limits "
        "(`ulimit -v`, `ulimit -u`), or set a smaller --system.num-workers and --system.micro-batch-size "
        "(the results do not change).",
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
