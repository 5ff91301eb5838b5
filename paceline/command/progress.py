"""How far a download is, for the verbs that bring something: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from paceline.command.printing import say
from paceline.store.download.data_sets import Progress
from paceline.store.transfer import in_words

# Seconds between two lines on how far it is, where there is no terminal.
LINE_EVERY = 30.0


@contextmanager
def live_progress() -> Iterator[Progress]:
    """A bar with speed and time left for what is done now, gone afterwards; in a file, a line now and then."""
    if not sys.stdout.isatty():
        yield _lines()
        return
    from rich.progress import BarColumn, DownloadColumn, TaskID, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Bar("{task.description}", *columns, transient=True) as bar:
        jobs: dict[str, TaskID] = {}

        def progress(what: str, done: int, total: int) -> None:
            if what not in jobs:
                for job in jobs.values():
                    bar.update(job, visible=False)
                jobs[what] = bar.add_task(what, total=total or None)
            bar.update(jobs[what], completed=done)

        yield progress


def _lines() -> Progress:
    said = time.monotonic()

    def progress(what: str, done: int, total: int) -> None:
        nonlocal said
        if time.monotonic() - said > LINE_EVERY:
            said = time.monotonic()
            say(f"{what}: {in_words(done)}{f' of {in_words(total)}' if total else ''}")

    return progress
