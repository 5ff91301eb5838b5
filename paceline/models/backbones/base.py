"""Define backbones, which compute feature maps, and the feature pyramid network (FPN).

A classifier pools the last feature map, SSD uses the one with stride 8, and Mask R-CNN uses those with strides 4 to 32. To add a
backbone, write a subclass of `Backbone` and register it (docs/how-to/extend/backbone.md).

Notation:
    B: number of images
    C_i, s_i: channels and stride of feature map i, finest first
    H, W: height and width of the input in pixels
    K: number of classes
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
    """Describe what a network requires from its backbone, in addition to the fields of the recipe."""

    stride: Literal[0, 8, 32] = 0  # of the coarsest map; 0 = the trunk's own coarsest
    finest: int = 0  # of a pyramid, the stride of the finest map that it uses; 0 = only the last map is used
    norm: Norm = "batch"  # frozen: BatchNorms with fixed statistics; group: GroupNorms in their places
    stem: Literal["imagenet", "small"] = "imagenet"
    input_channels: Literal[3, 4] = 3


class Backbone(nn.Module, ABC):
    """Compute feature maps from images. Subclass it for a custom backbone.

    Parameters are initialized by `draw` or loaded from a file. Checkpoints use the names of the submodules.

    Attributes:
        channels (list[int]): channels C_i of each feature map, finest first.
        strides (list[int]): stride s_i of each feature map. A map has about H / s_i rows.
        fc (Linear): classification layer. It exists only after `add_classes`.
        built (Mapping[str, str]): values of the recipe fields `stride_in` and `padding` that the weights of this backbone depend on.
    """

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
        """Compute the feature maps of a batch.

        Args:
            images (Tensor): normalized images, floating point.

        Shape:
            - images: (B, 3, H, W), or (B, 4, H, W) if `BackboneSpec.input_channels` is 4
            - output i: (B, C_i, about H / s_i, about W / s_i)

        Returns:
            list[Tensor]: feature maps, finest first.
        """

    @abstractmethod
    def draw(self, init: Init, generator: torch.Generator, *, zero_init_residual: bool) -> None:
        """Initialize all parameters, including those of `fc`, on the CPU.

        Use only `generator` for random numbers, so that the weights depend only on its state.

        Args:
            init (str): initialization method: ``"mlperf"`` or ``"torchvision"``.
            generator (torch.Generator): source of all random numbers.
            zero_init_residual (bool): initialize the last BatchNorm weight of each residual unit to 0.
        """

    @abstractmethod
    def of_file(self, saved: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
        """Convert the tensors of a weight file to the parameter names of this backbone.

        Args:
            saved (Mapping[str, Tensor]): tensors of a backbone or of a complete classifier.

        Returns:
            tuple[dict[str, Tensor], tuple[str, ...]]: the tensors by parameter name, and prefixes of the names that only a complete
            classifier has. ({}, ()) if the file does not match this backbone.
        """

    def freeze(self, names: Iterable[str]) -> None:
        """Freeze submodules.

        Their parameters get no gradients. Their BatchNorm layers use the running statistics and do not update them.

        Args:
            names (Iterable[str]): names of the submodules.
        """
        still = [self.get_submodule(name) for name in names]
        for module in still:
            module.requires_grad_(False)
        self.still += still

    def stage_of(self) -> dict[str, int]:
        """Return the stage of each parameter, except for the parameters of `fc`.

        Returns:
            dict[str, int]: stage by parameter name. Stage 0 is the closest to the input.

        Raises:
            RecipeError: if the backbone has no stages.
        """
        raise RecipeError(
            f"--model.freeze-stages and --optim.layer-decay: {type(self).__name__} has no stages. Remove the flags."
        )

    def freeze_stages(self, count: int) -> None:
        """Freeze the first stages, as `freeze` does.

        Args:
            count (int): number of stages to freeze, starting at the input. 0 freezes nothing.

        Raises:
            RecipeError: if the backbone has fewer stages.
        """
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
        """Set the training mode, as in `nn.Module.train`. Frozen modules stay in evaluation mode.

        Args:
            mode (bool): True for training, False for evaluation. Default: True

        Returns:
            Backbone: the module itself.
        """
        super().train(mode)
        for module in self.still:
            module.train(False)
        return self

    def add_classes(self, classes: int) -> None:
        """Add the linear layer `fc` on the mean of the last feature map, which `classify` uses.

        Args:
            classes (int): number of classes K.
        """
        self.fc = Linear(self.channels[-1], classes)

    def pooled(self, images: Tensor) -> Tensor:
        """Compute the mean of the last feature map over its positions.

        Args:
            images (Tensor): normalized images, floating point, shape (B, 3, H, W).

        Returns:
            Tensor: features, shape (B, C), where C is the last element of `channels`.
        """
        return F.adaptive_avg_pool2d(self(images)[-1], 1).flatten(1)

    def classify(self, images: Tensor) -> Tensor:
        """Compute the logits of a batch. Requires `add_classes`.

        Args:
            images (Tensor): normalized images, floating point, shape (B, 3, H, W).

        Returns:
            Tensor: logits, shape (B, K), float32.
        """
        return self.fc(self.pooled(images)).float()


def init_weights(backbone: Backbone, init: Init, generator: torch.Generator, *, zero_init_residual: bool = False) -> None:
    """Initialize a backbone with its own `draw`. The generator and the backbone must be on the CPU."""
    backbone.draw(init, generator, zero_init_residual=zero_init_residual)


def get_lr_factors(model: nn.Module, optim: Optim) -> dict[str, float]:
    """Return the learning-rate factor of each parameter by name, or {} if all factors are 1.

    The k-th stage of the backbone from the top has layer_decay ** k (Bao et al. 2022, BEiT, applied to stages). Parameters outside the
    backbone have head_lr_factor.
    Raises RecipeError if the network has no backbone, or if the backbone has no stages.
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
    """Compute a feature pyramid with level 6.

    Lateral convolutions with C channels are added from coarse to fine. A 3x3 convolution then smooths each level.
    """

    def __init__(self, inputs: list[int], channels: int, *, norm: LayerNorm, top: TopLevel, eps: float) -> None:
        """inputs: channels of the stages, finest first."""
        super().__init__()
        self.inner_blocks = nn.ModuleList(_layer(count, channels, 1, norm, eps) for count in inputs)
        self.layer_blocks = nn.ModuleList(_layer(channels, channels, 3, norm, eps) for _ in inputs)
        self.top = Conv2d(channels, channels, 3, 2, padding=1) if top == "conv" else None

    def forward(self, stages: list[Tensor]) -> list[Tensor]:
        """Return the levels of the pyramid, finest first. The last one is level 6, which only proposals use."""
        levels, coarsest = self.merge(stages)
        return [*levels, F.max_pool2d(levels[-1], 1, 2) if self.top is None else self.top(coarsest)]

    def merge(self, stages: list[Tensor]) -> tuple[list[Tensor], Tensor]:
        """Return one level per stage, finest first, and the lateral of the coarsest stage."""
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
    """Return a convolution and its normalization in a sequence, as in torchvision."""
    conv = Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=norm == "none")
    if norm == "none":
        return nn.Sequential(conv)
    return nn.Sequential(conv, BatchNorm(outputs, eps=eps) if norm == "batch" else make_group_norm(outputs, eps))
