"""Which tensors decay and which get LARS's own rate, decided by the type of the module that owns them.

Source: MLPerf's MXNet ResNet decays `*_weight` and the FC bias, never BatchNorm's gamma and beta, and gives LARS to
everything but gamma, beta and bias.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

DecayOn = Literal["all", "no_norm", "no_norm_no_bias"]

NORMS = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm)


@dataclass(frozen=True)
class NamedParameter:
    """A trainable tensor with its name in the model and how the optimiser treats it."""

    name: str
    tensor: nn.Parameter
    decays: bool
    adapts: bool


def named_parameters(model: nn.Module, decay_on: DecayOn) -> list[NamedParameter]:
    """Every trainable parameter of `model`, each once, in module order; frozen ones are left out.

    decay_on  all: every tensor decays; no_norm: weights and biases of convolutions and linear layers;
              no_norm_no_bias: their weights alone
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
            parameters.append(NamedParameter(f"{prefix}.{name}" if prefix else name, tensor, decays, adapts=weight))
    return parameters
