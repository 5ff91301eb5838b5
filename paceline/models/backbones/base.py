"""A trunk turns images into feature maps, and every workload takes those it needs; and the pyramid that stands on such maps.

Letters: B images   C_i channels and s_i stride of map i, finest first   H, W input pixels   K classes
A classifier pools the last map, SSD takes the one of stride 8, Mask R-CNN those of stride 4 to 32.
To add a trunk: a file with a subclass of Trunk, and a line in __init__.py (docs/how-to/extend/backbone.md).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline._utils.errors import RecipeError
from paceline.config.maskrcnn import LayerNorm, TopLevel
from paceline.config.recipe import Optim
from paceline.models.layers.batch_norm import BatchNorm
from paceline.models.layers.common import Conv2d, Init, Linear, make_group_norm

Norm = Literal["frozen", "batch", "group"]


@dataclass(frozen=True)
class BackboneSpec:
    """What a network needs of its trunk, beside the recipe's fields."""

    stride: Literal[0, 8, 32] = 0  # of the coarsest map; 0 = the trunk's own coarsest
    finest: int = 0  # of a pyramid, the stride of the finest map that it uses; 0 = only the last map is used
    norm: Norm = "batch"  # frozen: BatchNorms with fixed statistics; group: GroupNorms in their places
    stem: Literal["imagenet", "small"] = "imagenet"
    input_channels: Literal[3, 4] = 3


class Backbone(nn.Module, ABC):
    """Images in, feature maps out. Parameters are drawn by `draw`, or loaded; the names of their modules are a checkpoint's."""

    channels: list[int]  # C_i
    strides: list[int]  # s_i; a map has about H / s_i rows
    fc: Linear  # behind `add_classes` alone
    # Recipe fields that weights may depend on, as this trunk is built
    built: Mapping[str, str] = {"stride_in": "3x3", "padding": "symmetric"}

    def __init__(self) -> None:
        super().__init__()
        self.still: list[nn.Module] = []

    @abstractmethod
    def forward(self, images: Tensor) -> list[Tensor]:
        """(B, 3, H, W) float, normalized -> maps (B, C_i, about H / s_i, W / s_i), finest first."""

    @abstractmethod
    def draw(self, init: Init, generator: torch.Generator, *, zero_init_residual: bool) -> None:
        """Draw first weights, `fc`'s with them, on the CPU: a function of the generator's state alone."""

    @abstractmethod
    def of_file(self, saved: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
        """A file's tensors under this trunk's names, and the prefixes of names that a whole classifier has beyond it.

        `saved` may be the trunk's or a whole classifier's; where it is neither, ({}, ()).
        """

    def freeze(self, names: Iterable[str]) -> None:
        """Freeze submodules: no gradients, and their BatchNorms use their running statistics and do not update them."""
        still = [self.get_submodule(name) for name in names]
        for module in still:
            module.requires_grad_(False)
        self.still += still

    def stage_of(self) -> dict[str, int]:
        """Name -> stage of each parameter but `fc`'s: 0 beside the images, then 1, 2, ... Raises RecipeError without stages."""
        raise RecipeError(
            f"--model.freeze-stages and --optim.layer-decay: {type(self).__name__} has no stages. Remove the flags."
        )

    def freeze_stages(self, count: int) -> None:
        """Freeze the first `count` stages, as `freeze` does. Raises RecipeError if the backbone has fewer."""
        if not count:
            return
        stage_of = self.stage_of()
        if count > (stages := max(stage_of.values()) + 1):
            raise RecipeError(f"--model.freeze-stages {count}: must be from 0 to {stages}, its number of stages.")
        for name, stage in stage_of.items():
            if stage < count:
                self.get_parameter(name).requires_grad_(False)
        for module in self.modules():
            weights = [weight.requires_grad for weight in module.parameters()]
            if module is not self and weights and not any(weights):
                self.still.append(module)

    def train(self, mode: bool = True) -> Backbone:
        """As nn.Module's, except for what is frozen."""
        super().train(mode)
        for module in self.still:
            module.train(False)
        return self

    def add_classes(self, classes: int) -> None:
        """Add the linear layer `fc` on the last map's mean, for `classify`."""
        self.fc = Linear(self.channels[-1], classes)

    def pooled(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) float, normalized -> (B, C), the last map's mean."""
        return F.adaptive_avg_pool2d(self(images)[-1], 1).flatten(1)

    def classify(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) float, normalized -> logits (B, K) float32."""
        return self.fc(self.pooled(images)).float()


def init_weights(backbone: Backbone, init: Init, generator: torch.Generator, *, zero_init_residual: bool = False) -> None:
    """Draw a trunk's weights by its own rule; see `Backbone.draw`. The generator is on the CPU, and so must the trunk be."""
    backbone.draw(init, generator, zero_init_residual=zero_init_residual)


def get_lr_factors(model: nn.Module, optim: Optim) -> dict[str, float]:
    """Name -> factor on the learning rate by where a parameter is; {} where all are 1.

    F^k for the trunk's k-th stage from the top, F = layer_decay (Bao et al. 2022, BEiT, by stages); head_lr_factor outside of it.
    Raises RecipeError for a network without a trunk, and for a trunk without stages.
    """
    if optim.head_lr_factor == 1 and optim.layer_decay == 1:
        return {}
    trunks = [(name, module) for name, module in model.named_modules() if isinstance(module, Backbone)]
    if not trunks:
        raise RecipeError("--optim.head-lr-factor and --optim.layer-decay: this network has no backbone. Set both to 1.")
    factors = {name: optim.head_lr_factor for name, _ in model.named_parameters()}
    for prefix, backbone in trunks:
        if optim.layer_decay == 1:
            own = {name: 1.0 for name, _ in backbone.named_parameters() if not name.startswith("fc.")}
        else:
            stage_of = backbone.stage_of()
            own = {name: optim.layer_decay ** (max(stage_of.values()) + 1 - stage) for name, stage in stage_of.items()}
        factors |= {f"{prefix}.{name}" if prefix else name: factor for name, factor in own.items()}
    return factors


# The feature pyramid of Mask R-CNN, and of an SSD that stands on several of its trunk's maps.
#
# Letters: C channels of the pyramid
# Names are torchvision's. Source: Lin et al. 2017, "Feature Pyramid Networks for Object Detection".


class FPN(nn.Module):
    """Laterals to C channels, added from the coarsest level down, each smoothed by a 3x3 convolution; and level 6."""

    def __init__(self, inputs: list[int], channels: int, *, norm: LayerNorm, top: TopLevel, eps: float) -> None:
        """inputs: channels of the stages, finest first."""
        super().__init__()
        self.inner_blocks = nn.ModuleList(_layer(count, channels, 1, norm, eps) for count in inputs)
        self.layer_blocks = nn.ModuleList(_layer(channels, channels, 3, norm, eps) for _ in inputs)
        self.top = Conv2d(channels, channels, 3, 2, padding=1) if top == "conv" else None

    def forward(self, stages: list[Tensor]) -> list[Tensor]:
        """-> levels, finest first; the last is level 6, for proposals only."""
        levels, coarsest = self.merge(stages)
        return [*levels, F.max_pool2d(levels[-1], 1, 2) if self.top is None else self.top(coarsest)]

    def merge(self, stages: list[Tensor]) -> tuple[list[Tensor], Tensor]:
        """-> a level for each stage, finest first, and the lateral of the coarsest."""
        laterals = [block(stage) for block, stage in zip(self.inner_blocks, stages)]
        coarsest = laterals[-1]
        # autocast would copy to float32, add there, and round to its type again for the convolutions that follow.
        native = torch.autocast(coarsest.device.type, enabled=False) if coarsest.element_size() == 2 else nullcontext()
        for level in range(len(laterals) - 2, -1, -1):
            size = laterals[level].shape[-2:]
            with native:
                larger = F.interpolate(laterals[level + 1], size=size, mode="nearest")
            laterals[level] = laterals[level] + larger
        return [block(lateral) for block, lateral in zip(self.layer_blocks, laterals)], coarsest


def _layer(inputs: int, outputs: int, kernel: int, norm: LayerNorm, eps: float) -> nn.Sequential:
    """A convolution and its norm, in a sequence as torchvision has them."""
    conv = Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=norm == "none")
    if norm == "none":
        return nn.Sequential(conv)
    return nn.Sequential(conv, BatchNorm(outputs, eps=eps) if norm == "batch" else make_group_norm(outputs, eps))
