"""What a person sees while a run goes on: one live line on a terminal, plain lines anywhere else.

Permanent lines (evaluations, checkpoints, notes) scroll by; on a terminal one line below them shows where the run stands
(live_line.py). A log file or a pipe gets one line an interval: no colour, no carriage return. One process speaks: rank 0.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TextIO

from paceline.config.printable import printable
from paceline.config.run import Controls
from paceline.log.live_line import LiveLine, Now
from paceline.log.prose import byte_size, duration, flop_rate, leading_metrics, metric_label, metric_text, quantity

# A share of time spent waiting for input above this is worth a line of advice.
SLOW_INPUT = 0.05
# The loader is still filling its buffers in the first interval, so one slow report proves nothing.
SLOW_REPORTS = 2
# Where an epoch takes a few steps, a line for each checkpoint would hide all others.
SECONDS_BETWEEN_CHECKPOINT_LINES = 10.0


def open_console(controls: Controls, rank: int) -> Console:
    """The console of a run: with --json beside the events, on stderr; on ranks other than 0 one that says nothing."""
    # Where both are one terminal, a line that is drawn again would run into the events.
    plain = rank > 0 or (controls.json and sys.stdout.isatty())
    return Console(
        quiet=controls.quiet, terminal=False if plain else None, out=sys.stderr if controls.json else sys.stdout
    )


class Console:
    """Shows a run of `total_steps` optimiser steps on `out`; closed by its context.

    target    the quality target in words, such as "top1 72 %"; "" when there is none
    quiet     only what `tell` is given is printed
    terminal  live line and colour (True), plain lines (False), or what `out` is (None)
    """

    def __init__(
        self,
        total_steps: int = 0,
        *,
        target: str = "",
        quiet: bool = False,
        terminal: bool | None = None,
        out: TextIO | None = None,
    ) -> None:
        self._out = sys.stdout if out is None else out
        self._target = target
        self._quiet = quiet
        self._metrics = ""
        self._slow_reports = 0
        self._advised = False
        self._checkpoint_told = -math.inf
        self._now = Now(what="preparing", total=total_steps)
        if terminal is None:
            terminal = self._out.isatty() and os.environ.get("TERM") != "dumb"
        live = terminal and not quiet
        self._live = LiveLine(self._out, self._now, redirect_stdout=self._out is sys.stdout) if live else None

    def __enter__(self) -> Console:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def plan(self, total_steps: int, *, target: str, global_batch: int) -> None:
        """What the run will be, once that is known."""
        self._target = target
        self._now.total, self._now.batch = total_steps, global_batch

    def say(self, text: str) -> None:
        """A permanent line (or several)."""
        if not self._quiet:
            self.tell(text)

    def tell(self, text: str, style: str = "") -> None:
        """A permanent line that a quiet console prints too: a warning, or the end."""
        text = printable(text)  # names of files and classes are other people's
        if self._live:
            self._live.print(text, style)
        else:
            print(text, file=self._out, flush=True)

    @property
    def is_live(self) -> bool:
        """Whether a line is drawn again and again, in which what goes on is counted."""
        return self._live is not None

    def doing(self, what: str, of: int = 0) -> None:
        """What goes on from now; empty is training. of: how many of it there are, where `done` counts them."""
        self._now.turn_to(what, time.monotonic(), of)
        if self._live:
            self._live.draw()

    def done(self, count: int) -> None:
        """So many more of what goes on."""
        self._now.done = min(self._now.of, self._now.done + count)

    def stopping(self, asked: Callable[[], bool]) -> None:
        """`asked` tells, whenever the line is drawn, whether the run was told to stop: a slow step goes on to its end."""
        self._now.stopping = asked

    def stepped(self, step: int) -> None:
        """`step` optimiser steps were sent to the device. Called after every one: it only takes notes."""
        clock = time.monotonic()
        self._now.turn_to("", clock)
        self._now.step = step
        if self._now.begun is None:
            self._now.begun = (step, clock)

    def train(
        self,
        step: int,
        epoch: float,
        loss: float,
        lr: float,
        images_per_second: float,
        data_wait: float,
        eta_seconds: float | None,
        flop_per_second: float = 0.0,
        peak_memory: int = 0,
    ) -> None:
        """Where training stands; once an interval.

        data_wait                     share of the interval spent waiting for input, 0..1
        flop_per_second, peak_memory  of all ranks; bytes of the one that has held most; 0 = not known
        """
        now = self._now
        costs = [flop_rate(flop_per_second)] if flop_per_second else []
        costs += [byte_size(peak_memory)] if peak_memory else []
        wait = f"data wait {100 * data_wait:.0f} %"
        if self._live:
            now.step, now.loss, now.images_per_second = step, f"loss {loss:.4f}", images_per_second
            now.step_seconds = (eta_seconds or 0.0) / max(1, now.total - step)
            slow = [wait] if data_wait > SLOW_INPUT else []
            metrics = [self._metrics] if self._metrics else []
            now.more = [*slow, *metrics, f"epoch {epoch:.2f}", f"lr {lr:.4g}", *costs]
            self._live.draw()
        else:
            parts = [
                f"step {step:,}/{now.total:,}",
                f"epoch {epoch:.2f}",
                f"loss {loss:.4f}",
                f"lr {lr:.4g}",
                f"{quantity(images_per_second)} images/s",
                *costs,
                wait,
                f"ETA {duration(eta_seconds)}",
            ]
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
        if not self._quiet:
            self.tell(line, style="bold")

    def note_checkpoint(self, step: int, name: str) -> None:
        """A checkpoint has been written; of several in a few seconds one is told."""
        clock = time.monotonic()
        if not self._quiet and clock - self._checkpoint_told >= SECONDS_BETWEEN_CHECKPOINT_LINES:
            self._checkpoint_told = clock
            self.tell(f"step {step:,}  saved {name}", style="dim")

    def close(self) -> None:
        """Take the live line away: what is said from here on are plain lines. A second call does nothing."""
        live, self._live = self._live, None
        if live:
            live.close()

    def _advise(self, data_wait: float) -> None:
        self._slow_reports = self._slow_reports + 1 if data_wait > SLOW_INPUT else 0
        if self._slow_reports >= SLOW_REPORTS and not self._advised:
            self._advised = True
            self.tell(
                f"note: the step waits for images {100 * data_wait:.0f} % of the time, so the input is the bottleneck; "
                "paceline bench input shows where its time goes"
            )
