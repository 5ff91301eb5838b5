"""Clocks of a run: how long it has gone on, over resumes too, and how fast an interval between two train events was."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass


class Clock:
    """Wall-clock seconds of the run; `before` is what earlier processes of it took."""

    def __init__(self, before: float = 0.0) -> None:
        self._before = before
        self._began = time.monotonic()

    def seconds(self) -> float:
        """Since the run's first process began training."""
        return self._before + time.monotonic() - self._began


@dataclass
class Pause:
    """How long a pause took, once it is over."""

    seconds: float = 0.0


class Interval:
    """Throughput between two train events; evaluations are not counted as training time.

    flop      of so many images with so many pixels in all, of one rank; None where it is not known
    compiled  how many graphs this process has compiled; None where it compiles none
    """

    def __init__(
        self,
        global_batch: int,
        *,
        ranks: int = 1,
        flop: Callable[[int, int], float] | None = None,
        compiled: Callable[[], int] | None = None,
    ) -> None:
        self._global_batch, self._ranks, self._flop_of = global_batch, ranks, flop
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
        """Of a step of this interval, what this rank takes for itself: waiting for its input, and computing for so many seconds."""
        return round(1e6 * (max(0.0, waited - self._waited) / max(1, step - self._step) + computing))

    def close(self, step: int, waited: float) -> dict[str, float]:
        """-> images_per_second, flop_per_second where it is known, data_wait (share of the interval spent waiting for input), and
        recompilations where there were any; a new interval starts.
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
    def paused(self) -> Iterator[Pause]:
        """Time inside does not count, and nor do graphs."""
        pause, began, compiled = Pause(), time.monotonic(), self._compilations()
        try:
            yield pause
        finally:
            pause.seconds = time.monotonic() - began
            self._paused += pause.seconds
            self._compiled += self._compilations() - compiled


# A rank that takes so many times the median of all, in so many intervals running, holds the others up.
SLOW_RANK, SLOW_INTERVALS = 1.25, 3


class Stragglers:
    """Finds the rank that the others wait for: by what each takes for itself, interval after interval. Rank 0 keeps one."""

    def __init__(self, hosts: Sequence[str] = ()) -> None:
        """hosts: of each rank; empty where they are not known."""
        self._hosts = hosts
        self._slow: dict[int, int] = {}  # rank -> intervals running
        self._told: set[int] = set()

    def look(self, seconds: Sequence[float]) -> str:
        """What each rank took for a step of the newest interval; -> what to say, "" for nothing. A rank is named once."""
        if len(seconds) < 2 or not all(seconds):
            return ""
        median = statistics.median_low(seconds)  # of two ranks the faster one
        slow = {rank for rank, took in enumerate(seconds) if took >= SLOW_RANK * median}
        self._slow = {rank: self._slow.get(rank, 0) + 1 for rank in slow}
        lasting = [rank for rank in slow if self._slow[rank] >= SLOW_INTERVALS and rank not in self._told]
        if not lasting:
            return ""
        rank = max(lasting, key=lambda rank: seconds[rank])
        self._told.add(rank)
        where = f" on {self._hosts[rank]}" if rank < len(self._hosts) else ""
        return (
            f"note: rank {rank}{where} takes {seconds[rank]:.3g} s for its part of a step, {seconds[rank] / median:.2g} times the "
            f"median of {median:.3g} s, for {SLOW_INTERVALS} intervals now: the other ranks wait for it"
        )
