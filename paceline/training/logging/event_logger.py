"""The recorder of a run: it writes events.jsonl and calls the sinks that follow the run.

Only rank 0 prints and writes. Every other rank has a Recorder too, whose methods do nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from paceline._utils.formatting import format_metric_name, format_target
from paceline.config.published import get_division
from paceline.config.run import RunSpec
from paceline.distributed.device.accelerators import get_device_name
from paceline.models.workload import WorkloadSpec
from paceline.training.logging.callbacks import Callback, Event, RunInfo
from paceline.training.logging.console import Console, ConsoleCallback
from paceline.training.logging.events import (
    EndEvent,
    EvalEvent,
    EventLog,
    ResumeEvent,
    RunEvent,
    TrainEvent,
    format_event,
    from_json_value,
    to_json_value,
)
from paceline.training.logging.mllog import BenchmarkLog
from paceline.training.logging.trackers import Maker, tracker_makers

if TYPE_CHECKING:  # they import torch
    from paceline.training.resume import ResumePoint
    from paceline.training.run_dir.folder import RunFolder
    from paceline.training.state import State


class JsonEventPrinter(Callback):
    """--json: every event on stdout, one JSON object a line."""

    def write(self, event: Event) -> None:
        """Print an event, as events.jsonl has it but for the checksum."""
        print(format_event(to_json_value(event)), flush=True)


class EventLogger:
    """Records a run in every log.

    folder       the run's folder; None on ranks that record nothing
    sinks        make the sinks beside console and MLPerf's log; they come first: one that refuses finds everything unchanged
    json         whether events are printed to stdout too
    resumed_at   step of the checkpoint that the run resumes from; None for a fresh run
    evaluated    whether the result of that step's evaluation is known, if one is due; otherwise it is made again
    init_began   when this process began to build the run, seconds since 1970
    Raises PacelineError where a sink cannot be made, or a file cannot be written.
    """

    def __init__(
        self,
        folder: Path | None,
        facts: RunInfo,
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
        self._sinks: list[Callback] = []
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
            self._sinks += [JsonEventPrinter()] if json else []
            self._sinks.append(ConsoleCallback(console, facts))
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

    def stopping(self, requested: Callable[[], bool]) -> None:
        """`requested` returns whether a stop was requested, for the live line."""
        if self._events is not None:
            self._console.stopping(requested)

    def scored(self, images: int) -> None:
        """Count so many more images of the running evaluation, on all ranks."""
        if self._events is not None:
            self._console.done(images)

    def start(self, step: int, seconds: float) -> None:
        """Everything is built; training starts or resumes at `step`."""
        for sink in self._sinks:
            sink.start(step, seconds)

    def record(self, step: int, seconds: float, event: RunEvent) -> None:
        """Write an event that the sinks get as it is."""
        written = self._written(step, seconds, event)
        for sink in self._sinks:
            sink.write(written)

    def passed(self, step: int, seconds: float) -> None:
        """After every step."""
        for sink in self._sinks:
            sink.passed(step, seconds)

    def train(self, step: int, seconds: float, event: TrainEvent, *, eta_seconds: float) -> None:
        """An interval of training ended; eta_seconds: until the run's end."""
        written = self._written(step, seconds, event)
        for sink in self._sinks:
            sink.train(written, eta_seconds=eta_seconds)

    def evaluation_begins(self, step: int) -> None:
        """An evaluation after `step` steps starts."""
        for sink in self._sinks:
            sink.evaluation_begins(step)

    def training_goes_on(self) -> None:
        """Training continues beside the scoring of the evaluation that began last."""
        for sink in self._sinks:
            sink.training_goes_on()

    def evaluation(
        self, step: int, seconds: float, event: EvalEvent, *, headline: str, best: bool, went_on: float, ends: bool
    ) -> None:
        """Record the result of the evaluation after `step` steps; training may be further by now.

        best     whether it is the best so far
        went_on  the run's seconds from which the training after that step counts
        ends     whether the run ends with this result, and that training counts for nothing
        """
        for sink in self._sinks:
            sink.result(step, event.metrics, headline=headline, went_on=went_on, ends=ends)
        # The event comes last: where it is, all else is, and a resumed run does not evaluate again.
        written = self._written(step, seconds, event)
        for sink in self._sinks:
            sink.evaluation(written, best=best)

    def end(self, step: int, seconds: float, event: EndEvent, *, target_met: bool) -> None:
        """Record the run's end, with the weights after `step` steps.

        target_met  MLPerf's success: a run without a target, or cut short as asked, has none
        """
        self._ended = True
        written = self._written(step, seconds, event)
        for sink in self._sinks:
            sink.end(written, target_met=target_met)

    def fail(self, step: int, seconds: float, *, best: Mapping[str, float], reason: str) -> None:
        """Record that the run broke, unless it had ended already."""
        if not self._ended:
            self.end(step, seconds, EndEvent(status="failed", best=best, reason=reason), target_met=False)

    def close(self) -> None:
        """Flush and close every log."""
        for sink in self._sinks:
            sink.close()

    def _written(self, step: int, seconds: float, event: RunEvent) -> Event:
        """Write one event to events.jsonl, and return it; {} on ranks that record nothing, which have no sink."""
        if self._events is None:
            return {}
        epoch, facts = step / self._facts.steps_per_epoch, event.facts()
        return from_json_value(self._events.write(event.kind, step=step, epoch=epoch, seconds=seconds, **facts))


@contextmanager
def open_recorder(
    run: RunSpec,
    workload: WorkloadSpec,
    state: State,
    start: ResumePoint,
    folder: RunFolder,
    console: Console,
    init_began: float,
) -> Iterator[EventLogger]:
    """The recorder of the run's events; init_began: when the run began to be built, seconds since 1970."""
    resumed, device = start.snapshot is not None, get_device_name(state.meters.device)
    names = [name for name, _ in state.model.named_parameters()]
    recorder = EventLogger(
        folder.path if folder.is_main else None,
        log_facts(run, workload, names, device),
        console,
        sinks=tracker_makers(run.options) if folder.is_main else (),
        json=run.options.json,
        resumed_at=state.step if resumed else None,
        evaluated=not start.pending(run.plan.stop_after),
        init_began=init_began,
    )
    with closing(recorder):
        if resumed:
            event = ResumeEvent(checkpoint=start.checkpoint, world_size=run.plan.world_size, after=folder.ended or None)
            recorder.record(state.step, start.seconds, event)
        yield recorder


def log_facts(run: RunSpec, workload: WorkloadSpec, parameters: Sequence[str], device: str) -> RunInfo:
    """The facts of the run that the logs need before it starts.

    parameters  their names, in the model's order
    device      name of each rank's device
    """
    plan, submission = run.plan, run.options.mlperf
    ranks = plan.world_size + plan.eval_ranks
    return RunInfo(
        target=", ".join(f"{format_metric_name(name)} {format_target(name, value)}" for name, value in run.recipe.target),
        total_steps=plan.stop_after,
        global_batch_size=plan.global_batch_size,
        steps_per_epoch=plan.steps_per_epoch,
        eval_steps=plan.eval_steps,
        train_images=plan.train_images,
        val_images=plan.val_images,
        submission={
            "benchmark": workload.reporting.rules(run.recipe)[0],
            "org": submission.submitter,
            "division": get_division(submission, run.recipe),
            "status": submission.status,
            "platform": submission.platform or f"{ranks}x{device}",
            "accelerators": ranks,
        },
        cache_cleared=submission.cache_cleared,
        mllog=workload.reporting.log_facts(run),
        weights=workload.reporting.log_tensors(parameters),
        accuracy=workload.reporting.log_accuracy,
    )
