"""`paceline bench step`, of a ResNet. Letters: B images of a step   S side of the input, pixels"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from paceline.config.recipe import Optim, Recipe
from paceline.config.resnet import ImageInput, ResNetModel
from paceline.data.batch import Batch
from paceline.models.backbones.base import init_weights
from paceline.models.resnet.loss import ClassifierWithLoss
from paceline.models.resnet.workload import RESNET
from paceline.tools.bench.step import StepBench, to_device

CLASSES = 1000


class ResNetInputs(NamedTuple):
    """The batch alone."""

    batch: Batch


@dataclass(frozen=True, kw_only=True)
class ResNetBench(StepBench):
    """What to measure."""

    task = "classification"
    depth: int  # torchvision and timm have 18, 34, 50, 101 and 152
    size: int  # S

    def about(self) -> dict[str, Any]:
        return {"depth": self.depth, "size": self.size, "channels_last": self.system.channels_last}

    def recipe(self) -> Recipe[ResNetModel, ImageInput]:
        """A careful user's settings."""
        return Recipe(
            task=self.task,
            model=ResNetModel(depth=self.depth, label_smoothing=0.1),  # type: ignore[arg-type]
            input=ImageInput(image_size=self.size),
            global_batch_size=self.batch,
            epochs=1,
            bn_batch_size=self.batch,
            optim=Optim(lr=0.1, momentum=0.9, weight_decay=1e-4, no_decay="none"),
        )

    def model(self, device: torch.device) -> ClassifierWithLoss:
        model = RESNET.network.build(self.recipe(), CLASSES)
        init_weights(model.network, "torchvision", torch.Generator().manual_seed(0))
        return to_device(model, self.system, device)

    def scenes(self, device: torch.device) -> Iterator[tuple[str, ResNetInputs]]:
        """Noise (B, 3, S, S) uint8 and classes (B,), the same on every call."""
        draw = torch.Generator().manual_seed(0)
        images = torch.randint(0, 256, (self.batch, 3, self.size, self.size), dtype=torch.uint8, generator=draw)
        labels = torch.randint(0, CLASSES, (self.batch,), generator=draw)
        yield "", ResNetInputs(Batch(images.to(device), labels.to(device), torch.arange(self.batch, device=device)))
