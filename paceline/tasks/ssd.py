"""SSD: photos with boxes in, detections and COCO's twelve numbers out. Binds the recipe to one data set.

Letters: N photos of the validation split   B images of a forward   D places for detections
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from torch import Tensor

from paceline.batch import Batch
from paceline.config.detection import BoxRecipe
from paceline.input import box_sample, mosaic
from paceline.input.draw import Draw
from paceline.input.randomness import SampleRandom
from paceline.store.header import Header
from paceline.store.manifest import Manifest
from paceline.tasks.metrics.best_f1 import best_f1
from paceline.tasks.metrics.coco import score_boxes
from paceline.tasks.metrics.coco_pack import Share, join, pack, unpack
from paceline.tasks.metrics.interval import box_draws
from paceline.tasks.objects import ObjectTask
from paceline.tasks.predictions import (
    describe,
    to_detections,
)
from paceline.tasks.shapes import Fit, OneShape
from paceline.tasks.task import Evaluation
from paceline.tasks.workload import Workload


class BoxScore:
    """One rank's share of an evaluation."""

    def __init__(self, heights: np.ndarray, widths: np.ndarray, plus_one: bool) -> None:
        """heights, widths: (N,) of every validation photo, pixels."""
        self.heights, self.widths, self.plus_one = heights, widths, plus_one
        self.scored: list[np.ndarray] = []
        self.rows: list[np.ndarray] = []

    def add(self, batch: Batch, outputs: Tensor) -> None:
        """outputs: (B, D, 6), see `Detector.predict`."""
        numbers = batch.indices.cpu().numpy()
        found = outputs.cpu().numpy()
        image, place = np.nonzero(found[..., 5] > 0)
        self.scored.append(numbers)
        self.rows.append(np.column_stack((numbers[image], found[image, place].astype(np.float64))))

    def pack(self) -> bytes:
        """For rank 0."""
        scored = np.concatenate(self.scored) if self.scored else np.zeros(0, np.int64)
        rows = np.concatenate(self.rows) if self.rows else np.zeros((0, 7))
        return pack(Share(scored, to_detections(rows, self.heights, self.widths, self.plus_one)))


class ObjectDetection(ObjectTask):
    """The task; see `paceline.tasks.task.Task` for what each method promises."""

    def __init__(
        self, workload: Workload, recipe: BoxRecipe, manifest: Manifest, *, limit_train=0, limit_val=0
    ) -> None:
        """Raises DataError as ObjectTask does."""
        super().__init__(
            workload, recipe, manifest, limit_train=limit_train, limit_val=limit_val, crowd=recipe.input.crowd
        )
        if recipe.input.mosaic:
            self.most_objects *= mosaic.PHOTOS
        side, order = recipe.input.size, self.sampled(*self.photos_of_classes())
        self.shapes = OneShape(side, side, images=self.train_images, seed=recipe.seed, order=order)

    def draw_train(self, fit: Fit, epoch: int, index: int, header: Header, name: str) -> Draw:
        """A random crop, or a mosaic, labelled with the objects that stay in it."""
        settings, random = self.recipe.input, SampleRandom(self.recipe.seed, epoch, index)
        photo = self._photo(index, header, name)
        if not settings.mosaic or not random.coin(settings.mosaic):
            return box_sample.draw_training_sample(*photo[1:], random, settings)
        places = [random.integer(0, self.train_images) for _ in range(mosaic.PHOTOS - 1)]
        others = (self._photo(number) for number in self.train_numbers[places].tolist())
        return mosaic.draw_mosaic((photo, *others), random, settings)

    def _photo(self, index: int, header: Header | None = None, name: str = "") -> mosaic.Photo:
        """header: None for a photo whose bytes nobody has read yet."""
        rows = self.wanted_rows(index)
        if header is None:
            header = Header(int(self.train.heights[index]), int(self.train.widths[index]), 0, False, 0)
        name = name or self.train_index.name(index)
        return mosaic.Photo(index, header, name, self.train.boxes[rows], self.train.classes[rows])

    def new_score(self) -> BoxScore:
        """An empty score."""
        return BoxScore(self.val.heights, self.val.widths, self.recipe.model.detect.plus_one)

    def summarise(self, packed: Sequence[bytes]) -> Evaluation:
        """The twelve numbers over all ranks' photos, and the report's predictions."""
        found = join([unpack(share) for share in packed], self.val_numbers)
        scores, best = score_boxes(self.truth, found), best_f1(self.truth, found)
        predictions = describe(
            self.truth, found, scores, best, self.val_files(), self.val_numbers, self.classes, self.category_ids
        )
        at_best, draws = best.record() if best else {}, partial(box_draws, self.truth, found)
        return Evaluation(scores.metrics, len(self.val_numbers), predictions, best_f1=at_best, draws=draws)
