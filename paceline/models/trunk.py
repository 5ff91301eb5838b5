"""A trunk turns images into feature maps, and every workload takes those it needs.

Letters: B images   C_i channels and s_i stride of map i, finest first   H, W input pixels   K classes
A classifier pools the last map, SSD takes the one of stride 8, Mask R-CNN those of stride 4 to 32.
To add a trunk: a file with a subclass of Trunk, and a line in make_trunk.py (docs/extending/trunk.md).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.models.layers import Init, Linear

Part = Literal["none", "stem", "first_convolution", "first_stage"]
Norm = Literal["frozen", "batch", "group"]


@dataclass(frozen=True)
class Form:
    """What a network needs of its trunk, beside the recipe's fields."""

    stride: Literal[0, 8, 32] = 0  # of the coarsest map; 0 = the trunk's own coarsest
    finest: int = 0  # of a pyramid, the stride of the finest map that it uses; 0 = only the last map is used
    norm: Norm = "batch"  # frozen: BatchNorms with fixed statistics; group: GroupNorms in their places
    stem: Literal["imagenet", "small"] = "imagenet"
    stem_channels: Literal[3, 4] = 3


class Trunk(nn.Module, ABC):
    """Images in, feature maps out. Parameters are drawn by `draw`, or loaded; the names of their modules are a checkpoint's."""

    channels: list[int]  # C_i
    strides: list[int]  # s_i; a map has about H / s_i rows
    fc: Linear  # behind `add_classes` alone
    # Recipe fields that weights may depend on, as this trunk is built
    built: Mapping[str, str] = {"stride_in": "3x3", "padding": "both"}

    def __init__(self) -> None:
        super().__init__()
        self.still: list[nn.Module] = []

    @abstractmethod
    def forward(self, images: Tensor) -> list[Tensor]:
        """(B, 3, H, W) float, normalised -> maps (B, C_i, about H / s_i, W / s_i), finest first."""

    @abstractmethod
    def frozen_modules(self, part: Part) -> list[nn.Module]:
        """The modules up to and including `part`, to be frozen. Raises RecipeError for a part that it does not have."""

    @abstractmethod
    def draw(self, init: Init, generator: torch.Generator, *, zero_init_last_gamma: bool) -> None:
        """Draw first weights, `fc`'s with them, on the CPU: a function of the generator's state alone."""

    @abstractmethod
    def of_file(self, saved: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
        """A file's tensors under this trunk's names, and the prefixes of names that a whole classifier has beyond it.

        `saved` may be the trunk's or a whole classifier's; where it is neither, ({}, ()).
        """

    def freeze(self, part: Part) -> None:
        """Freeze a part: no gradients, and its BatchNorms use their running statistics and do not update them."""
        self.still = self.frozen_modules(part)
        for module in self.still:
            module.requires_grad_(False)

    def train(self, mode: bool = True) -> Trunk:
        """As nn.Module's, except for what is frozen."""
        super().train(mode)
        for module in self.still:
            module.train(False)
        return self

    def add_classes(self, classes: int) -> None:
        """Add the linear layer `fc` on the last map's mean, for `classify`."""
        self.fc = Linear(self.channels[-1], classes)

    def classify(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) float, normalised -> logits (B, K) float32."""
        return self.fc(F.adaptive_avg_pool2d(self(images)[-1], 1).flatten(1)).float()


def initialise(trunk: Trunk, init: Init, generator: torch.Generator, *, zero_init_last_gamma: bool = False) -> None:
    """Draw a trunk's weights by its own rule; see `Trunk.draw`. The generator is on the CPU, and so must the trunk be."""
    trunk.draw(init, generator, zero_init_last_gamma=zero_init_last_gamma)
