"""The bottom line of a terminal during a run: time left first, drawn again every second.

The loop sets plain numbers, and a thread draws them, so that the line moves during a step of a minute too, during an evaluation and
the first step. Nothing here waits for a device: steps are counted when they are sent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from paceline._utils.formatting import format_duration, format_quantity
from paceline._utils.text import escape_text
from paceline._utils.threads import Thread

REDRAW_SECONDS = 1.0
# Below this many columns the line has no bar: the numbers need the room.
BAR_FROM_COLUMNS, BAR_COLUMNS = 100, 12
# A step that takes longer shows its own seconds.
SLOW_STEP = 1.0


@dataclass
class RunStatus:
    """The state of the run. Times are of time.monotonic()."""

    what: str = ""  # the activity, where it is not training: "preparing", "first step", "evaluating"
    since: float = field(default_factory=time.monotonic)  # when it began, or when the newest step was done
    done: int = 0  # of `what`, where it can be counted
    of: int = 0
    step: int = 0
    total: int = 0  # steps of the run; 0 before it has a plan
    target: str = ""  # of the metrics; the run may end before `total` when it is reached
    batch: int = 0  # images of a step
    begun: tuple[int, float] | None = None  # step and time from which the pace counts in the first interval
    step_seconds: float = 0.0  # of the newest interval; 0 before there is one
    loss: str = ""
    images_per_second: float = 0.0
    more: Sequence[str] = ()  # further texts, most important first
    stopping: Callable[[], bool] = bool  # whether a stop was requested

    def turn_to(self, what: str, clock: float, of: int = 0) -> None:
        """Change the activity at `clock`; time that was not training does not count in the first steps' pace."""
        if self.what and self.begun is not None:
            self.begun = (self.begun[0], self.begun[1] + clock - self.since)
        self.what, self.since, self.done, self.of = what, clock, 0, of


def format_eta(seconds: float | None, target: str) -> str:
    """The time until the last step; a run with a target may end earlier."""
    return f"ETA {'at most ' if target and seconds is not None else ''}{format_duration(seconds)}"


def format_parts(now: RunStatus, clock: float) -> list[str]:
    """The texts of the line at the time `clock`, most important first."""
    here = f"step {now.step:,}/{now.total:,}" if now.total else ""
    for_seconds = max(0.0, clock - now.since)
    if now.what:
        count = f" {now.done:,}/{now.of:,}" if now.of else ""
        return [f"{now.what}{count}  {for_seconds:.0f} s", *([here] if now.step else [])]
    each, rate = now.step_seconds, now.images_per_second
    if not each and now.begun is not None and now.step > now.begun[0]:
        each = max(now.since - now.begun[1], 1e-9) / (now.step - now.begun[0])
        rate = now.batch / each
    left = max(0.0, (now.total - now.step) * each - for_seconds)
    if now.stopping():
        return ["stopping after this step", here + f" ({for_seconds:.0f} s)"]
    slow = f" ({for_seconds:.0f} s)" if for_seconds >= SLOW_STEP else ""
    known = [format_eta(max(1.0, left), now.target)] if each else []
    return [
        *known,
        here + slow,
        *([now.loss] if now.loss else []),
        *([f"{format_quantity(rate)} images/s"] if rate else []),
        *now.more,
    ]


def fit_line(texts: Sequence[str], width: int) -> str:
    """As many of `texts`, from the first on, as `width` columns hold."""
    line = ""
    for text in texts:
        longer = f"{line}  {text}" if line else text
        if len(longer) > width:
            break
        line = longer
    return line or texts[0][:width]


class LiveLine:
    """The line on `out`, through rich, and permanent lines above it."""

    def __init__(self, out: TextIO, now: RunStatus, *, redirect_stdout: bool) -> None:
        # Here and not above: a run whose output goes to a file never needs rich.
        from rich.console import Console as RichConsole
        from rich.live import Live

        self.now = now
        self._console = RichConsole(file=out, force_terminal=True, highlight=False, markup=False, emoji=False)
        # stderr stays a stream of its own: warnings belong there.
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=redirect_stdout,
            redirect_stderr=False,
        )
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._live.start()
        self.draw()
        self._thread = Thread(target=self._tick, name="paceline-line", daemon=True)
        self._thread.start()

    def print(self, text: str, style: str = "") -> None:
        """Print a permanent line above."""
        from rich.text import Text

        with self._lock:
            self._console.print(Text(text, style=style), soft_wrap=True)

    def draw(self) -> None:
        """Draw the line, unless it is closed."""
        from rich.text import Text

        with self._lock:
            if self._closed.is_set():
                return
            width = self._console.width - 1  # a full line would wrap on some terminals
            bar = self._console.width >= BAR_FROM_COLUMNS and bool(self.now.total)
            text = escape_text(fit_line(format_parts(self.now, time.monotonic()), width - (BAR_COLUMNS + 1) * bar))
            plain = Text(text, no_wrap=True, overflow="ellipsis")
            self._live.update(self._with_bar(plain) if bar else plain, refresh=True)

    def close(self) -> None:
        """Remove the line; a second call does nothing."""
        if self._closed.is_set():
            return
        with self._lock:
            self._closed.set()
            self._live.stop()
        self._thread.join()

    def _with_bar(self, text):
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        row = Table.grid(padding=(0, 1))
        row.add_column(width=BAR_COLUMNS)
        row.add_column(no_wrap=True)
        row.add_row(ProgressBar(total=self.now.total, completed=self.now.step, width=BAR_COLUMNS), text)
        return row

    def _tick(self) -> None:
        while not self._closed.wait(REDRAW_SECONDS):
            self.draw()
