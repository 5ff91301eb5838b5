"""One bit of a weight that flipped in memory between two steps, found by trial: trained again with it, the run must come out as it
was, to the bit in every tensor. A flip is tried where the checkpoint after it is farthest from what the steps lead to without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import torch
from torch import Tensor

from paceline.training.checkpoint.write import Snapshot
from paceline.training.rerun import Rerun
from paceline.training.step_trace import difference, states_apart

# Tried are the weights that differ most, in the bits whose flip is nearest to their difference; at most so many steps in all.
WEIGHTS, BITS, MOST_STEPS = 4, 3, 500


def find_flip(side: Rerun, steps: range, recorded: Snapshot) -> dict[str, Any] | None:
    """-> {step, name, at, bit}: the 1-based step before which that bit of a weight flipped; None where no single one explains it.

    side      the run at a state it had, at the first of `steps` or before; of no use afterwards
    steps     0-based, before which it may have been
    recorded  the run's checkpoint after them
    """
    last = int(recorded.facts["step"])
    if len(steps) * WEIGHTS * BITS * (last - steps.start) > MOST_STEPS:
        return None
    batches, moments = {}, {}
    with side.loader() as loader:
        for step, ours in loader:
            if step in steps:
                moments[step] = side.moment()
            if step in range(steps.start, last):
                batches[step] = [batch.to(side.world.device, copy=True) for batch in ours]
            side.take(ours, follow="nothing")
            if step + 1 == last:
                break
    weights = {name: weight.detach() for name, weight in side.state.model.named_parameters()}
    tries = _tries(recorded.tensors["model"], weights)
    for step, (name, place, bit) in product(steps, tries):
        side.go_back(moments[step])
        flip(weights[name], place, bit)
        for number in range(step, last):
            side.take(batches[number], follow="nothing")
        if not states_apart(recorded.tensors, side.tensors())[1]:
            return {"step": step + 1, "name": name, "at": list(place), "bit": bit}
    return None


def flip(weight: Tensor, place: tuple[int, ...], bit: int) -> None:
    """Flip a bit, 0 the last of the mantissa, of the float32 at `place`, in memory."""
    weight.view(torch.int32)[place] ^= -(2**31) if bit == 31 else 1 << bit


def _tries(recorded: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> list[tuple[str, tuple[int, ...], int]]:
    """Weight, place and bit, the likeliest first: steps move weights by little, so a flip is most of the difference at its place."""
    found = [(name, difference(weight.cpu(), recorded[name])) for name, weight in weights.items()]
    apart = sorted((one for one in found if one[1].get("largest")), key=lambda one: -one[1]["largest"])[:WEIGHTS]
    tries = []
    for name, one in apart:
        here, there = (torch.tensor(value, dtype=torch.float32) for value in one["values"])
        flipped = here.repeat(32)
        for bit in range(32):
            flip(flipped, (bit,), bit)
        nearest = (flipped.double() - there.double()).abs().nan_to_num(nan=torch.inf).argsort()
        tries += [(name, tuple(one["at"]), int(bit)) for bit in nearest[:BITS]]
    return tries
