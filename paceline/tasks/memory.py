"""Memory of a training step, estimated without an accelerator: how many images fit in one forward.

The model runs once on torch's meta device, which computes shapes only; what autograd would keep for the backward is counted
through its saved-tensor hooks, each storage once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paceline.batch.batch import Batch
from paceline.config.errors import RecipeError
from paceline.config.recipe import Recipe
from paceline.config.system import System

GIB = 2**30
# What the count does not see: convolution workspaces, the gradients of activations in flight, the allocator's holes.
WORKING_SHARE = 0.35
# Images that no forward needs more of: larger ones were not faster on any machine measured here or published.
MOST_IMAGES = 512


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of one rank. Total for f images: fixed + f * per_image."""

    fixed: int  # weights, gradients, optimiser state, weight average
    per_image: int  # kept activations and working space of one image
    parameters: int  # trainable numbers

    def total(self, images: int) -> int:
        """Bytes of a step whose forwards hold `images` images."""
        return self.fixed + images * self.per_image


def estimate(
    build: Callable[[], nn.Module],
    shape: tuple[int, int, int],
    recipe: Recipe,
    system: System,
    make_batch: Callable[[Tensor], Batch],
) -> MemoryEstimate:
    """What one rank needs.

    build       makes the model on the current default device
    shape       (3, H, W) of one image
    make_batch  a batch of the task's kind for (2, 3, H, W) images
    """
    with torch.device("meta"):
        model = build()
        batch = make_batch(torch.empty((2, *shape), dtype=torch.uint8))
    weights = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage.nbytes()
            alive.append(storage)  # a freed storage's address could be handed out again
        return tensor

    alive: list[object] = []
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        found = model(batch)
    del found  # held until here, so that its graph was
    activations = sum(kept.values()) / 2
    if system.precision != "fp32":
        activations /= 2
    parameters = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    # float32 weight, gradient and velocity; the average; a low-precision copy inside autocast.
    per_parameter = 12 + (4 if recipe.ema else 0) + (2 if system.precision != "fp32" else 0)
    return MemoryEstimate(parameters * per_parameter, int(activations * (1 + WORKING_SHARE)), parameters)


def images_that_fit(memory: MemoryEstimate, system: System) -> int:
    """Most images of one forward: --system.images-per-forward where given, else what the memory estimate allows.

    Raises RecipeError when not even one image fits.
    """
    if system.images_per_forward:
        return system.images_per_forward
    most = int((system.memory_gib * GIB - memory.fixed) / memory.per_image)
    if most < 1:
        raise RecipeError(
            f"one image of this recipe needs about {memory.total(1) / GIB:.2g} GiB, --system.memory-gib is "
            f"{system.memory_gib:g}. Use a machine with more memory, a smaller --input.size, or another --model."
        )
    return min(most, MOST_IMAGES)
