"""What is recorded of a run: its events, with the facts that the logs need, and what is measured beside its loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from paceline._utils.formatting import format_metric_name, format_target
from paceline.config.mlperf import get_division
from paceline.config.run import RunSpec, parse_time_budget
from paceline.distributed.comm.world import DistContext
from paceline.distributed.device.accelerators import get_device_name, get_peak_memory
from paceline.distributed.device.compiler import count_compilations
from paceline.distributed.device.power import PowerMeter, find_gpu_uuids, open_power_meter
from paceline.models.memory_estimate import MemoryEstimate
from paceline.models.workload import WorkloadSpec
from paceline.training.logging.callbacks import RunInfo
from paceline.training.logging.console import Console
from paceline.training.logging.event_logger import EventLogger
from paceline.training.logging.events import ResumeEvent, read_events
from paceline.training.logging.monitors import ContentionMonitor, GradNormMonitor, LogInterval, StragglerMonitor, TrainTimer
from paceline.training.logging.trackers import tracker_makers
from paceline.training.resume import ResumePoint
from paceline.training.run_dir.folder import RunFolder
from paceline.training.state import State


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
        sinks=tracker_makers(run.controls) if folder.is_main else (),
        json=run.controls.json,
        resumed_at=state.step if resumed else None,
        evaluated=not start.pending(run.plan.stop_after),
        init_began=init_began,
    )
    with closing(recorder):
        if resumed:
            event = ResumeEvent(checkpoint=start.checkpoint, world=run.plan.world, after=folder.ended or None)
            recorder.record(state.step, start.seconds, event)
        yield recorder


def log_facts(run: RunSpec, workload: WorkloadSpec, parameters: Sequence[str], device: str) -> RunInfo:
    """The facts of the run that the logs need before it starts.

    parameters  their names, in the model's order
    device      name of each rank's device
    """
    plan, submission = run.plan, run.controls.mlperf
    ranks = plan.world + plan.eval_ranks
    return RunInfo(
        target=", ".join(
            f"{format_metric_name(name)} {format_target(name, value)}" for name, value in run.recipe.quality.targets
        ),
        total_steps=plan.stop_after,
        global_batch=plan.global_batch,
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


class Monitors:
    """The measurements of one rank.

    world     the ranks that do what this one does
    recorder  gets the warnings
    seconds   wall-clock of the run before this process began
    spikes    finds gradients far above those before
    power     of this node, on its first rank; elsewhere it measures nothing
    """

    def __init__(
        self,
        run: RunSpec,
        world: DistContext,
        recorder: EventLogger,
        seconds: float,
        spikes: GradNormMonitor,
        power: PowerMeter,
    ) -> None:
        plan, memory = run.plan, MemoryEstimate(**run.provenance["memory_estimate"])
        threads = run.provenance["threads"]["intra_op"]
        self.clock = TrainTimer(seconds)
        self.interval = LogInterval(
            plan.global_batch,
            ranks=plan.world,
            flop=memory.flop_of if memory.flop else None,
            compiled=count_compilations if run.system.compile == "on" else None,
        )
        self.plan, self._budget = plan, parse_time_budget(run.controls.time_budget)
        self.recorder, self._device, self._power = recorder, world.device, power
        self._stragglers, self._spikes = StragglerMonitor(world.hosts), spikes
        self._neighbors = ContentionMonitor(threads if plan.world == 1 and world.device.type == "cpu" else 0)
        self._others_joules = 0  # on rank 0: of the other nodes, when the last train event was written

    def out_of_time(self) -> bool:
        """Whether --time-budget is used up by this rank's clock."""
        return self._budget > 0 and self.clock.seconds() >= self._budget

    def seconds_left(self, step: int, images_per_second: float) -> float:
        """Seconds after `step` steps until the last one at this pace, or until --time-budget is used up where that comes first."""
        left = (self.plan.stop_after - step) * self.plan.global_batch / max(images_per_second, 1e-9)
        return max(0.0, min(left, self._budget - self.clock.seconds())) if self._budget else left

    def own_numbers(self, step: int, seconds: float, waited: float) -> tuple[int, int, int]:
        """This rank's numbers for all ranks: microseconds of a step that are its own; its peak memory; joules of its node so far, 0
        where it is not the node's first rank.

        seconds  of a step that it computes for itself; 0 where that is not known
        """
        took = self.interval.own_microseconds(step, waited, seconds) if seconds else 0
        return took, get_peak_memory(self._device), round(self._power.joules())

    def facts_of_ranks(self, ranks: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Facts of a train event from every rank's `own_numbers`; warns of a rank that holds up the others, and of other processes."""
        seconds, peak = [took / 1e6 for took, _, _ in ranks], max(bytes_ for _, bytes_, _ in ranks)
        self._others_joules = sum(joules for _, _, joules in ranks[1:])
        facts: dict[str, Any] = {"peak_memory": peak} if peak else {}
        if len(ranks) > 1 and all(seconds):
            facts |= {"rank_seconds": seconds, "slowest_rank": max(range(len(seconds)), key=seconds.__getitem__)}
            if warning := self._stragglers.observe(seconds):
                self.recorder.warning(warning)
        if warning := self._neighbors.observe():
            self.recorder.warning(warning)
        return facts

    def facts_of_step(self, step: int, sizes: dict[str, Any]) -> dict[str, Any]:
        """Facts of a train event about the size of its step; warns of a gradient far above those before."""
        times = self._spikes.observe(sizes["gradient_norm"]) if sizes else 0.0
        if not times:
            return sizes
        self.recorder.warning(
            f"note: the gradient's norm of step {step:,} is {sizes['gradient_norm']:.3g}, {times:.3g} times the median of "
            "the readings before"
        )
        return sizes | {"gradient_spike": times}

    def joules(self) -> dict[str, Any]:
        """Energy since this start, for the `end` event: of this node until now, of others until the last train event."""
        if not self._power.names:
            return {}
        return {"joules": round(self._power.joules()) + self._others_joules, "joules_by": self._power.names}


@contextmanager
def open_monitors(
    run: RunSpec, world: DistContext, recorder: EventLogger, start: ResumePoint, folder: Path
) -> Iterator[Monitors]:
    """What is measured of the run on this rank."""
    events = read_events(folder / "events.jsonl") if start.snapshot is not None else ()
    first = world.local_rank == 0  # of its node, whose power it measures
    with open_power_meter(find_gpu_uuids(world.device, world.local_world) if first else (), proceed=first) as power:
        yield Monitors(run, world, recorder, start.seconds, GradNormMonitor(events), power)
