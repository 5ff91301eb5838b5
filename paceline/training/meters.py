"""Measurements of the steps between two train events: losses, the size of a step, and the time of its parts.

Nothing here makes a step wait for the device: sums and norms stay there and are read once an interval.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from paceline.distributed.comm.world import DistContext, all_min_and_gather
from paceline.distributed.device.accelerators import get_device_module
from paceline.training.optim.step_scalars import LossScaler

NEVER = torch.iinfo(torch.int64).max
# A network is shown in at least this many parts, where it has them, of at most this many levels of names.
MIN_PARTS, DEEPEST = 3, 4
Part = Literal["forward", "backward", "exchange", "update"]
SAMPLED = 8  # on an accelerator the first of this many steps between two readings is timed
OWN = "own"  # the last gradient of this rank: a backward's end for the rank itself


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
        """Losses of 0-based step `step`; no host synchronization."""
        for name, value in losses.items():
            value = value.detach().to(self.dtype)
            self.sums[name] = self.sums[name] + value if name in self.sums else value
        bad = ~torch.isfinite(losses["loss"].detach())
        self.first_bad = torch.where(bad & (self.first_bad == NEVER), torch.full_like(self.first_bad, step), self.first_bad)
        self.steps += 1

    def read(
        self, world: DistContext, own: Callable[[], Sequence[int]] = tuple
    ) -> tuple[dict[str, float], int | None, list[list[int]]]:
        """-> (mean of each loss over the interval and all ranks, first step of any rank whose loss was not finite or None, each
        rank's `own` numbers).

        own  called once the device has finished the steps that the losses are of
        """
        means = {name: value / max(1, self.steps) for name, value in self._totals(world).items()}
        first, ranks = all_min_and_gather(world, int(self.first_bad), own())
        return means, None if first == NEVER else first, ranks

    def _totals(self, world: DistContext) -> dict[str, float]:
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

    def facts(self, world: DistContext) -> dict[str, Any]:
        """JSON of the interval so far, summed over ranks."""
        return {"steps": self.steps, "sums": self._totals(world)}

    def restore(self, facts: Mapping[str, Any], world: DistContext) -> None:
        """The whole sum goes to rank 0, the others go on from zero."""
        self.clear()
        self.steps = int(facts["steps"])
        for name, value in facts["sums"].items():
            mine = value if world.rank == 0 else 0.0
            self.sums[name] = torch.tensor(mine, dtype=self.dtype, device=self.device)


class StepSizes:
    """Norms of a step's gradients and update beside the weights', of the network and of each of its parts.

    One step of an interval is measured, the one before its train event, and nothing is changed by it. The weights are kept for
    the length of an update: as many bytes as they have, at a moment when activations are gone.
    """

    def __init__(self, network: nn.Module) -> None:
        named = [(name, weight) for name, weight in network.named_parameters() if weight.requires_grad]
        self._parts = group_parameters([name for name, _ in named])
        self._weights: list[Tensor] = [weight for _, weight in named]
        self._kept: list[Tensor] = []
        self._norms: tuple[Tensor, ...] = ()  # of gradients, updates, weights: (P,) float32 each, on the device

    @torch.no_grad()
    def before(self, scaler: LossScaler | None) -> None:
        """Measure the gradients, before they are clipped; `scaler` has multiplied them."""
        gradients = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in self._weights]
        norms = _norms(gradients)
        self._norms = (norms if scaler is None else norms / scaler.current,)
        self._kept = [weight.detach().clone() for weight in self._weights]

    @torch.no_grad()
    def after(self) -> None:
        """Measure the update, once it is done."""
        kept, self._kept = self._kept, []
        of_weights = _norms(kept)
        torch._foreach_sub_(kept, self._weights)  # pyright: ignore[reportPrivateImportUsage]
        self._norms = (*self._norms, _norms(kept), of_weights)

    def read(self) -> dict[str, float | dict[str, float]]:
        """The measurements since the last call, {} for none: `gradient_norm`; `update_ratio`, the norm of the update over that of
        the weights; both of each part as `gradient_norms`, `update_ratios`. A part whose weights are all 0 has no ratio.
        """
        if len(self._norms) != 3 or not self._weights:
            return {}
        gradients, updates, weights = (norms.tolist() for norms in self._norms)
        self._norms = ()
        whole = list(range(len(gradients)))
        ratios = {
            name: _length(updates, indices) / length
            for name, indices in {"": whole, **self._parts}.items()
            if (length := _length(weights, indices)) != 0
        }
        facts: dict[str, float | dict[str, float]] = {"gradient_norm": _length(gradients, whole)}
        if "" in ratios:
            facts["update_ratio"] = ratios.pop("")
        return facts | {
            "gradient_norms": {name: _length(gradients, indices) for name, indices in self._parts.items()},
            "update_ratios": ratios,
        }


def group_parameters(names: Sequence[str]) -> dict[str, list[int]]:
    """Parameters by part of the network: the beginnings of their names, with as few levels as make three parts.

    names   dotted, in the network's order
    return  beginning of the name -> places
    """
    parts: dict[str, list[int]] = {}
    for depth in range(1, DEEPEST + 1):
        parts = {}
        for index, name in enumerate(names):
            owners = name.split(".")[:-1] or [name]
            parts.setdefault(".".join(owners[:depth]), []).append(index)
        if len(parts) >= MIN_PARTS:
            break
    return parts


def _norms(tensors: list[Tensor]) -> Tensor:
    return torch.stack(torch._foreach_norm(tensors)) if tensors else torch.zeros(0)  # pyright: ignore[reportPrivateImportUsage]


def _length(norms: Sequence[float], indices: Sequence[int]) -> float:
    chosen = [norms[index] for index in indices]
    return math.hypot(*chosen) if all(math.isfinite(norm) for norm in chosen) else math.nan


class StepTimes:
    """Time of forward, backward, exchange of gradients and update on this rank, and how much of it is the rank's own.

    Stamps are taken as work is sent: a CPU's clock, or an accelerator's events, which are read once the device has passed them. The
    exchange is its visible part: most of it hides behind the backward.
    Ranks end a step together, so their steps take equally long: whoever is slow makes all wait in the exchange. What differs is
    when a rank's own gradients are ready. The first weight that trains lies next to the input, so its gradient is the last of a
    backward: a hook on it takes that time. Where ranks talk inside a forward (statistics or loss counts joined over ranks), they
    wait for each other there too, and differences look smaller than they are.
    """

    def __init__(self, network: nn.Module, device: torch.device) -> None:
        kind = device.type
        self._event: Any = None if kind in ("cpu", "meta") else getattr(get_device_module(kind), "Event", None)
        self._steps: list[list[tuple[str, Any]]] = []  # of each timed step since the last reading: (what ended, stamp)
        self._begun = 0  # steps since the last reading
        self._open = False  # whether the current step is timed
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
        """Everything sent since the last call belongs to this part; after the update the step is over."""
        self._stamp(part)
        self._open = self._open and part != "update"

    def read(self) -> tuple[dict[str, float], float]:
        """-> (mean seconds of each part, and of the rank's own work) over the timed steps since the last call; ({}, 0.0) without
        any. A step that the device has not finished is left for the next call.
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
