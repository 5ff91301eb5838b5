"""A network of a few weights with losses over groups of images, and the obvious float64 loop that it must equal.

Letters: B images   T = 5 terms
An image's label is how many objects it has; each object counts for every term, another number for each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from paceline.config.recipe import Recipe
from paceline.config.schedule import Schedule
from paceline.data.batch import Batch
from paceline.models.layers.batch_norm import BatchNorm

TERMS = ("objectness", "rpn_box", "class", "box", "mask")
# Counts of an object for each term: they must differ, or one count for all terms would pass.
EACH = (3.0, 0.5, 7.0, 1.0, 11.0)
IMAGES = 8


@dataclass(frozen=True)
class ToySettings:
    """The model's part of the recipe."""

    loss_normalizer_images: int = 0  # images over which losses are normalized together; 0 = the global batch


class Toy(nn.Module):
    """BatchNorm, a linear layer, squared errors."""

    terms = TERMS

    def __init__(self) -> None:
        super().__init__()
        self.loss_groups = 1
        self.passes = 0  # that only counted
        self.norm = BatchNorm(3)
        self.head = nn.Linear(12, len(TERMS))
        generator = torch.Generator().manual_seed(4)
        for parameter in self.parameters():
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        errors = self.head(self.norm(batch.images / 255).flatten(1)).square()
        counts = self.counts(batch)
        sums, counts = ((part.unflatten(0, (self.loss_groups, -1))).sum(1) for part in (errors * counts, counts))
        return {"sums": sums, "counts": counts}

    def count(self, batch: Batch) -> Tensor:
        self.passes += 1
        self.norm(batch.images / 255)  # a real network runs its trunk to know what will be sampled
        return self.counts(batch).sum(0, keepdim=True)

    def counts(self, batch: Batch) -> Tensor:
        return batch.labels[:, None] * torch.tensor(EACH)


def toy_recipe(loss_normalizer_images: int) -> Recipe[ToySettings, None]:
    """One epoch of eight images a step; BatchNorm over each image alone."""
    return Recipe(
        task="toy",
        model=ToySettings(loss_normalizer_images),
        input=None,
        global_batch_size=IMAGES,
        epochs=1,
        bn_batch_size=1,
        schedule=Schedule(name="constant"),
    )


def toy_batch(objects: list[int], mine: slice = slice(None)) -> Batch:
    """Eight small images with so many objects; or a part of them."""
    pixels = np.random.default_rng(2).integers(0, 255, (IMAGES, 3, 2, 2), dtype=np.uint8)
    return Batch(torch.from_numpy(pixels)[mine], torch.tensor(objects)[mine], torch.arange(IMAGES)[mine])


def slow_losses(objects: list[int], group: int) -> tuple[dict[str, float], dict[str, Tensor]]:
    """-> the step's loss and terms, and the gradients, by one float64 loop over groups, images and terms."""
    toy = Toy().double()
    batch = toy_batch(objects)
    losses = {"loss": torch.zeros((), dtype=torch.float64)}
    for start in range(0, IMAGES, group):
        for term, name in enumerate(TERMS):
            total, count = torch.zeros((), dtype=torch.float64), 0.0
            for image in range(start, start + group):
                pixels = batch.images[image].double() / 255
                mean = pixels.mean((1, 2), keepdim=True)
                spread = (pixels.var((1, 2), correction=0, keepdim=True) + toy.norm.eps).sqrt()
                scaled = (pixels - mean) / spread * toy.norm.weight[:, None, None] + toy.norm.bias[:, None, None]
                error = (toy.head.weight[term] @ scaled.flatten() + toy.head.bias[term]) ** 2
                total = total + error * objects[image] * EACH[term]
                count += objects[image] * EACH[term]
            part = total / max(count, 1.0) / (IMAGES // group)
            losses["loss"] = losses["loss"] + part
            losses[name] = losses.get(name, 0) + part
    losses["loss"].backward()
    gradients = {name: parameter.grad for name, parameter in toy.named_parameters() if parameter.grad is not None}
    return {name: float(value.detach()) for name, value in losses.items()}, gradients
