"""A gradient far above those before it: the first sign of a run that is about to diverge."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

# A norm so many times the median of the last readings is one; of fewer readings nothing is said.
SPIKE, READINGS, FEWEST = 10.0, 20, 5


class Spikes:
    """Compares each reading of the gradient's norm with those before it."""

    def __init__(self, events: Iterable[Mapping[str, Any]] = ()) -> None:
        """events: of the run so far, where it goes on, so that it notices what an unbroken run would."""
        norms = (event.get("gradient_norm", math.nan) for event in events if event["event"] == "train")
        self._norms = deque((norm for norm in norms if math.isfinite(norm)), maxlen=READINGS)

    def look(self, norm: float) -> float:
        """-> how many times the median it is, where that is a spike; else 0."""
        if not math.isfinite(norm):
            return 0.0  # an overflow of fp16, which is counted, or the end of the run, which says more
        median = statistics.median(self._norms) if len(self._norms) >= FEWEST else 0.0
        self._norms.append(norm)
        return norm / median if median and norm >= SPIKE * median else 0.0
