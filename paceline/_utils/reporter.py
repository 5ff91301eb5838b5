"""What a function tells its user while it works: messages and progress. Every such function takes one `reporter`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from paceline._utils.text import Row, format_definitions, text_width


class Reporter:
    """Receives messages and progress. This class ignores both: the default when paceline is used as a library.

    is_live   whether progress is drawn; where it is not, a long operation may send a line now and then
    describe  the lines about a data set that was prepared just now, from its manifest; commands give it the function that also
              writes the check page
    """

    is_live: bool = False
    describe: Callable[[Any], Iterable[str]] = staticmethod(lambda _: ())

    def line(self, text: str) -> None:
        """A message; a console that was asked to be quiet leaves it out."""

    def warning(self, text: str) -> None:
        """A message that a quiet console shows too."""
        self.line(text)

    def rows(self, rows: Iterable[Row]) -> None:
        """A message in several lines, laid out for the terminal."""
        for line in format_definitions(rows, text_width()):
            self.line(line)

    def doing(self, what: str) -> None:
        """What happens from here on, for a live display; empty is the command's usual work."""

    def progress(self, what: str, done: int, total: int) -> None:
        """`done` of `total` units of `what` are done; a total of 0 is not known."""


SILENT = Reporter()


class Lines(Reporter):
    """Passes every message to one function, such as `print`, and ignores progress.

    describe  of Reporter
    """

    def __init__(
        self, write: Callable[[str], object], describe: Callable[[Any], Iterable[str]] = Reporter.describe
    ) -> None:
        self._write, self.describe = write, describe

    def line(self, text: str) -> None:
        """Pass the message on."""
        self._write(text)


class LoggingReporter(Reporter):
    """Passes messages to ``logging.getLogger("paceline")`` and ignores progress."""

    _logger = logging.getLogger("paceline")

    def line(self, text: str) -> None:
        """Log the message with level INFO."""
        self._logger.info("%s", text)

    def warning(self, text: str) -> None:
        """Log the message with level WARNING, which Python prints to stderr unless the program configures logging."""
        self._logger.warning("%s", text)


# The default if paceline is used as a library and messages are worth a log, as in paceline.load.
LOGGED = LoggingReporter()
