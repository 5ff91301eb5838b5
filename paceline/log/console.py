"""What a person sees while a run goes on: one live line on a terminal, plain lines anywhere else.

Permanent lines (evaluations, checkpoints, notes) scroll by; on a terminal one compact line below them shows where the
run stands. A log file or a pipe gets one line an interval: no colour, no carriage return. One process speaks: rank 0.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TextIO

from paceline.config.printable import printable
from paceline.log.prose import duration, leading_metrics, metric_label, metric_text, quantity

# A share of time spent waiting for input above this is worth a line of advice.
SLOW_INPUT = 0.05
# The loader is still filling its buffers in the first interval, so one slow report proves nothing.
SLOW_REPORTS = 2
# Below this many columns the live line has no bar: the numbers need the room.
BAR_FROM_COLUMNS = 100


class Console:
    """Shows a run of `total_steps` optimiser steps on `out`.

    terminal  live line and colour (True), plain lines (False), or what `out` is (None)
    target    the quality target in words, such as "top1 72 %"; "" when there is none
    """

    def __init__(
        self, total_steps: int, *, target: str, terminal: bool | None = None, out: TextIO | None = None
    ) -> None:
        self._out = sys.stdout if out is None else out
        self._total = total_steps
        self._target = target
        self._metrics = ""
        self._slow_reports = 0
        self._advised = False
        if terminal is None:
            terminal = self._out.isatty() and os.environ.get("TERM") != "dumb"
        self._live = _LiveLine(self._out, total_steps) if terminal else None

    def say(self, text: str) -> None:
        """A permanent line (or several)."""
        text = printable(text)  # names of files and classes are other people's
        if self._live:
            self._live.print(text)
        else:
            print(text, file=self._out, flush=True)

    def train(
        self,
        step: int,
        epoch: float,
        loss: float,
        lr: float,
        images_per_second: float,
        data_wait: float,
        eta_seconds: float | None,
    ) -> None:
        """Where training stands; once an interval. data_wait: share of the interval spent waiting for input, 0..1."""
        parts = [
            f"step {step:,}/{self._total:,}",
            f"epoch {epoch:.2f}",
            f"loss {loss:.4f}",
            f"lr {lr:.4g}",
            f"{quantity(images_per_second)} images/s",
            f"data wait {100 * data_wait:.0f} %",
            f"ETA {duration(eta_seconds)}",
        ]
        if self._live:
            self._live.show(step, [*parts, self._metrics] if self._metrics else parts)
        else:
            self.say("  ".join(parts))
        self._advise(data_wait)

    def evaluation(
        self, step: int, epoch: float, metrics: Mapping[str, float], seconds: float, best: bool = False
    ) -> None:
        """A finished evaluation: its metrics (fractions), how long it took, whether it is the best so far."""
        self._metrics = "  ".join(
            f"{metric_label(name)} {metric_text(name, metrics[name])}" for name in leading_metrics(metrics)
        )
        target = f"  (target {self._target})" if self._target else ""
        line = f"step {step:,}  epoch {epoch:.2f}  {self._metrics}{target}  in {duration(seconds)}{'  (best)' if best else ''}"
        if self._live:
            self._live.print(line, style="bold")
        else:
            self.say(line)

    def note_checkpoint(self, step: int, name: str) -> None:
        """A checkpoint has been written."""
        line = f"step {step:,}  saved {name}"
        if self._live:
            self._live.print(line, style="dim")
        else:
            self.say(line)

    def close(self) -> None:
        """Take the live line away; a second call does nothing."""
        if self._live:
            self._live.close()

    def _advise(self, data_wait: float) -> None:
        self._slow_reports = self._slow_reports + 1 if data_wait > SLOW_INPUT else 0
        if self._slow_reports >= SLOW_REPORTS and not self._advised:
            self._advised = True
            self.say(
                f"note: the step waits for images {100 * data_wait:.0f} % of the time, so the input is the bottleneck; "
                "paceline bench input shows where its time goes"
            )


class _LiveLine:
    """The bottom line of a terminal, through rich; it is redrawn when there is news, by no thread of its own."""

    def __init__(self, out: TextIO, total_steps: int) -> None:
        # Here and not above: a run whose output goes to a file never needs rich.
        from rich.console import Console as RichConsole
        from rich.live import Live

        self._console = RichConsole(file=out, force_terminal=True, highlight=False, markup=False, emoji=False)
        # auto_refresh would draw from a second thread. stderr stays a stream of its own: warnings belong there.
        self._live = Live(console=self._console, auto_refresh=False, transient=True, redirect_stderr=False)
        self._live.start()
        self._total = total_steps

    def print(self, text: str, style: str | None = None) -> None:
        from rich.text import Text

        self._console.print(Text(text, style=style or ""), soft_wrap=True)

    def show(self, step: int, parts: list[str]) -> None:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        row = Table.grid(padding=(0, 1))
        text = Text("  ".join(parts), no_wrap=True, overflow="ellipsis")
        if self._console.width >= BAR_FROM_COLUMNS:
            row.add_column(width=12)
            row.add_column(no_wrap=True)
            row.add_row(ProgressBar(total=max(self._total, 1), completed=step, width=12), text)
        else:
            row.add_column(no_wrap=True)
            row.add_row(text)
        self._live.update(row, refresh=True)

    def close(self) -> None:
        self._live.stop()
