"""`--synthetic`: batches made once and repeated, so that a run measures a step without any input.

Nothing is read, decoded or augmented, and no data set is needed. It works for every workload, one of your own too, because it needs
only `DataModule.dummy_batch`. Photos are noise: a network's speed on some machines depends on how many zeros it multiplies. Nothing is
scored, so no quality target can be met: the headline metric is not a number.

Letters: B images of a forward   H, W pixels of the network's input
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from paceline._utils.errors import PacelineError
from paceline.config.plan import BatchPlan
from paceline.config.recipe import DATA_CLASSES, DATA_IMAGES, Recipe
from paceline.config.system import System
from paceline.data.batch import Batch, RepeatBatch
from paceline.data.transforms.decode import SampleSpec
from paceline.models.batch_shapes import ResizedShape, Shape, SquareShapes
from paceline.models.datamodule import DataModule, InputRank
from paceline.models.task import EvalResult, Evaluator, Task
from paceline.models.workload import WorkloadSpec

if TYPE_CHECKING:
    from paceline.models.weights.classes import Labels

# Training images of an epoch, where the recipe's own data set is not a known one.
IMAGES = 100_000
# In the place of a data set's content hash.
HASH = "synthetic"
# Object slots of an image: COCO has 7 objects an image, and the batch's fullest one decides how many slots there are.
OBJECTS = 32


def _no_photo(*_: Any) -> SampleSpec:
    raise PacelineError("synthetic batches have no images to show.")


class DummyDataModule(DataModule):
    """Batches of a workload without data; see `DataModule` for what each method promises.

    An epoch has as many images as the recipe's own data set, an evaluation none. Every input is as large as the recipe's largest.
    """

    max_objects = OBJECTS
    is_target_data = False

    def __init__(self, workload: WorkloadSpec, recipe: Recipe, *, limit_train: int = 0) -> None:  # no manifest: no data
        self.workload, self.recipe = workload, recipe
        images = DATA_IMAGES.get(recipe.target_data, (IMAGES, 0))[0]
        images = min(images, limit_train) if limit_train else images
        self.train_numbers, self.val_numbers = np.arange(images), np.arange(0)
        classes = DATA_CLASSES.get(recipe.target_data, workload.classes)
        self.classes = [f"class {number}" for number in range(classes)]
        self.category_ids = list(range(1, classes + 1)) if workload.finds_objects else ()
        self.facts = {"root": "", "manifest": "", "hash": HASH, "train_images": images, "val_images": 0}
        self.shapes = _LargestShape(workload.network.largest(recipe), images=images, seed=recipe.seed)

    @property
    def dummy_batch(self) -> Callable[[Recipe, int, Shape, int], Batch]:  # type: ignore[override]
        """The workload's own."""
        return self.workload.data().dummy_batch

    draw_train = draw_eval = staticmethod(_no_photo)  # type: ignore[assignment]  # with any arguments

    def labels(self) -> Labels:
        """None: the class names are made up, so a weight file's rows are taken in order where there are as many."""
        from paceline.models.weights.classes import Labels

        return Labels(())

    def train_loader(
        self, plan: BatchPlan, system: System, rank_info: InputRank, *, first: int = 0, one_batch: bool = False
    ) -> RepeatBatch:
        """The same forwards in every step, made before the first and already on the device."""
        noise = torch.Generator().manual_seed(self.recipe.seed + rank_info.rank)
        forwards = [self._batch(plan.micro_batch_size, rank_info.device, noise) for _ in range(plan.micro_batches)]
        return RepeatBatch(forwards, first_step=first, last_step=plan.stop_after)

    def val_loader(self, batch: int, system: System, rank_info: InputRank) -> RepeatBatch:
        """Ends at once."""
        return RepeatBatch([], first_step=0, last_step=0)

    def _batch(self, images: int, device: torch.device, noise: torch.Generator) -> Batch:
        made = self.dummy_batch(self.recipe, images, self.shapes.of_sample(0).shape, OBJECTS)
        pixels = torch.empty_like(made.images).random_(0, 256, generator=noise)
        labels = made.labels
        if not self.workload.finds_objects:
            labels = torch.randint(len(self.classes), labels.shape, generator=noise)
        return replace(made, images=pixels, labels=labels, indices=torch.arange(images)).to(device)

    def images_of_step(self, step: int) -> list[str]:
        """One placeholder for all images."""
        return ["synthetic"] * self.recipe.global_batch_size


class DummyEvaluator(Evaluator):
    """Of no images; see `Evaluator` for what each method promises."""

    def new_score(self) -> _NoScore:
        """A score without images."""
        return _NoScore()

    def summarize(self, packed: Sequence[bytes]) -> EvalResult:
        """No images, and a headline metric that is not a number: it meets no target, and no checkpoint is the best."""
        return EvalResult({self.data.workload.reporting.measured(self.data.recipe)[0]: math.nan}, 0, {})


def make_synthetic_task(workload: WorkloadSpec, recipe: Recipe, *, limit_train: int = 0) -> Task:
    """The workload's task on made-up batches. limit_train: images of an epoch; 0 = as many as the recipe's own data set has."""
    data = DummyDataModule(workload, recipe, limit_train=limit_train)
    return Task(workload, data, DummyEvaluator(data))


class _LargestShape(SquareShapes):
    """The recipe's largest training input, of any aspect ratio."""

    def __init__(self, shape: tuple[int, int], *, images: int, seed: int) -> None:
        super().__init__(min(shape), min(shape), images=images, seed=seed)
        self.fit = self.eval_fit = ResizedShape(min(shape), shape)


class _NoScore:
    """A rank's share of an evaluation of no images."""

    def add(self, batch: Batch, outputs: Any) -> None:
        raise AssertionError("an evaluation of synthetic data has no batches")

    def pack(self) -> bytes:
        return b""
