"""SGD, LARS, AdamW, loss scale, clipping, weight average: in-place update rules on tensors that never wait for the device.

Here: one class per optimiser; what changes from step to step is in step_scalars.py. A new optimiser: its class in a file of this
room, a row below, its name in `OptimiserKind`. Not here: the lr schedule (config/schedule.py), the step (training/step.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.config.recipe import Optim, OptimiserKind
from paceline.training.optim.adamw import AdamW
from paceline.training.optim.base import NamedParameter, Optimiser
from paceline.training.optim.sgd import LARS, SGD

OPTIMISERS: dict[OptimiserKind, Callable[[Sequence[NamedParameter], Optim], Optimiser]] = {
    "sgd": SGD,
    "lars": LARS,
    "adamw": AdamW,
}


def make_optimiser(parameters: Sequence[NamedParameter], optim: Optim) -> Optimiser:
    """The optimiser that a recipe names, with fresh state."""
    return OPTIMISERS[optim.kind](parameters, optim)
