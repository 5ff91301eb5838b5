"""What a function tells its user while it works: messages and progress. Every such function takes one `reporter`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable

from paceline._utils.text import Row, columns, laid_out


class Reporter:
    """Receives messages and progress. This class ignores both: the default when paceline is used as a library.

    is_live   whether progress is drawn; where it is not, a long operation may send a line now and then
    """

    is_live: bool = False

    def line(self, text: str) -> None:
        """A message; a console that was asked to be quiet leaves it out."""

    def warning(self, text: str) -> None:
        """A message that a quiet console shows too."""
        self.line(text)

    def rows(self, rows: Iterable[Row]) -> None:
        """A message in several lines, laid out for the terminal."""
        for line in laid_out(rows, columns()):
            self.line(line)

    def doing(self, what: str) -> None:
        """What happens from here on, for a live display; empty is the command's usual work."""

    def progress(self, what: str, done: int, total: int) -> None:
        """`done` of `total` units of `what` are done; a total of 0 is not known."""


SILENT = Reporter()


class Lines(Reporter):
    """Passes every message to one function, such as `print`, and ignores progress."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write

    def line(self, text: str) -> None:
        """Pass the message on."""
        self._write(text)


# The default where a message must not be lost, as in paceline.load.
WARNINGS = Lines(warnings.warn)
