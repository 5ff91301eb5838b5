"""Standard output that may go away: a reader of the pipe that leaves, a full disk, a terminal that is closed.

What a command prints is not its work: training goes on without a reader, and says so once where it still can. While
`lasting_output` holds, nothing that prints, in any thread or library, is stopped by that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO


class Lasting:
    """A text stream whose writes do not fail; what comes after the first failure is dropped.

    goes_on     in words, what happens without output; "" says nothing of the loss
    quiet_pipe  say nothing where a pipe's reader left, as `head` does on purpose
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
            print(f"paceline: output is gone ({reason}); {self.goes_on}", file=sys.stderr, flush=True)


@contextmanager
def lasting_output() -> Iterator[Lasting]:
    """Printing to stdout and stderr cannot fail inside; -> stdout, whose `goes_on` the caller may say better.

    Inside another such block it is that block's.
    """
    if isinstance(sys.stdout, Lasting):
        yield sys.stdout
        return
    _fill_closed()
    kept = sys.stdout, sys.stderr
    out = Lasting(sys.stdout, "the command goes on without it")
    # typing knows TextIO alone; whoever prints needs write and flush, and finds all else through __getattr__.
    sys.stdout, sys.stderr = out, Lasting(sys.stderr, "")  # type: ignore[assignment]
    try:
        yield out
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        out.goes_on = ""  # whoever still holds it has nothing more to say of its loss
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
