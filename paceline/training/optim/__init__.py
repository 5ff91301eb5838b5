"""SGD, LARS, AdamW, loss scale, clipping, weight average: in-place update rules on tensors that never wait for the device.

Here: one class per optimizer; what changes from step to step is in step_scalars.py. A new optimizer: its class in a file of this
package, a row below, its name in `OptimizerName`. Not here: the lr schedule (config/recipe.py), the step (training/step.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.config.recipe import Optim, OptimizerName
from paceline.training.optim.adamw import AdamW
from paceline.training.optim.base import NamedParameter, Optimizer
from paceline.training.optim.sgd import LARS, SGD

OPTIMIZERS: dict[OptimizerName, Callable[[Sequence[NamedParameter], Optim], Optimizer]] = {
    "sgd": SGD,
    "lars": LARS,
    "adamw": AdamW,
}


def make_optimizer(parameters: Sequence[NamedParameter], optim: Optim) -> Optimizer:
    """The optimizer that a recipe names, with fresh state."""
    return OPTIMIZERS[optim.name](parameters, optim)
