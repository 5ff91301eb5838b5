"""What a command prints: lines, errors, progress and JSON.

Names from files and other people pass through _utils/text.py here, so that a terminal obeys none of them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from paceline._utils.atomic_write import KEY, write_user_file
from paceline._utils.errors import RankError
from paceline._utils.reporter import Lines, Reporter
from paceline._utils.text import escape_line, escape_text
from paceline.config.foreign_flags import accept_foreign
from paceline.distributed.comm.launcher import is_first_on_node

LINE_EVERY = 30.0  # seconds between two lines of progress where there is no terminal


# Flags of every verb, with their help.
SHARED = {
    "--quiet": "print only results, warnings, and errors; no messages and no progress",
    "--json": "print results and messages as one JSON object; other output goes to stderr",
}


def format_prepared(manifest: Any) -> Iterator[str]:
    """The lines about a prepared data set, whose check page is written; imported where a set is prepared."""
    from paceline.tools.report.prepare_notes import prepare_lines

    yield from prepare_lines(manifest)


class Printer(Reporter):
    """The output of one command: what it was asked for, messages, progress, and the answer to --json.

    With --json of a command that has no such flag of its own, `say` collects lines for that answer, and all text goes to stderr.
    """

    quiet = False  # whether --quiet leaves messages out; warnings stay
    lines: list[str] | None = None  # what was said, where a command without its own --json is asked for that
    json = False  # whether stdout is for objects of the command's own --json
    facts: Mapping[str, Any] = {}  # fields of that answer, which a program reads in place of the lines
    describe = staticmethod(format_prepared)

    def say(self, text: object) -> None:
        """Print a line that the command was asked for."""
        line = escape_line(str(text))
        if self.lines is not None:
            self.lines.append(line)
        self.warning(line)

    def note(self, text: object) -> None:
        """Print a line for people, beside what the command's own --json prints."""
        (print_error if self.json else self.say)(str(text))

    def line(self, text: str) -> None:
        """Print the message, unless quiet."""
        if not self.quiet:
            self.warning(text)

    def warning(self, text: str) -> None:
        """Print the message."""
        print(escape_line(text), file=sys.stdout if self.lines is None else sys.stderr)

    def taken(self, words: Sequence[str], own: Iterable[str]) -> list[str]:
        """The words without --quiet and --json, which are obeyed here where they are none of a command's `own` flags."""
        requested = {word for word in words if word in SHARED and word[2:] not in own}
        self.quiet = self.quiet or "--quiet" in requested
        if "--json" in requested:
            self.lines = []
        return [word for word in words if word not in requested]

    def accept_foreign(self, words: Sequence[str], known: Sequence[str]) -> list[str]:
        """Return the words with our flags in place of other tools', and print a note about each, unless quiet."""
        accepted, notes = accept_foreign(words, known)
        for note in notes if not self.quiet else ():
            print_error(f"note: {note}")
        return accepted

    def answer(self, verb: str, code: int) -> None:
        """Print what was said as one JSON object, where that is asked for."""
        if self.lines is not None:
            print(json.dumps({"verb": verb, "exit_code": code, **self.facts, "said": self.lines}, indent=1, default=str))

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Show on a terminal what is being done, and for how long already."""
        if self.quiet or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
            yield
            return
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            bar.add_task(escape_line(what), total=None)
            yield

    @contextmanager
    def live_progress(self) -> Iterator[Reporter]:
        """A bar with speed and time left for the present download on a terminal; elsewhere a line now and then."""
        if self.quiet or self.lines is not None or not sys.stdout.isatty():
            yield self if self.quiet else _Plain(self.line)
            return
        from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

        columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        with Progress("{task.description}", *columns, transient=True) as bar:
            yield _Bar(bar, self.say)


def print_error(text: str, problem: BaseException | None = None) -> None:
    """Print an error on stderr, once a node: ranks fail alike for the same reason. Every rank prints its RankError."""
    if isinstance(problem, RankError) or is_first_on_node():
        print(escape_text(text), file=sys.stderr)


def write_answer(facts: dict[str, Any], *, out: str, printed: bool, flag: str = "--output") -> None:
    """Write a verb's facts as JSON.

    out      file for them, whose folder is made; "" = none
    printed  on stdout too
    flag     the flag that named `out`
    Raises PacelineError where the file is not ours to replace, or cannot be written.
    """
    text = json.dumps({KEY: "answer", **facts}, indent=1)
    if out:
        write_user_file(out, text + "\n", flag)
    if printed:
        print(text)


class _Bar(Lines):
    is_live = True

    def __init__(self, bar: Any, say: Callable[[str], object]) -> None:
        super().__init__(say)
        self._bar, self._tasks = bar, {}

    def progress(self, what: str, done: int, total: int) -> None:
        if what not in self._tasks:
            for task in self._tasks.values():
                self._bar.update(task, visible=False)
            self._tasks[what] = self._bar.add_task(what, total=total or None)
        self._bar.update(self._tasks[what], completed=done)


class _Plain(Lines):
    def __init__(self, write: Any) -> None:
        super().__init__(write)
        self._printed_at = time.monotonic()

    def progress(self, what: str, done: int, total: int) -> None:
        from paceline._utils.formatting import format_bytes

        if time.monotonic() - self._printed_at > LINE_EVERY:
            self._printed_at = time.monotonic()
            self.line(f"{what}: {format_bytes(done)}{f' of {format_bytes(total)}' if total else ''}")
