"""What is measured of a run on each rank: clocks, throughput of its intervals, energy, and three warnings.

The warnings are of a rank that holds up the others, of a gradient that spikes, and of other processes on the cores that compute
threads count on. `open_monitors` makes all of them.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.config.run import RunSpec, parse_time_budget
from paceline.distributed.comm.world import DistContext
from paceline.distributed.device.accelerators import get_peak_memory
from paceline.distributed.device.compiler import count_compilations
from paceline.distributed.device.power import PowerMeter, find_gpu_uuids, open_power_meter
from paceline.models.memory_estimate import MemoryEstimate
from paceline.training.logging.event_logger import EventLogger
from paceline.training.logging.events import read_events
from paceline.training.resume import ResumePoint


class TrainTimer:
    """Wall-clock seconds of the run; `before`: the seconds of its earlier processes."""

    def __init__(self, before: float = 0.0) -> None:
        self._before = before
        self._began = time.monotonic()

    def seconds(self) -> float:
        """Since the run's first process began training."""
        return self._before + time.monotonic() - self._began


@dataclass
class Stopwatch:
    """How long a pause took, once it is over."""

    seconds: float = 0.0


class LogInterval:
    """Throughput between two train events; evaluations are not counted as training time.

    flop      FLOP of a number of images with a number of pixels in all, on one rank; None where it is not known
    compiled  returns how many graphs this process has compiled; None where it compiles none
    """

    def __init__(
        self,
        global_batch_size: int,
        *,
        ranks: int = 1,
        flop: Callable[[int, int], float] | None = None,
        compiled: Callable[[], int] | None = None,
    ) -> None:
        self._global_batch, self._ranks, self._flop_of = global_batch_size, ranks, flop
        self._compilations = compiled or (lambda: 0)
        self.begin(0, 0.0)

    def begin(self, step: int, waited: float) -> None:
        """A new interval starts after `step` steps; `waited` is the loader's total wait so far."""
        self._step, self._waited = step, waited
        self._began, self._paused = time.monotonic(), 0.0
        self._flop, self._compiled = 0.0, self._compilations()

    def took(self, shapes: Iterable[Sequence[int]]) -> None:
        """A step is done on batches of these shapes, (B, 3, H, W)."""
        if self._flop_of is not None:
            # Of this rank; a step's images have one shape on all of them.
            self._flop += self._ranks * sum(
                self._flop_of(count, count * height * width) for count, _, height, width in shapes
            )

    def own_microseconds(self, step: int, waited: float, computing: float) -> int:
        """Microseconds of a step that this rank takes for itself: waiting for its input, and computing for `computing` seconds."""
        return round(1e6 * (max(0.0, waited - self._waited) / max(1, step - self._step) + computing))

    def close(self, step: int, waited: float) -> dict[str, float]:
        """Start a new interval; -> images_per_second, flop_per_second where it is known, data_wait (share of the interval spent
        waiting for input), and recompilations where there were any.
        """
        elapsed = max(time.monotonic() - self._began - self._paused, 1e-9)
        pace = {
            "images_per_second": (step - self._step) * self._global_batch / elapsed,
            "data_wait": min(1.0, max(0.0, (waited - self._waited) / elapsed)),
        }
        if self._flop:
            pace["flop_per_second"] = self._flop / elapsed
        if compiled := self._compilations() - self._compiled:
            pace["recompilations"] = compiled
        self.begin(step, waited)
        return pace

    @contextmanager
    def paused(self) -> Iterator[Stopwatch]:
        """Neither time nor compiled graphs count inside."""
        pause, began, compiled = Stopwatch(), time.monotonic(), self._compilations()
        try:
            yield pause
        finally:
            pause.seconds = time.monotonic() - began
            self._paused += pause.seconds
            self._compiled += self._compilations() - compiled


# A rank that takes this many times the median of all, in this many consecutive intervals, holds the others up.
SLOW_RANK, SLOW_INTERVALS = 1.25, 3
# A gradient norm this many times the median of the last readings is a spike; fewer readings than FEWEST give no warning.
SPIKE, READINGS, MIN = 10.0, 20, 5


class StragglerMonitor:
    """Finds the rank that the others wait for, by the time that each takes for itself. Rank 0 has one."""

    def __init__(self, hosts: Sequence[str] = ()) -> None:
        """hosts: host of each rank; empty where they are not known."""
        self._hosts = hosts
        self._slow: dict[int, int] = {}  # rank -> consecutive slow intervals
        self._named: set[int] = set()

    def observe(self, seconds: Sequence[float]) -> str:
        """Take each rank's seconds for a step of the newest interval; -> a warning, "" for none. A rank is named once."""
        if len(seconds) < 2 or not all(seconds):
            return ""
        median = statistics.median_low(seconds)  # of two ranks the faster one
        slow = {rank for rank, took in enumerate(seconds) if took >= SLOW_RANK * median}
        self._slow = {rank: self._slow.get(rank, 0) + 1 for rank in slow}
        lasting = [rank for rank in slow if self._slow[rank] >= SLOW_INTERVALS and rank not in self._named]
        if not lasting:
            return ""
        rank = max(lasting, key=lambda rank: seconds[rank])
        self._named.add(rank)
        where = f" on {self._hosts[rank]}" if rank < len(self._hosts) else ""
        return (
            f"note: rank {rank}{where} needs {seconds[rank]:.3g} s for its part of a step, {seconds[rank] / median:.2g} times the "
            f"median of {median:.3g} s, for {SLOW_INTERVALS} intervals. The other ranks wait for it."
        )


class GradNormMonitor:
    """Finds a gradient far above those before it, the first sign of a run that is about to diverge."""

    def __init__(self, events: Iterable[Mapping[str, Any]] = ()) -> None:
        """events: those of the run so far where it is resumed, so that it notices what an unbroken run would."""
        norms = (event.get("gradient_norm", math.nan) for event in events if event["event"] == "train")
        self._norms = deque((norm for norm in norms if math.isfinite(norm)), maxlen=READINGS)

    def observe(self, norm: float) -> float:
        """-> how many times the median `norm` is, where that is a spike; else 0."""
        if not math.isfinite(norm):
            return 0.0  # an overflow of fp16, which is counted, or the run's end, whose reason says more
        median = statistics.median(self._norms) if len(self._norms) >= MIN else 0.0
        self._norms.append(norm)
        return norm / median if median and norm >= SPIKE * median else 0.0


# Over this many seconds others must have computed on this much of a core beyond those that are left to them.
WATCHED_SECONDS, CROWDED_CORES = 20.0, 0.4


class ContentionMonitor:
    """Notices that other processes compute on the cores of this run's compute threads, which then wait for each other."""

    def __init__(self, threads: int = 0, read: Callable[[], tuple[int, float] | None] | None = None) -> None:
        """threads: that meet in every operation of a step, on a CPU; fewer than 2 are not watched. read: as `read_machine_seconds`."""
        self._threads, self._read = threads, read or read_machine_seconds
        self._since = self._now() if threads > 1 else None

    def _now(self) -> tuple[float, float, int, float] | None:
        """-> (wall seconds, this process's CPU seconds, the machine's cores, its CPU seconds); None where these are not known."""
        machine = self._read()
        return machine and (time.monotonic(), time.process_time(), *machine)

    def observe(self) -> str:
        """-> a warning, "" for none, which it is until some seconds were watched; there is one a run."""
        if self._since is None or time.monotonic() - self._since[0] < WATCHED_SECONDS:
            return ""
        before, now = self._since, self._now()
        self._since = now
        if now is None:
            return ""
        wall, own, whole, cores = now[0] - before[0], now[1] - before[1], now[3] - before[3], now[2]
        others = max(0.0, whole - own) / wall
        # More threads than cores crowd themselves, and nobody else is to blame.
        if others < CROWDED_CORES or self._threads + others < cores + CROWDED_CORES:
            return ""
        self._since = None
        return (
            f"note: other processes use {others:.1f} of the {cores} cores of this machine, so the {self._threads} compute threads "
            f"wait for each other. Until they end, --system.intra-op-threads {max(1, cores - math.ceil(others))} is usually faster."
        )


def read_machine_seconds() -> tuple[int, float] | None:
    """-> (cores, CPU seconds of all processes since the machine started), from Linux's /proc/stat; None elsewhere."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
        # After these two come interrupts, hard and soft; guests' time, further on, is in the user's.
        user, nice, system, _idle, _waiting, hard, soft, *_ = (int(word) for word in lines[0].split()[1:])
    except (OSError, ValueError, IndexError):  # a sandbox's has other lines, or none
        return None
    cores = sum(1 for line in lines if line.startswith("cpu") and line[3:4].isdigit())
    return cores, (user + nice + system + hard + soft) / os.sysconf("SC_CLK_TCK")


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
            plan.global_batch_size,
            ranks=plan.world_size,
            flop=memory.flop_of if memory.flop else None,
            compiled=count_compilations if run.system.compile == "on" else None,
        )
        self.plan, self._budget = plan, parse_time_budget(run.options.max_time)
        self.recorder, self._device, self._power = recorder, world.device, power
        self._stragglers, self._spikes = StragglerMonitor(world.hosts), spikes
        self._neighbors = ContentionMonitor(threads if plan.world_size == 1 and world.device.type == "cpu" else 0)
        self._others_joules = 0  # on rank 0: of the other nodes, when the last train event was written

    def out_of_time(self) -> bool:
        """Whether --max-time is used up by this rank's clock."""
        return self._budget > 0 and self.clock.seconds() >= self._budget

    def seconds_left(self, step: int, images_per_second: float) -> float:
        """Seconds after `step` steps until the last one at this pace, or until --max-time is used up where that comes first."""
        left = (self.plan.stop_after - step) * self.plan.global_batch_size / max(images_per_second, 1e-9)
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
            f"note: the gradient norm of step {step:,} is {sizes['gradient_norm']:.3g}, which is {times:.3g} times the median of "
            "the previous values"
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
