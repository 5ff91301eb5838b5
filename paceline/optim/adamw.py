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

from paceline.optim.clip import clip_gradients
from paceline.optim.loss_scale import LossScaler
from paceline.optim.parameter_groups import NamedParameter, by_rate
from paceline.optim.tensor_state import copy_into

# Published defaults (Kingma and Ba 2015).
SECOND_MOMENT = 0.999
EPSILON = 1e-8


class AdamW:
    """AdamW with torch.optim.AdamW's results."""

    def __init__(
        self,
        parameters: Sequence[NamedParameter],
        *,
        momentum: float,
        weight_decay: float,
        second: float = SECOND_MOMENT,
        eps: float = EPSILON,
        clip_value: float = 0.0,
        clip_norm: float = 0.0,
    ) -> None:
        """
        parameters    what to train, what of it decays, and at which share of the learning rate (`named_parameters`)
        momentum      b1, in [0, 1)
        weight_decay  d
        second        b2
        clip_value, clip_norm  bounds of g (optim/clip.py); 0 = off
        """
        self.parameters = list(parameters)
        self.momentum, self.second, self.eps = momentum, second, eps
        self.weight_decay = weight_decay
        self.clip_value, self.clip_norm = clip_value, clip_norm
        self.means = [torch.zeros_like(parameter.tensor) for parameter in self.parameters]
        self.squares = [torch.zeros_like(parameter.tensor) for parameter in self.parameters]
        device = self.parameters[0].tensor.device if self.parameters else torch.device("cpu")
        self.steps = torch.zeros((), dtype=torch.float32, device=device)

    @torch.no_grad()
    def step(self, lr: float, *, previous_lr: float | None = None, scaler: LossScaler | None = None) -> None:
        """Update every parameter that has a gradient; the gradients serve as scratch. No host sync.

        lr      learning rate of this step
        scaler  divides the gradients first; a step that overflowed changes nothing
        """
        chosen = [index for index, parameter in enumerate(self.parameters) if parameter.tensor.grad is not None]
        if not chosen:
            return
        parameters = [self.parameters[index] for index in chosen]
        weights: list[Tensor] = [parameter.tensor for parameter in parameters]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        means, squares = [self.means[index] for index in chosen], [self.squares[index] for index in chosen]
        found = None if scaler is None else scaler.unscale(gradients)
        taken = 1.0 if found is None else 1 - found
        if found is not None:
            for gradient in gradients:
                gradient.masked_fill_(found > 0, 0.0)
        clip_gradients(gradients, value=self.clip_value, norm=self.clip_norm)
        self.steps += taken
        for rate, places in by_rate(parameters).items():
            decaying = [weights[place] for place in places if parameters[place].decays]
            if self.weight_decay and decaying:
                torch._foreach_mul_(decaying, torch.as_tensor(1 - lr * rate * self.weight_decay * taken))  # pyright: ignore[reportPrivateImportUsage]
        keep = [1 - (1 - beta) * taken for beta in (self.momentum, self.second)]
        torch._foreach_mul_(means, keep[0])  # pyright: ignore[reportPrivateImportUsage]
        torch._foreach_add_(means, gradients, alpha=1 - self.momentum)  # pyright: ignore[reportPrivateImportUsage]
        torch._foreach_mul_(squares, keep[1])  # pyright: ignore[reportPrivateImportUsage]
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - self.second)  # pyright: ignore[reportPrivateImportUsage]
        scale = (lr * taken) / (1 - self.momentum**self.steps)
        root = torch.sqrt(1 - self.second**self.steps)
        divisors = torch._foreach_sqrt(squares)  # pyright: ignore[reportPrivateImportUsage]
        torch._foreach_div_(divisors, root)  # pyright: ignore[reportPrivateImportUsage]
        torch._foreach_add_(divisors, self.eps)  # pyright: ignore[reportPrivateImportUsage]
        moves = torch._foreach_div(means, divisors)  # pyright: ignore[reportPrivateImportUsage]
        for rate, places in by_rate(parameters).items():
            torch._foreach_mul_([moves[place] for place in places], scale * rate)  # pyright: ignore[reportPrivateImportUsage]
        torch._foreach_sub_(weights, moves)  # pyright: ignore[reportPrivateImportUsage]
        if scaler is not None and found is not None:
            scaler.update(found)

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for parameter in self.parameters:
            parameter.tensor.grad = None

    def state(self) -> dict[str, Tensor]:
        """The averages and the step count themselves: "mean.<name>", "square.<name>", "steps"."""
        state = {"steps": self.steps}
        for parameter, mean, square in zip(self.parameters, self.means, self.squares):
            state[f"mean.{parameter.name}"], state[f"square.{parameter.name}"] = mean, square
        return state

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Copy a saved state in. Raises CheckpointError for another set of names or shapes."""
        copy_into(self.state(), state, "optimiser state")
