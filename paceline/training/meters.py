"""Losses of the steps since the last train event, summed on the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from paceline.ranks.exchange import smallest_and_each
from paceline.ranks.world import World

NEVER = torch.iinfo(torch.int64).max


class Meters:
    """Sums of the losses since the last train event, on the device; read once an interval.

    Kept in float64, where a few hundred float32 values add up exactly whatever the order: an interval cut by a checkpoint
    logs the same number as one that was not. Apple's GPUs have no float64: there the last digits may differ.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.dtype = torch.float32 if device.type == "mps" else torch.float64
        self.sums: dict[str, Tensor] = {}
        self.steps = 0
        self.first_bad = torch.full((), NEVER, dtype=torch.int64, device=device)

    def add(self, losses: Mapping[str, Tensor], step: int) -> None:
        """Losses of 0-based step `step`; no host synchronisation."""
        for name, value in losses.items():
            value = value.detach().to(self.dtype)
            self.sums[name] = self.sums[name] + value if name in self.sums else value
        bad = ~torch.isfinite(losses["loss"].detach())
        self.first_bad = torch.where(
            bad & (self.first_bad == NEVER), torch.full_like(self.first_bad, step), self.first_bad
        )
        self.steps += 1

    def read(
        self, world: World, own: Callable[[], Sequence[int]] = tuple
    ) -> tuple[dict[str, float], int | None, list[list[int]]]:
        """-> mean of each loss over the interval and all ranks; first step of any rank whose loss was not finite, or None; each
        rank's `own` numbers, which travel along.

        own  asked once the device has done what the losses were read from
        """
        means = {name: value / max(1, self.steps) for name, value in self._totals(world).items()}
        first, ranks = smallest_and_each(world, int(self.first_bad), own())
        return means, None if first == NEVER else first, ranks

    def _totals(self, world: World) -> dict[str, float]:
        """The sums over all ranks; every rank must call it."""
        if not self.sums:
            return {}
        names = sorted(self.sums)
        totals = world.sum_(torch.stack([self.sums[name] for name in names]))
        return dict(zip(names, totals.tolist()))

    def clear(self) -> None:
        """Begin a new interval."""
        self.sums, self.steps = {}, 0
        self.first_bad.fill_(NEVER)

    def facts(self, world: World) -> dict[str, Any]:
        """JSON of the interval so far, summed over ranks."""
        return {"steps": self.steps, "sums": self._totals(world)}

    def restore(self, facts: Mapping[str, Any], world: World) -> None:
        """The whole sum goes to rank 0, the others go on from zero."""
        self.clear()
        self.steps = int(facts["steps"])
        for name, value in facts["sums"].items():
            mine = value if world.rank == 0 else 0.0
            self.sums[name] = torch.tensor(mine, dtype=self.dtype, device=self.device)
