"""What tasks on photos share: loaders over the sample stream, and which images a step holds.

Letters: S side of the network's input, pixels; H, W where it is no square   n images
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from paceline.config.plan import Plan
from paceline.config.recipe import DATA_IMAGES, Recipe
from paceline.config.system import System
from paceline.data.loader import Forward, Loader, MakeBatch, ReadDecode, Repeated
from paceline.data.manifest import Manifest
from paceline.data.stream import batch_indices, shard
from paceline.tasks.task import Place

# (rank, step) -> epochs (n,) int64 and positions (n,) among the training images: what the rank takes, by forward.
Order = Callable[[int, int], tuple[np.ndarray, np.ndarray]]
# (step, epochs, numbers in the index) of one forward -> the same with the shape of its images and what reads them.
ShapeForward = Callable[[int, np.ndarray, np.ndarray], Forward]
# (numbers in the index, most images of a batch) -> the batches of an evaluation, in order; each number once.
Cut = Callable[[np.ndarray, int], Sequence[Forward]]


def train_loader(
    numbers: np.ndarray,
    read: ReadDecode,
    make_batch: MakeBatch,
    *,
    side: int | tuple[int, int],
    seed: int,
    plan: Plan,
    system: System,
    place: Place,
    name: Callable[[int], str],
    first: int,
    one_batch: bool,
    order: Order | None = None,
    forward: ShapeForward | None = None,
) -> Loader | Repeated:
    """Augmented batches from step `first` to the run's last; with one_batch, step 0's again and again, read once.

    numbers  of the training images in the index
    read     (epoch, index, out) -> label
    side     S, or (H, W) of the largest images
    name     number in the index -> its file
    order    of the samples; None: the plain stream's
    forward  shapes a forward and says how it is read; None: images of `side`, read by `read`
    """

    def schedule(step: int) -> Sequence[tuple[np.ndarray, np.ndarray] | Forward]:
        if order is not None:
            epochs, indices = order(place.rank, step)
        else:
            epochs, indices = samples_of_step(len(numbers), seed, plan, place.rank, step)
        parts = list(zip(np.split(epochs, plan.forwards), np.split(numbers[indices], plan.forwards)))
        return parts if forward is None else [forward(step, *part) for part in parts]

    loader = Loader(
        read_decode=read,
        schedule=schedule,
        first_step=0 if one_batch else first,
        last_step=1 if one_batch else plan.stop_after,
        threads=place.threads,
        prefetch=system.prefetch,
        image_shape=_image_shape(side),
        device=place.device,
        make_batch=make_batch,
        name=name,
    )
    return Repeated(loader, first_step=first, last_step=plan.stop_after) if one_batch else loader


def val_loader(
    numbers: np.ndarray,
    read: ReadDecode,
    make_batch: MakeBatch,
    *,
    side: int | tuple[int, int],
    batch: int,
    system: System,
    place: Place,
    name: Callable[[int], str],
    cut: Cut | None = None,
) -> Loader:
    """This rank's share of the validation photos, once.

    side  S, or (H, W) of the largest images
    name  number in the index -> its file
    cut   the share into batches with their shapes; None: in order, all of `side`
    """
    mine = numbers[list(shard(len(numbers), place.rank, place.world))]
    batches: Sequence[tuple[np.ndarray, np.ndarray] | Forward]
    if cut is not None:
        batches = cut(mine, batch)
    else:
        parts = [mine[at : at + batch] for at in range(0, len(mine), batch)]
        batches = [(np.zeros(len(part), np.int64), part) for part in parts]

    return Loader(
        read_decode=read,
        schedule=lambda step: [batches[step]],
        first_step=0,
        last_step=len(batches),
        threads=place.threads,
        prefetch=system.prefetch,
        image_shape=_image_shape(side),
        device=place.device,
        make_batch=make_batch,
        name=name,
    )


def _image_shape(side: int | tuple[int, int]) -> tuple[int, int, int]:
    height, width = (side, side) if isinstance(side, int) else side
    return height, width, 3


def plain_images(plan: Plan, side: int | tuple[int, int], *, level: int = 0) -> Tensor:
    """One forward's images, (images_per_forward, 3, H, W) uint8 in the memory format of a loader's, all of one `level`."""
    height, width, _ = _image_shape(side)
    pixels = torch.full((plan.images_per_forward, height, width, 3), level, dtype=torch.uint8)
    return pixels.permute(0, 3, 1, 2)


def samples_of_step(images: int, seed: int, plan: Plan, rank: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """(epochs, positions among the training images) of one rank's share of a step."""
    return batch_indices(
        images,
        seed=seed,
        step=step,
        rank=rank,
        world=plan.world,
        global_batch=plan.global_batch,
        forwards=plan.forwards,
        join=plan.bn_join,
    )


def images_of_step(
    numbers: np.ndarray,
    seed: int,
    plan: Plan,
    step: int,
    name: Callable[[int], str],
    order: Order | None = None,
) -> list[str]:
    """Files of the whole global batch of a step; `order` as the loader's."""
    take = order or (lambda rank, step: samples_of_step(len(numbers), seed, plan, rank, step))
    parts = [take(rank, step)[1] for rank in range(plan.world)]
    return [name(int(number)) for number in numbers[np.concatenate(parts)]]


def most_objects(wanted: np.ndarray, starts: np.ndarray) -> int:
    """The most objects of one image.

    wanted  (N,) bool, of every object; starts: (images + 1,), where each image's objects begin
    """
    before = np.concatenate(([0], np.cumsum(wanted)))
    return int(np.max(before[starts[1:]] - before[starts[:-1]], initial=0))


def fixed_objects(most: int, device: torch.device) -> int:
    """Objects that every batch of a run has slots for: `most` on an accelerator, where each new shape would be compiled,
    captured or searched for anew; 0, as many as each batch needs, on a CPU, where empty slots only cost time.
    """
    return 0 if device.type == "cpu" else most


def spread(images: int, limit: int) -> np.ndarray:
    """Numbers of `limit` of `images` images, evenly spread: the first N of a class-folder set would be a few classes only.

    limit   0 = all
    """
    kept = min(limit or images, images)
    return np.arange(kept) * images // max(1, kept)


def is_target_data(recipe: Recipe, manifest: Manifest, images: tuple[int, int]) -> bool:
    """Whether the recipe's quality target was set for this data.

    images  of training and validation that this recipe would use of it
    """
    if images != DATA_IMAGES.get(recipe.target_data):
        return False
    return recipe.target_data in ("imagenet", "coco") or manifest.root_path.name.startswith(f"{recipe.target_data}-")
