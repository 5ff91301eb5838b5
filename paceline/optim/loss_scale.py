"""Loss scaling for fp16 gradients, all on the device: a step whose gradients overflowed is skipped without a host sync.

A static scale keeps its value (the original SSD used 128); a dynamic one halves at an overflow and doubles after
GROWTH_INTERVAL good steps (Micikevicius et al. 2018; the constants are torch.amp.GradScaler's).
Skipped steps are counted on the device; read `skipped` once an interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from paceline.optim import foreach
from paceline.optim.tensor_state import copy_into

GROWTH = 2.0
BACKOFF = 0.5
GROWTH_INTERVAL = 2000


class LossScaler:
    """Multiplies the loss, divides the gradients, and says whether this step must be skipped."""

    def __init__(
        self,
        kind: Literal["static", "dynamic"],
        scale: float,
        *,
        device: torch.device | str = "cpu",
        growth_interval: int = GROWTH_INTERVAL,
    ) -> None:
        """
        scale            factor of the loss; for kind dynamic the first one (65536 is usual)
        growth_interval  good steps in a row before a dynamic scale doubles
        """
        self.kind = kind
        self.growth_interval = growth_interval
        self.current = torch.tensor(float(scale), device=device)
        self.good_steps = torch.zeros((), dtype=torch.int64, device=device)
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)

    def scale(self, loss: Tensor) -> Tensor:
        """The loss to call backward on."""
        return loss * self.current

    def unscale(self, gradients: Sequence[Tensor]) -> Tensor:
        """Divide the gradients in place; -> 1.0 if any is infinite or NaN, else 0.0 (scalar float32, on the device).

        Call it when the gradients of all ranks are summed: then every rank finds the same.
        """
        found = torch.zeros((), device=self.current.device)
        foreach.unscale_(list(gradients), found, self.current.reciprocal())
        return found

    def update(self, found: Tensor) -> None:
        """After the step: count a skipped one and move a dynamic scale."""
        bad = found > 0
        self.skipped += bad
        if self.kind == "static":
            return
        self.good_steps.add_(1).masked_fill_(bad, 0)
        grows = self.good_steps >= self.growth_interval
        grown = self.current * GROWTH
        # A scale that overflows itself would poison every later step.
        grown = torch.where(torch.isfinite(grown), grown, self.current)
        self.current.copy_(torch.where(bad, self.current * BACKOFF, torch.where(grows, grown, self.current)))
        self.good_steps.masked_fill_(grows, 0)

    def state(self) -> dict[str, Tensor]:
        """The tensors themselves, by name: current scale, good steps in a row, steps skipped so far."""
        return {"scale": self.current, "good_steps": self.good_steps, "skipped": self.skipped}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Copy a saved state in. Raises CheckpointError for another set of names or shapes."""
        copy_into(self.state(), state, "loss scale")
