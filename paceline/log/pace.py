"""Clocks of a run: how long it has gone on, over resumes too, and how fast an interval between two train events was."""

from __future__ import annotations

import time
from collections.abc import Iterator
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
    """Throughput between two train events; evaluations are not counted as training time."""

    def __init__(self, global_batch: int) -> None:
        self._global_batch = global_batch
        self.begin(0, 0.0)

    def begin(self, step: int, waited: float) -> None:
        """A new interval starts after `step` steps; `waited` is the loader's total wait so far."""
        self._step, self._waited = step, waited
        self._began, self._paused = time.monotonic(), 0.0

    def close(self, step: int, waited: float) -> dict[str, float]:
        """-> images_per_second and data_wait (share of the interval spent waiting for input); a new interval starts."""
        elapsed = max(time.monotonic() - self._began - self._paused, 1e-9)
        pace = {
            "images_per_second": (step - self._step) * self._global_batch / elapsed,
            "data_wait": min(1.0, max(0.0, (waited - self._waited) / elapsed)),
        }
        self.begin(step, waited)
        return pace

    @contextmanager
    def paused(self) -> Iterator[Pause]:
        """Time inside does not count."""
        pause, began = Pause(), time.monotonic()
        try:
            yield pause
        finally:
            pause.seconds = time.monotonic() - began
            self._paused += pause.seconds
