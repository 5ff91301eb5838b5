"""How long this rank itself takes for a step, without the time in which it waits for others.

Ranks end a step together, so their steps take equally long on a clock: whoever is slow makes all wait in the exchange of gradients.
What differs is when a rank's own gradients are ready. The first weight that trains lies next to the input, so its gradient is the
last of a backward: a hook on it stamps the time. Nothing is exchanged for it, and no step waits.
Where ranks talk inside a forward (statistics or loss counts joined over ranks), they wait for each other there too, and differences
look smaller than they are.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from paceline.accelerators import module_of


class OwnTime:
    """Stamps when a step begins and when this rank's last gradient is there."""

    def __init__(self, network: nn.Module, device: torch.device) -> None:
        kind = device.type
        self._event: Any = None if kind == "cpu" else getattr(module_of(kind), "Event", None)
        self._steps: list[
            list[Any]
        ] = []  # [begin, end] of each step since they were read: seconds, or a device's events
        weight = next((weight for weight in network.parameters() if weight.requires_grad), None)
        if weight is not None:
            weight.register_post_accumulate_grad_hook(lambda _: self._ends())

    def begins(self) -> None:
        """A step's first forward is about to be sent."""
        self._steps.append([self._stamp()])

    def seconds(self) -> float:
        """Mean of the steps since the last call, 0.0 without any. On an accelerator the newest is left for the next call: it
        may not be done yet, and nobody waits here.
        """
        keep = 1 if self._event is not None else 0
        done, self._steps = self._steps[: len(self._steps) - keep], self._steps[len(self._steps) - keep :]
        took = [self._between(*step) for step in done if len(step) == 2]
        return sum(took) / len(took) if took else 0.0

    def _ends(self) -> None:
        if self._steps:
            self._steps[-1][1:] = [self._stamp()]  # the last forward's, where gradients of several add up

    def _stamp(self) -> Any:
        if self._event is None:
            return time.perf_counter()
        event = self._event(enable_timing=True)
        event.record()
        return event

    def _between(self, begin: Any, end: Any) -> float:
        return end - begin if self._event is None else begin.elapsed_time(end) / 1000
