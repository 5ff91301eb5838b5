"""What tasks on photos share: loaders over the sample stream, and which images a step holds.

Letters: S side of the network's input, pixels
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from paceline.config.plan import Plan
from paceline.config.recipe import DATA_IMAGES, Recipe
from paceline.config.system import System
from paceline.data.loader import Loader, MakeBatch, ReadDecode, Repeated
from paceline.data.manifest import Manifest
from paceline.data.stream import batch_indices, shard
from paceline.tasks.task import Place


def train_loader(
    numbers: np.ndarray,
    read: ReadDecode,
    make_batch: MakeBatch,
    *,
    side: int,
    seed: int,
    plan: Plan,
    system: System,
    place: Place,
    first: int,
    one_batch: bool,
) -> Loader | Repeated:
    """Augmented batches from step `first` to the run's last; with one_batch, step 0's again and again, read once.

    numbers  of the training images in the index
    read     (epoch, index, out) -> label
    """

    def schedule(step: int) -> list[tuple[np.ndarray, np.ndarray]]:
        epochs, indices = samples_of_step(len(numbers), seed, plan, place.rank, step)
        return list(zip(np.split(epochs, plan.forwards), np.split(numbers[indices], plan.forwards)))

    loader = Loader(
        read_decode=read,
        schedule=schedule,
        first_step=0 if one_batch else first,
        last_step=1 if one_batch else plan.stop_after,
        threads=place.threads,
        prefetch=system.prefetch,
        image_shape=(side, side, 3),
        device=place.device,
        make_batch=make_batch,
    )
    return Repeated(loader, first_step=first, last_step=plan.stop_after) if one_batch else loader


def val_loader(
    numbers: np.ndarray,
    read: ReadDecode,
    make_batch: MakeBatch,
    *,
    side: int,
    batch: int,
    system: System,
    place: Place,
) -> Loader:
    """This rank's share of the validation photos, once."""
    mine = numbers[list(shard(len(numbers), place.rank, place.world))]

    def schedule(step: int) -> list[tuple[np.ndarray, np.ndarray]]:
        part = mine[step * batch : (step + 1) * batch]
        return [(np.zeros(len(part), np.int64), part)]

    return Loader(
        read_decode=read,
        schedule=schedule,
        first_step=0,
        last_step=math.ceil(len(mine) / batch),
        threads=place.threads,
        prefetch=system.prefetch,
        image_shape=(side, side, 3),
        device=place.device,
        make_batch=make_batch,
    )


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


def images_of_step(numbers: np.ndarray, seed: int, plan: Plan, step: int, name: Callable[[int], str]) -> list[str]:
    """Files of the whole global batch of a step."""
    parts = [samples_of_step(len(numbers), seed, plan, rank, step)[1] for rank in range(plan.world)]
    return [name(int(number)) for number in numbers[np.concatenate(parts)]]


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
