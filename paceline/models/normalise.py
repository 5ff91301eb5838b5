"""Pixels to network input, on the device: uint8 images travel, floats are made where they are used.

Letters: B images   H, W pixels
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Mean and standard deviation of ImageNet's RGB values on a scale of 0 to 1, as torchvision and MLPerf use them.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Normalise(nn.Module):
    """(pixel / 255 - mean) / std for each channel, with an optional fourth channel of zeros."""

    mean: Tensor
    scale: Tensor

    def __init__(
        self,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
        *,
        channels: Literal[3, 4] = 3,
    ) -> None:
        """mean and std of R, G and B on a scale of 0 to 1."""
        super().__init__()
        self.channels = channels
        # In pixel units, so one subtraction and one product do it. Recipes own these numbers, checkpoints do not.
        # On the CPU even where a network is only laid out: arithmetic on torch's meta device imports torch.compile.
        with torch.device("cpu"):
            self.register_buffer("mean", 255 * torch.tensor(mean).view(1, 3, 1, 1), persistent=False)
            self.register_buffer("scale", 1 / (255 * torch.tensor(std).view(1, 3, 1, 1)), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """uint8 (B, 3, H, W), RGB -> float32 (B, 3 or 4, H, W) in the same memory format."""
        normalised = (images.float() - self.mean) * self.scale
        return normalised if self.channels == 3 else F.pad(normalised, (0, 0, 0, 0, 0, 1))
