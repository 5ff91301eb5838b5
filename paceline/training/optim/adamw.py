"""AdamW over all tensors at once (Loshchilov and Hutter 2019), for networks that learn from scratch on few pictures.

Letters: g gradient of the global batch's mean loss   w weight   m, v moving averages of g and g^2   t steps taken
w <- w - lr d w;   m <- b1 m + (1 - b1) g;   v <- b2 v + (1 - b2) g^2;
w <- w - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
The decay d is scaled by lr and apart from the gradient. Weights, gradients and averages are float32; t lives on the device, so a
step that overflowed in fp16 is skipped without a host sync.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from paceline.config.recipe import Optim
from paceline.training.optim import foreach
from paceline.training.optim.base import NamedParameter, Optimizer, param_groups
from paceline.training.optim.sgd import zero_where
from paceline.training.optim.step_scalars import StepScalars, scaled

# Published defaults (Kingma and Ba 2015).
SECOND_MOMENT = 0.999
EPSILON = 1e-8


class AdamW(Optimizer):
    """AdamW with torch.optim.AdamW's results; `momentum` is b1."""

    def __init__(self, parameters: Sequence[NamedParameter], optim: Optim) -> None:
        super().__init__(parameters, optim, "mean", "square")
        self.steps = torch.zeros((), dtype=torch.float32, device=self.device)

    def update(
        self,
        parameters: list[NamedParameter],
        gradients: list[Tensor],
        own: Mapping[str, list[Tensor]],
        numbers: StepScalars,
        found_inf: Tensor | None,
    ) -> None:
        """See `Optimizer.update`."""
        momentum, decay = self.optim.momentum, self.optim.weight_decay
        weights: list[Tensor] = [parameter.tensor for parameter in parameters]
        means, squares = own["mean"], own["square"]
        groups = param_groups(parameters)
        lr, taken = numbers.lr, 1.0 if found_inf is None else 1 - found_inf
        self.steps += taken
        if self.fused:  # the same in torch's one kernel; a skipped step's gradients may be anything
            for (rate, decays), indices in groups.items():
                alike = [[tensors[index] for index in indices] for tensors in (weights, gradients, means, squares)]
                foreach.fused_adamw_(
                    alike[0],
                    alike[1],
                    alike[2],
                    alike[3],
                    [],
                    [self.steps] * len(indices),
                    lr=scaled(lr, rate),
                    beta1=momentum,
                    beta2=SECOND_MOMENT,
                    weight_decay=decay if decays else 0.0,
                    eps=EPSILON,
                    amsgrad=False,
                    maximize=False,
                    found_inf=found_inf,
                )
            return
        zero_where(found_inf, gradients)
        for (rate, decays), indices in groups.items():
            if decay and decays:
                foreach.mul_([weights[index] for index in indices], 1 - lr * rate * decay * taken)
        keep = [1 - (1 - beta) * taken for beta in (momentum, SECOND_MOMENT)]
        foreach.mul_(means, keep[0])
        foreach.add_(means, gradients, alpha=1 - momentum)
        foreach.mul_(squares, keep[1])
        foreach.addcmul_(squares, gradients, gradients, value=1 - SECOND_MOMENT)
        # If the run's very first step overflowed, none is taken yet, and 0 / 0 would make every weight NaN.
        counted = self.steps.clamp(min=1)
        scale = (lr * taken) / (1 - momentum**counted)
        root = torch.sqrt(1 - SECOND_MOMENT**counted)
        divisors = foreach.sqrt(squares)
        foreach.div_(divisors, root)
        foreach.add_(divisors, EPSILON)
        moves = foreach.div(means, divisors)
        for (rate, _), indices in groups.items():
            foreach.mul_([moves[index] for index in indices], scaled(scale, rate))
        foreach.sub_(weights, moves)

    def state(self) -> dict[str, Tensor]:
        """The averages and the step count themselves: "mean.<name>", "square.<name>", "steps"."""
        return {"steps": self.steps, **super().state()}
