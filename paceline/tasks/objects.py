"""Tasks on photos with objects: SSD, boxes and COCO's twelve numbers out; Mask R-CNN, boxes and masks and the numbers of both out.

Letters: N photos of a split   M objects   B images of a forward   K classes, 1..K   D places for detections
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from paceline.batch import Batch, InstanceObjects
from paceline.config.detection import BoxInput, BoxRecipe
from paceline.config.errors import DataError
from paceline.config.instances import InstanceInput, InstanceRecipe
from paceline.config.recipe import Recipe
from paceline.input import box_sample, instance_sample
from paceline.input.draw import Draw
from paceline.input.randomness import SampleRandom
from paceline.store.box_split import BoxSplit, open_boxes
from paceline.store.header import Header
from paceline.store.manifest import Manifest
from paceline.tasks.metrics.coco import GroundTruth, score_boxes, subset
from paceline.tasks.metrics.coco_pack import Share, join, pack, unpack
from paceline.tasks.predictions import (
    InstanceScore,
    describe,
    describe_instances,
    instance_truth,
    require_masks,
    score_instances,
    to_detections,
)
from paceline.tasks.self_check import ground_truth_scores_one, masks_score_one
from paceline.tasks.shapes import Buckets, Fit, OneShape, Sizes
from paceline.tasks.task import Evaluation, Task
from paceline.tasks.workload import Workload


class ObjectTask(Task):
    """A detector's task on one data set of boxes."""

    def __init__(
        self, workload: Workload, recipe: Recipe, manifest: Manifest, *, limit_train=0, limit_val=0, crowd: bool
    ) -> None:
        """crowd: whether crowd regions, one annotation of many objects, are learned as objects.

        Raises DataError where the annotations, scored as detections, do not score 1, or none of them can be learned.
        """
        super().__init__(workload, recipe, manifest)
        self.train, self.val = (open_boxes(manifest, split, recipe.input.exif) for split in (manifest.learnt, "val"))
        self.train_index, self.val_index = self.train.index, self.val.index
        usable = self.train.usable.astype(bool)
        # (M,) bool, of the training objects
        self.wanted = learned(self.train, usable if crowd else usable & (self.train.crowd == 0), recipe.input)
        before = np.concatenate(([0], np.cumsum(self.wanted)))
        objects = before[self.train.object_starts[1:]] - before[self.train.object_starts[:-1]]
        numbers = np.flatnonzero(objects) if recipe.input.drop_empty else np.arange(len(self.train))
        if not len(numbers):
            raise DataError(
                f"{manifest.called}: none of its {len(self.train):,} training images has an object to learn"
                f"{'' if crowd else '; crowd regions are none'}.\n"
                "Annotate some of them, or train on images without objects as well: --input.no-drop-empty"
            )
        # Of all images, also those that this run leaves out: the same data always has the same shapes.
        self.most_objects = int(objects.max(initial=0))
        self.classes, self.category_ids = self.val.names, self.val.category_ids.tolist()
        self.choose_images(
            numbers,
            (limit_train, limit_val),
            category_ids=list(self.category_ids),
            train_images_left_out=len(self.train) - len(numbers),
        )
        # Of this run's validation photos.
        every = GroundTruth(**self.val.truth_arrays(), num_classes=len(self.val.names))
        self.truth = subset(every, self.val_numbers)
        ground_truth_scores_one(self.truth, self.classes)

    def wanted_rows(self, index: int) -> np.ndarray:
        """(n,) int64, rows of the objects of training photo `index` that are learned."""
        rows = np.arange(self.train.object_starts[index], self.train.object_starts[index + 1])
        return rows[self.wanted[rows]]

    def val_files(self) -> list[str]:
        """Of this run's validation photos, relative to the data set's root or absolute."""
        names = (self.val_index.relative_name(int(number)) for number in self.val_numbers)
        return [name.decode("utf-8", "surrogateescape") for name in names]


def learned(split: BoxSplit, candidates: np.ndarray, photo: BoxInput | InstanceInput) -> np.ndarray:
    """(M,) bool: the candidates, (M,) bool, that an input's settings keep. The largest have the largest annotated area, of equal
    ones the first.
    """
    kept = candidates & (split.areas >= photo.least_area) if photo.least_area else candidates
    images = np.repeat(np.arange(len(split)), np.diff(split.object_starts))  # (M,) each object's photo
    if photo.least_box:
        ltrb = np.concatenate((split.boxes[:, :2], split.boxes[:, :2] + split.boxes[:, 2:]), axis=1)
        sides = np.stack((split.widths, split.heights), axis=1)[images]
        seen = (np.minimum(ltrb[:, 2:], sides) - np.maximum(ltrb[:, :2], 0)).clip(min=0)
        kept = kept & (seen.prod(axis=1) >= photo.least_box)
    if photo.most_objects:
        rows = np.flatnonzero(kept)
        order = rows[np.lexsort((rows, -split.areas[rows], images[rows]))]  # by photo, the largest first
        first = np.searchsorted(images[order], images[order])  # the first place of each one's photo
        kept = np.zeros_like(kept)
        kept[order[np.arange(len(order)) - first < photo.most_objects]] = True
    return kept


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
        self.shapes = OneShape(recipe.input.size, recipe.input.size, images=self.train_images, seed=recipe.seed)

    def draw_train(self, fit: Fit, epoch: int, index: int, header: Header, name: str) -> Draw:
        """A random crop, labelled with the objects that stay in it."""
        rows, random = self.wanted_rows(index), SampleRandom(self.recipe.seed, epoch, index)
        boxes, classes = self.train.boxes[rows], self.train.classes[rows]
        return box_sample.draw_training_sample(header, name, boxes, classes, random, self.recipe.input)

    def new_score(self) -> BoxScore:
        """An empty score."""
        return BoxScore(self.val.heights, self.val.widths, self.recipe.model.detect.plus_one)

    def summarise(self, packed: Sequence[bytes]) -> Evaluation:
        """The twelve numbers over all ranks' photos, and the report's predictions."""
        found = join([unpack(share) for share in packed], self.val_numbers)
        scores = score_boxes(self.truth, found)
        predictions = describe(
            self.truth, found, scores, self.val_files(), self.val_numbers, self.classes, self.category_ids
        )
        return Evaluation(scores.metrics, len(self.val_numbers), predictions)


class InstanceSegmentation(ObjectTask):
    """The task; see `paceline.tasks.task.Task` for what each method promises."""

    def __init__(
        self, workload: Workload, recipe: InstanceRecipe, manifest: Manifest, *, limit_train=0, limit_val=0
    ) -> None:
        """Raises DataError as ObjectTask does, and where the annotations have no masks or these do not score 1."""
        # Crowd regions have one mask for many objects: no published system trains on them.
        super().__init__(workload, recipe, manifest, limit_train=limit_train, limit_val=limit_val, crowd=False)
        for split in (self.train, self.val):
            require_masks(split, manifest.called)
        self.masks = instance_truth(self.truth, self.val, self.val_numbers)
        unseen = masks_score_one(self.masks, self.classes)
        self.facts = {**self.facts, "val_objects_without_a_pixel": unseen}
        self.shapes = Buckets(
            recipe,
            Sizes(self.train.heights, self.train.widths, self.train_numbers),
            Sizes(self.val.heights, self.val.widths, self.val_numbers),
        )

    def draw_train(self, fit: Fit, epoch: int, index: int, header: Header, name: str) -> Draw:
        """The photo, resized and augmented, in the left upper corner of the input."""
        random = SampleRandom(self.recipe.seed, epoch, index)
        key = instance_sample.image_key(self.recipe.seed, epoch, index)
        objects, canvas = (self.train, self.wanted_rows(index)), self.recipe.model.mask.canvas
        return instance_sample.draw_training_sample(
            header, name, *objects, random, key, self.recipe.input, fit.side, canvas, fit.shape
        )

    def sample(self, epoch: int, number: int) -> tuple[np.ndarray, InstanceObjects]:
        """As `Task.sample`, without the padding: pixels (h, w, 3)."""
        pixels, objects = super().sample(epoch, number)
        return pixels[: objects.size[0], : objects.size[1]], objects

    def new_score(self) -> InstanceScore:
        """An empty score."""
        rules = self.recipe.model.detect
        return InstanceScore(self.val.heights, self.val.widths, rules.mask_above, rules.paste)

    def summarise(self, packed: Sequence[bytes]) -> Evaluation:
        """The twelve numbers of boxes and of masks over all ranks' photos, and the report's predictions."""
        scored = score_instances(self.masks, packed, self.val_numbers)
        predictions = describe_instances(
            self.masks, scored, self.val_files(), self.val_numbers, self.classes, self.category_ids
        )
        return Evaluation(scored.metrics, len(self.val_numbers), predictions, scored.approximated)

    def slots_to_try(self, device: torch.device) -> int:
        """As many as every batch has on an accelerator; on a CPU, where batches differ, enough for the heads.

        A step on them takes as much memory as any step of the run can, so a run that survives it does not run out of memory later.
        """
        roi = self.recipe.model.roi
        return max(self.most_objects, int(roi.samples * roi.positive_share) if device.type == "cpu" else 0)
