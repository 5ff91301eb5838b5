"""First weights of a ResNet, drawn from a given generator: the same seed gives the same net, whatever ran before.

Sources: MLPerf's MXNet ResNet (class MLPerfInit, flag --bn-gamma-init0); torchvision's ResNet.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import nn

from paceline.models.resnet import BasicBlock, Bottleneck

Init = Literal["mlperf", "torchvision"]

# Standard deviation of the classifier's weights in the MLPerf rule.
CLASSIFIER_STD = 0.01


@torch.no_grad()
def initialise(model: nn.Module, init: Init, generator: torch.Generator, *, zero_init_last_gamma: bool = False) -> None:
    """Draw the weights of every convolution, BatchNorm and linear layer in `model`, in module order.

    mlperf       convolutions N(0, 2 / fan_in) (a fourth, zero input channel counts), linear N(0, 0.01^2), biases 0
    torchvision  convolutions N(0, 2 / fan_out), linear weights and biases U(+-1 / sqrt(fan_in))
    zero_init_last_gamma: the last BatchNorm of each residual unit starts at 0, so a unit starts as its shortcut
    (Goyal et al. 2017). The generator lives on the CPU, and so must the model.
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
    if zero_init_last_gamma:
        for module in model.modules():
            if isinstance(module, Bottleneck):
                nn.init.zeros_(module.bn3.weight)
            elif isinstance(module, BasicBlock):
                nn.init.zeros_(module.bn2.weight)
