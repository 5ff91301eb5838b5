"""What a network stands on: a trunk turns images into feature maps, and every workload takes those it needs.

Letters: B images   C_i channels and s_i stride of map i, finest first   H, W input pixels   K classes
A classifier pools the last map, SSD takes the one of stride 8, Mask R-CNN those of stride 4 to 32.
To add a trunk: a file with a subclass of Trunk, and a line in config/trunk.py's TRUNKS (docs/extending/trunk.md).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.config.bounds import check_bounds
from paceline.config.recipe import refuse_outside
from paceline.config.trunk import TRUNKS, TrunkModel, trunk_rules
from paceline.models.layers import Linear

Part = Literal["none", "stem", "first_convolution", "first_stage"]
Norm = Literal["frozen", "batch", "group"]
Init = Literal["mlperf", "torchvision"]


@dataclass(frozen=True)
class Form:
    """What a network asks of its trunk, beside the recipe's fields."""

    stride: Literal[0, 8, 32] = 0  # of the coarsest map; 0 = the trunk's own coarsest
    finest: int = 0  # of a pyramid, the stride of the finest map that it stands on; 0 = only the last map is used
    norm: Norm = "batch"  # frozen: BatchNorms with fixed statistics; group: GroupNorms in their places
    stem: Literal["imagenet", "small"] = "imagenet"
    stem_channels: Literal[3, 4] = 3


class Trunk(nn.Module, ABC):
    """Images in, feature maps out. Parameters are drawn by `draw`, or loaded; the names of their modules are a checkpoint's."""

    channels: list[int]  # C_i
    strides: list[int]  # s_i; a map has about H / s_i rows
    fc: Linear  # behind `add_classes` alone
    # What else weights may be made for: the recipe's fields of these names, as this trunk is built
    built: Mapping[str, str] = {"stride_in": "3x3", "padding": "both"}

    def __init__(self) -> None:
        super().__init__()
        self.still: list[nn.Module] = []

    @abstractmethod
    def forward(self, images: Tensor) -> list[Tensor]:
        """(B, 3, H, W) float, normalised -> maps (B, C_i, about H / s_i, W / s_i), finest first."""

    @abstractmethod
    def frozen_modules(self, part: Part) -> list[nn.Module]:
        """What does not train where the part up to there is frozen. Raises RecipeError for a part that it does not have."""

    @abstractmethod
    def draw(self, init: Init, generator: torch.Generator, *, zero_init_last_gamma: bool) -> None:
        """First weights, `fc`'s with them, on the CPU: a function of the generator's state, whatever ran before."""

    @abstractmethod
    def of_file(self, saved: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
        """A file's tensors under this trunk's names, and how the names begin that a whole classifier has beyond it.

        `saved` may be the trunk's or a whole classifier's; where it is neither, ({}, ()).
        """

    def freeze(self, part: Part) -> None:
        """Keep a part as it is: no gradients, and its BatchNorms use their running statistics and leave them."""
        self.still = self.frozen_modules(part)
        for module in self.still:
            module.requires_grad_(False)

    def train(self, mode: bool = True) -> Trunk:
        """As nn.Module's, but for what is frozen."""
        super().train(mode)
        for module in self.still:
            module.train(False)
        return self

    def add_classes(self, classes: int) -> None:
        """Make it a classifier: a linear layer `fc` on the last map's mean, for `classify`."""
        self.fc = Linear(self.channels[-1], classes)

    def classify(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) float, normalised -> logits (B, K) float32."""
        return self.fc(F.adaptive_avg_pool2d(self(images)[-1], 1).flatten(1)).float()


def make_trunk(model: TrunkModel, form: Form) -> Trunk:
    """The trunk that a recipe names, its weights not drawn yet.

    Raises RecipeError for a name of a family that there is none of, and for a form that this trunk cannot have.
    """
    check_bounds(model, "--model.")
    refuse_outside(*trunk_rules(model))
    family, _, name = model.trunk.partition("/")
    return TRUNKS[family](name, model, form)
