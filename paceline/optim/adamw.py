"""AdamW over all tensors at once (Loshchilov and Hutter 2019), for networks that learn from scratch on few pictures.

Letters: g gradient of the global batch's mean loss   w weight   m, v moving averages of g and g^2   t steps taken
w <- w - lr d w;   m <- b1 m + (1 - b1) g;   v <- b2 v + (1 - b2) g^2;
w <- w - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
The decay d is lr-scaled and apart from the gradient. Weights, gradients and averages are float32; t lives on the device, so a step
that overflowed in fp16 is skipped without the host knowing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from paceline.config.recipe import Optim
from paceline.optim import foreach
from paceline.optim.optimiser import Optimiser
from paceline.optim.parameter_groups import NamedParameter, by_rate

# Published defaults (Kingma and Ba 2015).
SECOND_MOMENT = 0.999
EPSILON = 1e-8


class AdamW(Optimiser):
    """AdamW with torch.optim.AdamW's results; `momentum` is b1."""

    def __init__(self, parameters: Sequence[NamedParameter], optim: Optim) -> None:
        super().__init__(parameters, optim, "mean", "square")
        device = self.parameters[0].tensor.device if self.parameters else torch.device("cpu")
        self.steps = torch.zeros((), dtype=torch.float32, device=device)

    def update(
        self,
        parameters: list[NamedParameter],
        gradients: list[Tensor],
        own: Mapping[str, list[Tensor]],
        *,
        lr: float,
        previous_lr: float | None,
        found: Tensor | None,
    ) -> None:
        """See `Optimiser.update`."""
        momentum, decay = self.optim.momentum, self.optim.weight_decay
        weights: list[Tensor] = [parameter.tensor for parameter in parameters]
        means, squares = own["mean"], own["square"]
        taken = 1.0 if found is None else 1 - found
        self.steps += taken
        for rate, places in by_rate(parameters).items():
            decaying = [weights[place] for place in places if parameters[place].decays]
            if decay and decaying:
                foreach.mul_(decaying, torch.as_tensor(1 - lr * rate * decay * taken))
        keep = [1 - (1 - beta) * taken for beta in (momentum, SECOND_MOMENT)]
        foreach.mul_(means, keep[0])
        foreach.add_(means, gradients, alpha=1 - momentum)
        foreach.mul_(squares, keep[1])
        foreach.addcmul_(squares, gradients, gradients, value=1 - SECOND_MOMENT)
        # Where the run's very first step overflowed none is taken yet, and 0 / 0 would make every weight NaN.
        counted = self.steps.clamp(min=1)
        scale = (lr * taken) / (1 - momentum**counted)
        root = torch.sqrt(1 - SECOND_MOMENT**counted)
        divisors = foreach.sqrt(squares)
        foreach.div_(divisors, root)
        foreach.add_(divisors, EPSILON)
        moves = foreach.div(means, divisors)
        for rate, places in by_rate(parameters).items():
            foreach.mul_([moves[place] for place in places], scale * rate)
        foreach.sub_(weights, moves)

    def state(self) -> dict[str, Tensor]:
        """The averages and the step count themselves: "mean.<name>", "square.<name>", "steps"."""
        return {"steps": self.steps, **super().state()}
