"""The optimisers that a recipe can name. A new one: its class in a file of this room, a row here, its name in `OptimiserKind`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.config.recipe import Optim, OptimiserKind
from paceline.optim.adamw import AdamW
from paceline.optim.lars import LARS
from paceline.optim.optimiser import Optimiser
from paceline.optim.parameter_groups import NamedParameter
from paceline.optim.sgd import SGD

OPTIMISERS: dict[OptimiserKind, Callable[[Sequence[NamedParameter], Optim], Optimiser]] = {
    "sgd": SGD,
    "lars": LARS,
    "adamw": AdamW,
}


def make_optimiser(parameters: Sequence[NamedParameter], optim: Optim) -> Optimiser:
    """The optimiser of a recipe, fresh."""
    return OPTIMISERS[optim.kind](parameters, optim)
