"""The recorder of a run: it writes events.jsonl and calls the sinks that follow the run.

Only rank 0 prints and writes. Every other rank has a Recorder too, whose methods do nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.log.console import Console, OnConsole
from paceline.log.events import EventLog, numbers_back, one_line, plain
from paceline.log.mllog import BenchmarkLog
from paceline.log.sinks import Event, Facts, Follower
from paceline.log.trackers import Maker


class Printed(Follower):
    """--json: every event on stdout, one JSON object a line."""

    def write(self, event: Event) -> None:
        """Print an event, as events.jsonl has it but for the checksum."""
        print(one_line(plain(event)), flush=True)


class Recorder:
    """Records a run in every log.

    folder       the run's folder; None on ranks that record nothing
    sinks        make the sinks beside console and MLPerf's log; they come first: one that refuses finds everything unchanged
    json         whether events are printed to stdout too
    resumed_at   step of the checkpoint that the run resumes from; None for a fresh run
    evaluated    whether the result of that step's evaluation is known, if one is due; otherwise it is made again
    init_began   when this process began to build the run, seconds since 1970
    Raises UserError where a sink cannot be made, or a file cannot be written.
    """

    def __init__(
        self,
        folder: Path | None,
        facts: Facts,
        console: Console,
        *,
        sinks: Sequence[Maker] = (),
        json: bool = False,
        resumed_at: int | None,
        evaluated: bool = True,
        init_began: float | None = None,
    ) -> None:
        self._facts = facts
        self._console = console
        self._events: EventLog | None = None
        self._sinks: list[Follower] = []
        self._ended = False
        if folder is None:
            return
        try:
            for make in sinks:
                self._sinks.append(make(folder, resumed_at, console))
            self._events = EventLog(folder / "events.jsonl")
            for line in self._events.damage():
                console.warning(line)
            # A run that was killed before its first checkpoint starts over, and what it logged goes.
            self._events.truncate_after(-1 if resumed_at is None else resumed_at)
            self._sinks += [Printed()] if json else []
            self._sinks.append(OnConsole(console, facts))
            self._sinks.append(BenchmarkLog(folder, facts, console, resumed_at, evaluated, init_began))
        except BaseException:
            self.close()
            raise

    def warning(self, text: str) -> None:
        """Print a line, on a quiet console too."""
        if self._events is not None:
            self._console.warning(text)

    def doing(self, what: str, of: int = 0) -> None:
        """Set the live line's activity; empty is training."""
        if self._events is not None:
            self._console.doing(what, of)

    def stopping(self, asked: Callable[[], bool]) -> None:
        """`asked` returns whether a stop was requested, for the live line."""
        if self._events is not None:
            self._console.stopping(asked)

    def scored(self, images: int) -> None:
        """Count so many more images of the running evaluation, on all ranks."""
        if self._events is not None:
            self._console.done(images)

    def start(self, step: int, seconds: float) -> None:
        """Everything is built; training starts or resumes at `step`."""
        for sink in self._sinks:
            sink.start(step, seconds)

    def resume(self, step: int, seconds: float, *, checkpoint: str, world: int, after: str = "") -> None:
        """The run resumes from a checkpoint; `after`: the status with which it had ended, where it was given more."""
        facts = {"after": after} if after else {}
        self._passed_on("resume", step, seconds, checkpoint=checkpoint, world=world, **facts)

    def warmed_up(self, step: int, seconds: float, **facts: Any) -> None:
        """The warm-up before `step` is done; facts: as log/events.py has them."""
        self._passed_on("warm_up", step, seconds, **facts)

    def passed(self, step: int, seconds: float) -> None:
        """After every step."""
        for sink in self._sinks:
            sink.passed(step, seconds)

    def train(self, step: int, seconds: float, *, eta_seconds: float, **facts: Any) -> None:
        """An interval of training: loss and its parts, lr, images_per_second, data_wait, samples, and what else is known."""
        event = self._written("train", step, seconds, **facts)
        for sink in self._sinks:
            sink.train(event, eta_seconds=eta_seconds)

    def evaluation_begins(self, step: int) -> None:
        """An evaluation after `step` steps starts."""
        for sink in self._sinks:
            sink.evaluation_begins(step)

    def training_goes_on(self) -> None:
        """Training continues beside the scoring of the evaluation that began last."""
        for sink in self._sinks:
            sink.training_goes_on()

    def evaluation(
        self,
        step: int,
        seconds: float,
        *,
        metrics: Mapping[str, float],
        headline: str,
        images: int,
        eval_seconds: float,
        eval_parts: Mapping[str, float],
        best: bool,
        approximated: Mapping[str, int] | None = None,
        best_f1: Mapping[str, float] | None = None,
        went_on: float,
        ends: bool,
        discarded_steps: int = 0,
    ) -> None:
        """Record the result of the evaluation after `step` steps; training may be further by now.

        best             whether it is the best so far
        approximated     what accelerators left open, by name; none on a CPU
        best_f1          of boxes: the threshold with the best F1
        went_on          the run's seconds from which the training after that step counts
        ends             whether the run ends with this result, and that training counts for nothing
        discarded_steps  how many steps of it there were
        """
        for sink in self._sinks:
            sink.result(step, metrics, headline=headline, went_on=went_on, ends=ends)
        # The event comes last: where it is, all else is, and a resumed run does not evaluate again.
        facts: dict[str, Any] = {"eval_parts": dict(eval_parts)}
        if discarded_steps:
            facts["discarded_steps"] = discarded_steps
        if approximated:
            facts["approximated"] = dict(approximated)
        if best_f1:
            facts["best_f1"] = dict(best_f1)
        event = self._written("eval", step, seconds, images=images, eval_seconds=eval_seconds, **metrics, **facts)
        for sink in self._sinks:
            sink.evaluation(event, best=best)

    def checkpoint(self, step: int, seconds: float, *, name: str) -> None:
        """A checkpoint of `step` is being written."""
        self._passed_on("checkpoint", step, seconds, name=name)

    def end(
        self,
        step: int,
        seconds: float,
        *,
        status: str,
        target_met: bool,
        best: Mapping[str, float],
        reason: str,
        since_best: int = 0,
        discarded_steps: int = 0,
        **more: Any,
    ) -> None:
        """Record the run's end, with the weights after `step` steps; `discarded_steps` were trained past them.

        target_met  MLPerf's success: a run without a target, or cut short as asked, has none
        since_best  evaluations since the best one
        more        joules, joules_by, mirror, where they are known (log/events.py)
        """
        self._ended = True
        facts = {"status": status, "best": dict(best), "reason": reason, "discarded_steps": discarded_steps, **more}
        event = self._written("end", step, seconds, evaluations_since_best=since_best, **facts)
        for sink in self._sinks:
            sink.end(event, target_met=target_met)

    def fail(self, step: int, seconds: float, *, best: Mapping[str, float], reason: str) -> None:
        """Record that the run broke, unless it had ended already."""
        if not self._ended:
            self.end(step, seconds, status="failed", target_met=False, best=best, reason=reason)

    def close(self) -> None:
        """Flush and close every log."""
        for sink in self._sinks:
            sink.close()

    def _passed_on(self, kind: str, step: int, seconds: float, **facts: Any) -> None:
        event = self._written(kind, step, seconds, **facts)
        for sink in self._sinks:
            sink.write(event)

    def _written(self, kind: str, step: int, seconds: float, **facts: Any) -> Event:
        """Write one event to events.jsonl, and return it; {} on ranks that record nothing, which have no sink."""
        if self._events is None:
            return {}
        epoch = step / self._facts.steps_per_epoch
        return numbers_back(self._events.write(kind, step=step, epoch=epoch, seconds=seconds, **facts))
