"""What all optimisers share: gradients made ready for a step, and tensors of their own that a checkpoint saves by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from paceline.config.recipe import Optim
from paceline.optim import foreach
from paceline.optim.loss_scale import LossScaler
from paceline.optim.parameter_groups import NamedParameter
from paceline.optim.step_numbers import StepNumbers
from paceline.optim.tensor_state import copy_into


class Optimiser(ABC):
    """Weights, gradients and the optimiser's own tensors are float32; under autocast the weights are the master weights."""

    def __init__(self, parameters: Sequence[NamedParameter], optim: Optim, *own: str) -> None:
        """
        parameters  what to train, what of it decays, and at which share of the learning rate (`named_parameters`)
        optim       the recipe's settings
        own         names of tensors that each parameter has here, such as "velocity"; they start at zero
        """
        self.parameters, self.optim = list(parameters), optim
        self.own = {name: [torch.zeros_like(parameter.tensor) for parameter in parameters] for name in own}
        self.device = self.parameters[0].tensor.device if self.parameters else torch.device("cpu")
        # torch's kernels that take a whole step at once round otherwise: a CPU keeps the bits of its runs.
        self.fused = self.device.type == "cuda"

    @torch.no_grad()
    def step(self, numbers: StepNumbers, *, scaler: LossScaler | None = None) -> None:
        """Update every parameter that has a gradient; the gradients serve as scratch. No host sync.

        numbers  of this step
        scaler   divides the gradients first; a step that overflowed changes nothing but the scale
        """
        chosen = [place for place, parameter in enumerate(self.parameters) if parameter.tensor.grad is not None]
        if not chosen:
            return
        parameters = [self.parameters[place] for place in chosen]
        gradients = [parameter.tensor.grad for parameter in parameters if parameter.tensor.grad is not None]
        found = None if scaler is None else scaler.unscale(gradients)
        clip_gradients(gradients, value=self.optim.clip_value, norm=self.optim.clip_norm)
        own = {name: [tensors[place] for place in chosen] for name, tensors in self.own.items()}
        self.update(parameters, gradients, own, numbers, found)
        if scaler is not None and found is not None:
            scaler.update(found)

    @abstractmethod
    def update(
        self,
        parameters: list[NamedParameter],
        gradients: list[Tensor],
        own: Mapping[str, list[Tensor]],
        numbers: StepNumbers,
        found: Tensor | None,
    ) -> None:
        """One step of those parameters that have a gradient, in place.

        gradients  of the global batch's mean loss, unscaled and clipped; with `own`, in the order of `parameters`
        found      None, or a float32 scalar on the device that is 1 where the step must be skipped (the gradients are then anything)
        """

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for parameter in self.parameters:
            parameter.tensor.grad = None

    def state(self) -> dict[str, Tensor]:
        """The optimiser's tensors themselves, such as "velocity.<parameter name>"."""
        return {
            f"{name}.{parameter.name}": tensors[place]
            for place, parameter in enumerate(self.parameters)
            for name, tensors in self.own.items()
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Copy a saved state in. Raises CheckpointError for another set of names or shapes."""
        copy_into(self.state(), state, "optimiser state")


# Gradient clipping, on the device: the host never learns whether anything was clipped.
#
# Letters: g gradient of the global batch's mean loss, of all ranks, unscaled, before decay   c bound
# value  each element of g to [-c, c], as MXNet's clip_gradient
# norm   g * min(1, c / (||g|| + 1e-6)), the norm over all tensors, as torch.nn.utils.clip_grad_norm_


# Keeps the factor finite for a gradient of zeros (torch's value).
NORM_EPSILON = 1e-6


def clip_gradients(gradients: Sequence[Tensor], *, value: float, norm: float) -> None:
    """Clip in place, by value, by norm, or not at all.

    value, norm  c; 0 = off
    NaN stays NaN either way, and an infinite element makes all of a clipped norm's gradients NaN.
    """
    if not gradients:
        return
    tensors = list(gradients)
    if value:
        foreach.clamp_min_(tensors, -value)
        foreach.clamp_max_(tensors, value)
    if norm:
        norms = foreach.norm(tensors)
        whole = torch.linalg.vector_norm(torch.stack(list(norms)).float())
        factor = (norm / (whole + NORM_EPSILON)).clamp(max=1.0)
        foreach.mul_(tensors, factor)
