"""What all optimizers share: which tensors decay and at which rate, gradients made ready for a step, state for a checkpoint.

Source of the groups: MLPerf's MXNet ResNet decays `*_weight` and the FC bias, never BatchNorm's gamma and beta, and gives LARS to
everything but gamma, beta and bias.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paceline.config.recipe import NoDecay, Optim
from paceline.training.optim import foreach
from paceline.training.optim.foreach import copy_into
from paceline.training.optim.step_scalars import LossScaler, StepScalars

NORMS = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm)
# Keeps a clipped norm's factor finite for a gradient of zeros (torch's value).
NORM_EPSILON = 1e-6


@dataclass(frozen=True)
class NamedParameter:
    """A trainable tensor with its name in the model and how the optimizer treats it."""

    name: str
    tensor: nn.Parameter
    decays: bool
    adapts: bool
    rate: float = 1.0  # factor on the learning rate


def list_named_parameters(
    model: nn.Module, no_decay: NoDecay, *, bias_lr_factor: float = 1.0, factors: Mapping[str, float] | None = None
) -> list[NamedParameter]:
    """Every trainable parameter of `model`, each once, in module order; frozen ones are left out.

    no_decay  none: every tensor decays; norm: weights and biases of convolutions and linear layers;
              norm-and-bias: their weights alone
    bias_lr_factor  factor on the learning rate of every bias, a normalization layer's too, as Detectron's BIAS_LR_FACTOR
    factors   further factors by name, where they are not 1
    A tensor adapts (LARS) when it is neither a bias nor a normalization layer's.
    """
    parameters: list[NamedParameter] = []
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        norm = isinstance(module, NORMS)
        for name, tensor in module.named_parameters(recurse=False):
            if id(tensor) in seen or not tensor.requires_grad:
                continue
            seen.add(id(tensor))
            weight = not norm and name != "bias"
            decays = no_decay == "none" or (not norm and (no_decay == "norm" or weight))
            full = f"{prefix}.{name}" if prefix else name
            rate = (bias_lr_factor if name == "bias" else 1.0) * (factors or {}).get(full, 1.0)
            parameters.append(NamedParameter(full, tensor, decays, adapts=weight, rate=rate))
    return parameters


def param_groups(parameters: Sequence[NamedParameter]) -> dict[tuple[float, bool], list[int]]:
    """(Factor on the learning rate, whether it decays) -> places in `parameters` of those that have both, in order."""
    indices: dict[tuple[float, bool], list[int]] = {}
    for index, parameter in enumerate(parameters):
        indices.setdefault((parameter.rate, parameter.decays), []).append(index)
    return indices


class Optimizer(ABC):
    """Weights, gradients and the optimizer's own tensors are float32; under autocast the weights are the master weights."""

    def __init__(self, parameters: Sequence[NamedParameter], optim: Optim, *own: str) -> None:
        """
        parameters  what to train, what of it decays, and at which share of the learning rate (`list_named_parameters`)
        optim       the recipe's settings
        own         names of the tensors kept for each parameter, such as "velocity"; they start at zero
        """
        self.parameters, self.optim = list(parameters), optim
        self.own = {name: [torch.zeros_like(parameter.tensor) for parameter in parameters] for name in own}
        self.device = self.parameters[0].tensor.device if self.parameters else torch.device("cpu")
        # torch's kernels that take a whole step at once round otherwise: a CPU keeps the bits of its runs.
        self.fused = self.device.type == "cuda"

    @torch.no_grad()
    def step(self, numbers: StepScalars, *, scaler: LossScaler | None = None) -> None:
        """Update every parameter that has a gradient; the gradients serve as scratch. No host sync.

        scaler  divides the gradients first; a step that overflowed changes nothing but the scale
        """
        chosen = [index for index, parameter in enumerate(self.parameters) if parameter.tensor.grad is not None]
        if not chosen:
            return
        parameters = [self.parameters[index] for index in chosen]
        gradients = [parameter.tensor.grad for parameter in parameters if parameter.tensor.grad is not None]
        found_inf = None if scaler is None else scaler.unscale(gradients)
        clip_gradients(gradients, value=self.optim.clip_value, norm=self.optim.clip_norm)
        own = {name: [tensors[index] for index in chosen] for name, tensors in self.own.items()}
        self.update(parameters, gradients, own, numbers, found_inf)
        if scaler is not None and found_inf is not None:
            scaler.update(found_inf)

    @abstractmethod
    def update(
        self,
        parameters: list[NamedParameter],
        gradients: list[Tensor],
        own: Mapping[str, list[Tensor]],
        numbers: StepScalars,
        found_inf: Tensor | None,
    ) -> None:
        """One step of those parameters that have a gradient, in place.

        gradients  of the global batch's mean loss, unscaled and clipped; with `own`, in the order of `parameters`
        found_inf  None, or a float32 scalar on the device that is 1 where the step must be skipped (the gradients are then
                   anything)
        """

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for parameter in self.parameters:
            parameter.tensor.grad = None

    def state(self) -> dict[str, Tensor]:
        """The optimizer's tensors themselves, such as "velocity.<parameter name>"."""
        return {
            f"{name}.{parameter.name}": tensors[index]
            for index, parameter in enumerate(self.parameters)
            for name, tensors in self.own.items()
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Copy a saved state in. Raises CheckpointError for another set of names or shapes."""
        copy_into(self.state(), state, "optimizer state")


def clip_gradients(gradients: Sequence[Tensor], *, value: float, norm: float) -> None:
    """Clip in place, on the device: the host never learns whether anything was clipped.

    gradients  of the global batch's mean loss, of all ranks, unscaled, before decay
    value      each element to [-value, value], as MXNet's clip_gradient; 0 = off
    norm       g * min(1, norm / (||g|| + 1e-6)), ||g|| over all tensors, as torch.nn.utils.clip_grad_norm_; 0 = off
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
