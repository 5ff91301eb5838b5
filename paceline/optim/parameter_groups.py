"""Which tensors decay, which get LARS's own rate and which a rate of their own, decided by the module that owns them.

Source: MLPerf's MXNet ResNet decays `*_weight` and the FC bias, never BatchNorm's gamma and beta, and gives LARS to
everything but gamma, beta and bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from paceline.config.recipe import DecayOn

NORMS = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm)


@dataclass(frozen=True)
class NamedParameter:
    """A trainable tensor with its name in the model and how the optimiser treats it."""

    name: str
    tensor: nn.Parameter
    decays: bool
    adapts: bool
    rate: float = 1.0  # factor on the learning rate


def named_parameters(model: nn.Module, decay_on: DecayOn, *, bias_lr: float = 1.0) -> list[NamedParameter]:
    """Every trainable parameter of `model`, each once, in module order; frozen ones are left out.

    decay_on  all: every tensor decays; no_norm: weights and biases of convolutions and linear layers;
              no_norm_no_bias: their weights alone
    bias_lr   factor on the learning rate of every bias, a normalisation layer's too, as Detectron's BIAS_LR_FACTOR
    A tensor adapts (LARS) when it is neither a bias nor a normalisation layer's.
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
            decays = decay_on == "all" or (not norm and (decay_on == "no_norm" or weight))
            full = f"{prefix}.{name}" if prefix else name
            rate = bias_lr if name == "bias" else 1.0
            parameters.append(NamedParameter(full, tensor, decays, adapts=weight, rate=rate))
    return parameters


def treated_alike(parameters: Sequence[NamedParameter]) -> dict[tuple[float, bool], list[int]]:
    """(Factor on the learning rate, whether it decays) -> places in `parameters` of those that have both, in order."""
    places: dict[tuple[float, bool], list[int]] = {}
    for place, parameter in enumerate(parameters):
        places.setdefault((parameter.rate, parameter.decays), []).append(place)
    return places
