"""The console of a run: one live line on a terminal, plain lines anywhere else.

Permanent lines (evaluations, checkpoints, notes) scroll by; on a terminal one line below them shows the progress (live_line.py).
A log file or a pipe gets one line an interval: no color, no carriage return. Only rank 0 prints.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TextIO

from paceline._utils.formatting import (
    approximation_warning,
    format_bytes,
    format_duration,
    format_flop_rate,
    format_late_capture_warning,
    format_metric,
    format_metric_name,
    format_quantity,
    format_recompile_warning,
    format_warm_up,
    select_leading_metrics,
)
from paceline._utils.reporter import Reporter
from paceline._utils.text import escape_text
from paceline.config.run import RunOptions
from paceline.training.logging.callbacks import Callback, Event, RunInfo
from paceline.training.logging.events import get_metrics
from paceline.training.logging.live_line import LiveLine, RunStatus, format_eta

# A share of time spent waiting for input above this is worth a line of advice.
SLOW_INPUT = 0.05
# The loader is still filling its buffers in the first interval, so one slow report proves nothing.
SLOW_REPORTS = 2
# Where an epoch takes a few steps, a line for each checkpoint would hide all others.
SECONDS_BETWEEN_CHECKPOINT_LINES = 10.0
# Fields of a train event that deserve one warning: what should not have happened once the clock ran.
WARN_ONCE = {"recompilations": format_recompile_warning, "late_captures": format_late_capture_warning}


def open_console(options: RunOptions, rank: int) -> Console:
    """The console of a run; with --json beside the events, on stderr."""
    # Where both are one terminal, a line that is drawn again would run into the events.
    plain = rank > 0 or (options.json and sys.stdout.isatty())
    return Console(quiet=options.quiet, terminal=False if plain else None, out=sys.stderr if options.json else sys.stdout)


class Console(Reporter):
    """Shows a run of `total_steps` optimizer steps on `out`; closed by its context.

    target    the quality target in words, such as "top1 72 %"; "" when there is none
    quiet     only warnings are printed
    terminal  live line and color (True), plain lines (False), or what `out` is (None)
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
        self._quiet = quiet
        self._metrics = ""
        self._slow_reports = 0
        self._advised = False
        self.input_rate = ""  # what cores bring and the step takes, where it is known
        self._checkpoint_shown = -math.inf
        self._now = RunStatus(what="preparing", total=total_steps, target=target)
        if terminal is None:
            terminal = self._out.isatty() and os.environ.get("TERM") != "dumb"
        live = terminal and not quiet
        self._live = LiveLine(self._out, self._now, redirect_stdout=self._out is sys.stdout) if live else None

    def __enter__(self) -> Console:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def plan(self, total_steps: int, *, target: str, global_batch_size: int) -> None:
        """Set what the run will be, once that is known."""
        self._now.total, self._now.batch, self._now.target = total_steps, global_batch_size, target

    def line(self, text: str, style: str = "") -> None:
        """Print a permanent line (or several), unless quiet."""
        if not self._quiet:
            self.warning(text, style)

    def warning(self, text: str, style: str = "") -> None:
        """Print a permanent line, on a quiet console too: a warning, or the end."""
        text = escape_text(text)  # names of files and classes are other people's
        if self._live:
            self._live.print(text, style)
        else:
            print(text, file=self._out, flush=True)

    @property
    def is_live(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether a live line is drawn."""
        return self._live is not None

    def progress(self, what: str, done: int, total: int) -> None:
        """Count `what` in the live line."""
        if (self._now.what, self._now.of) != (what, total):
            self.doing(what, total)
        self._now.done = done

    def doing(self, what: str, of: int = 0) -> None:
        """Set the live line's activity; empty is training. of: how many units it has, where `done` counts them."""
        self._now.turn_to(what, time.monotonic(), of)
        if self._live:
            self._live.draw()

    def done(self, count: int) -> None:
        """Count so many more units of the activity."""
        self._now.done = min(self._now.of, self._now.done + count)

    def stopping(self, requested: Callable[[], bool]) -> None:
        """`requested` returns, whenever the line is drawn, whether a stop was requested: a slow step continues to its end."""
        self._now.stopping = requested

    def stepped(self, step: int) -> None:
        """`step` optimizer steps were sent to the device. Called after every one, so it only stores numbers."""
        clock = time.monotonic()
        self._now.turn_to("", clock)
        self._now.step = step
        if self._now.begun is None:
            self._now.begun = (step, clock)

    def train(self, event: Event, eta_seconds: float | None) -> None:
        """Show the progress of training, once an interval. event: a `train` event; eta_seconds: until the last step."""
        now, step, data_wait = self._now, event["step"], event["data_wait"]
        costs = [format_flop_rate(event["flop_per_second"])] if event.get("flop_per_second") else []
        costs += [format_bytes(event["peak_memory"])] if event.get("peak_memory") else []
        epoch, loss, lr = f"epoch {event['epoch']:.2f}", f"loss {event['loss']:.4f}", f"lr {event['lr']:.4g}"
        wait = f"data wait {100 * data_wait:.0f}%"
        if self._live:
            now.step, now.loss, now.images_per_second = step, loss, event["images_per_second"]
            now.step_seconds = (eta_seconds or 0.0) / max(1, now.total - step)
            slow = [wait] if data_wait > SLOW_INPUT else []
            metrics = [self._metrics] if self._metrics else []
            now.more = [*slow, *metrics, epoch, lr, *costs]
            self._live.draw()
        else:
            parts = [
                f"step {step:,}/{now.total:,}",
                *(epoch, loss, lr),
                f"{format_quantity(event['images_per_second'])} images/s",
                *costs,
                wait,
                format_eta(eta_seconds, now.target),
            ]
            self.line("  ".join(parts))
        self._advise(data_wait)

    def evaluation(self, step: int, epoch: float, metrics: Mapping[str, float], seconds: float, best: bool = False) -> None:
        """Show a finished evaluation: its metrics (fractions), how long it took, whether it is the best so far."""
        self._metrics = "  ".join(
            f"{format_metric_name(name)} {format_metric(name, metrics[name])}" for name in select_leading_metrics(metrics)
        )
        target = f"  (target {self._now.target})" if self._now.target else ""
        best = best and any(metrics[name] > 0 for name in select_leading_metrics(metrics))  # 0.0 is the best of nothing
        line = f"step {step:,}  epoch {epoch:.2f}  {self._metrics}{target}  in {format_duration(seconds)}{'  (best)' if best else ''}"
        self.line(line, style="bold")

    def note_checkpoint(self, step: int, name: str) -> None:
        """Show that a checkpoint has been written; of several in a few seconds, one."""
        clock = time.monotonic()
        if clock - self._checkpoint_shown >= SECONDS_BETWEEN_CHECKPOINT_LINES:
            self._checkpoint_shown = clock
            self.line(f"step {step:,}  saved {name}", style="dim")

    def close(self) -> None:
        """Remove the live line; later lines are plain ones. A second call does nothing."""
        live, self._live = self._live, None
        if live:
            live.close()

    def _advise(self, data_wait: float) -> None:
        self._slow_reports = self._slow_reports + 1 if data_wait > SLOW_INPUT else 0
        if self._slow_reports >= SLOW_REPORTS and not self._advised:
            self._advised = True
            self.warning(
                f"note: training waits for images {100 * data_wait:.0f}% of the time, so the input is the bottleneck"
                f"{self.input_rate and f' ({self.input_rate})'}. To find the slow part:  paceline bench input RECIPE --data DIR"
            )


class ConsoleCallback(Callback):
    """Shows a run's events on the console."""

    def __init__(self, console: Console, facts: RunInfo) -> None:
        self._console, self._facts = console, facts
        self._warned: set[str] = set()  # kinds of warnings that were shown
        console.plan(facts.total_steps, target=facts.target, global_batch_size=facts.global_batch_size)

    def passed(self, step: int, seconds: float) -> None:
        self._console.stepped(step)

    def evaluation_begins(self, step: int) -> None:
        """Count photos in the live line from here on."""
        self._console.doing("evaluating", self._facts.val_images)

    def train(self, event: Event, *, eta_seconds: float) -> None:
        self._warn_of(event.get("approximated", {}), event["step"])
        for name, text_of in WARN_ONCE.items():
            if event.get(name) and name not in self._warned:
                self._warned.add(name)
                self._console.warning(text_of(event[name], event["step"]))
        self._console.train(event, eta_seconds)

    def evaluation(self, event: Event, *, best: bool) -> None:
        self._warn_of(event.get("approximated", {}), event["step"])
        self._console.evaluation(event["step"], event["epoch"], get_metrics(event), event["eval_seconds"], best)

    def write(self, event: Event) -> None:
        """Show a checkpoint, the warm-up, or that the run was resumed."""
        if event["event"] == "checkpoint":
            self._console.note_checkpoint(event["step"], event["name"])
        elif event["event"] == "warm_up":
            self._console.line(format_warm_up(event))
        elif event["event"] == "resume":
            world, after = event["world_size"], event.get("after", "").replace("_", " ")
            given_more = f"; the run had ended ({after}) and continues with the new limits" if after else ""
            self._console.line(f"resumed from {event['checkpoint']} on {world} rank{'s' if world > 1 else ''}{given_more}")

    def end(self, event: Event, *, target_met: bool) -> None:
        """Remove the live line, and show how the run ended."""
        self._console.close()
        self._console.warning(f"{event['status'].replace('_', ' ')}: {event['reason']}")
        ends = {name: ends for name, ends in event.get("intervals", {}).items() if ends[1] > 0}
        if shown := [
            f"{format_metric_name(name)} {format_metric(name, ends[name][0])} to {format_metric(name, ends[name][1])}"
            for name in select_leading_metrics(ends)
        ]:
            self._console.line(f"step {event['intervals_step']:,}: 95% confidence intervals: {', '.join(shown)}")
        if discarded := event["discarded_steps"]:
            step = event["step"]
            self._console.warning(f"note: {discarded:,} steps, trained while step {step:,} was evaluated, are discarded")

    def _warn_of(self, approximated: Mapping[str, int], step: int) -> None:
        """Warn once of each kind of approximation that an accelerator made; the events have every number."""
        for name, count in approximated.items():
            if count and name not in self._warned:
                self._warned.add(name)
                self._console.warning(approximation_warning(name, count, step))
