"""An exponential moving average of the weights, to evaluate and keep instead of the weights themselves.

average <- decay * average + (1 - decay) * weight, after every optimizer step, over parameters and BatchNorm's running
statistics (Polyak and Juditsky 1992; Tarvainen and Valpola 2017). It starts as a copy of the current weights, so make it after
pretrained weights were loaded. The decay of a step is the Plan's (config/plan.py, `ema_at`); `update` takes 1 - decay, the share
that is new (step_scalars.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from paceline.training.optim import foreach
from paceline.training.optim.foreach import copy_into
from paceline.training.optim.step_scalars import Number


class EMA:
    """The average of one model's floating-point state: parameters and saved buffers, without counters."""

    def __init__(self, model: nn.Module) -> None:
        state = model.state_dict(keep_vars=True)
        self.sources: dict[str, Tensor] = {name: part for name, part in state.items() if part.is_floating_point()}
        self.averages = {name: tensor.detach().clone() for name, tensor in self.sources.items()}

    @torch.no_grad()
    def update(self, fresh: Number) -> None:
        """Move the average towards the model's state; call it after the optimizer step and BatchNorm's commit.

        fresh  share of the model's state in the new average, in (0, 1]
        """
        averages, sources = list(self.averages.values()), list(self.sources.values())
        if isinstance(fresh, Tensor):  # torch interpolates whole lists by Python numbers alone
            ways = foreach.sub(sources, averages)
            foreach.mul_(ways, fresh)
            foreach.add_(averages, ways)
        else:
            foreach.lerp_(averages, sources, fresh)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model holds the average inside the block and its own state again after it, also after an exception."""
        own = {name: tensor.detach().clone() for name, tensor in self.sources.items()}
        copy_into(self.sources, self.averages, "weight average")
        try:
            yield
        finally:
            copy_into(self.sources, own, "weights")

    def state(self) -> dict[str, Tensor]:
        """The averages themselves, keyed by the model's names."""
        return self.averages

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Copy a saved state in. Raises CheckpointError for another set of names or shapes."""
        copy_into(self.averages, state, "weight average")
