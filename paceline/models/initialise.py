"""First weights of a trunk, drawn from a given generator: the same seed gives the same net, whatever ran before.

Sources: MLPerf's MXNet ResNet (class MLPerfInit, flag --bn-gamma-init0); torchvision's ResNet.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from paceline.models.trunk import Init, Trunk

# Standard deviation of the classifier's weights in the MLPerf rule.
CLASSIFIER_STD = 0.01


def initialise(trunk: Trunk, init: Init, generator: torch.Generator, *, zero_init_last_gamma: bool = False) -> None:
    """Draw a trunk's weights by its own rule; see `Trunk.draw`. The generator lives on the CPU, and so must the trunk."""
    trunk.draw(init, generator, zero_init_last_gamma=zero_init_last_gamma)


@torch.no_grad()
def draw_layers(model: nn.Module, init: Init, generator: torch.Generator) -> None:
    """Draw the weights of every convolution, BatchNorm and linear layer in `model`, in module order.

    mlperf       convolutions N(0, 2 / fan_in) (a fourth, zero input channel counts), linear N(0, 0.01^2), biases 0
    torchvision  convolutions N(0, 2 / fan_out), linear weights and biases U(+-1 / sqrt(fan_in))
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            mode = "fan_in" if init == "mlperf" else "fan_out"
            nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu", generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            if init == "mlperf":
                nn.init.normal_(module.weight, std=CLASSIFIER_STD, generator=generator)
                nn.init.zeros_(module.bias)
            else:
                bound = 1 / math.sqrt(module.in_features)
                nn.init.uniform_(module.weight, -bound, bound, generator=generator)
                nn.init.uniform_(module.bias, -bound, bound, generator=generator)
