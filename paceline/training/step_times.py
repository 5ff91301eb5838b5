"""Where a step's time goes on this rank: forward, backward, exchange of gradients, update; and what of it is the rank's own.

Stamps are taken as work is sent: a CPU's clock, or an accelerator's events, which are read once the device has passed them, so that
nothing waits. There one step of SAMPLED is stamped. The exchange is what is seen of it: most of it hides behind the backward.

Ranks end a step together, so their steps take equally long on a clock: whoever is slow makes all wait in the exchange. What differs is
when a rank's own gradients are ready. The first weight that trains lies next to the input, so its gradient is the last of a
backward: a hook on it stamps the time. Where ranks talk inside a forward (statistics or loss counts joined over ranks), they wait for
each other there too, and differences look smaller than they are.
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any, Literal, get_args

import torch
from torch import nn

from paceline.accelerators import module_of

Part = Literal["forward", "backward", "exchange", "update"]
SAMPLED = 8  # on an accelerator, of so many steps between two readings the first is stamped
OWN = "own"  # the last gradient of this rank: a backward's end for the rank itself


class StepTimes:
    """Stamps the parts of steps."""

    def __init__(self, network: nn.Module, device: torch.device) -> None:
        kind = device.type
        self._event: Any = None if kind in ("cpu", "meta") else getattr(module_of(kind), "Event", None)
        self._steps: list[list[tuple[str, Any]]] = []  # of each stamped step since they were read: (what ended, stamp)
        self._begun = 0  # steps since they were read
        self._open = False  # whether the step under way is stamped
        weight = next((weight for weight in network.parameters() if weight.requires_grad), None)
        if weight is not None:
            weight.register_post_accumulate_grad_hook(lambda _: self._stamp(OWN))

    def begins(self) -> None:
        """A step's first forward is about to be sent."""
        self._open = self._event is None or self._begun % SAMPLED == 0
        self._begun += 1
        if self._open:
            self._steps.append([])
            self._stamp("")

    def reached(self, part: Part) -> None:
        """What was sent since the last call was this part; after the update the step is over."""
        self._stamp(part)
        self._open = self._open and part != "update"

    def read(self) -> tuple[dict[str, float], float]:
        """-> mean seconds of each part, and of what is the rank's own, over the stamped steps since the last call; nothing and 0.0
        without any. A step that the device is not past is left for the next call.
        """
        passed = [self._event is None or step[-1][1].query() for step in self._steps]
        done = [step for step, is_passed in zip(self._steps, passed) if is_passed]
        self._steps = [step for step, is_passed in zip(self._steps, passed) if not is_passed]
        self._begun, self._open = 0, False
        parts: dict[str, float] = dict.fromkeys(get_args(Part), 0.0)
        own = 0.0
        for step in done:
            for (_, before), (part, stamp) in pairwise(step):
                parts["backward" if part == OWN else part] += self._between(before, stamp)
            last = next((stamp for part, stamp in reversed(step) if part == OWN), None)
            own += 0.0 if last is None else self._between(step[0][1], last)
        count = len(done)
        return ({part: seconds / count for part, seconds in parts.items()}, own / count) if count else ({}, 0.0)

    def _stamp(self, part: str) -> None:
        if not self._open:
            return
        if self._event is None:
            stamp = time.perf_counter()
        else:
            stamp = self._event(enable_timing=True)
            stamp.record()
        self._steps[-1].append((part, stamp))

    def _between(self, begin: Any, end: Any) -> float:
        return end - begin if self._event is None else begin.elapsed_time(end) / 1000
