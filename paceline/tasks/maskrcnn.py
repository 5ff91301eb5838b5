"""Mask R-CNN: photos with instance masks in, boxes and masks and COCO's numbers for both out; or Faster R-CNN: boxes in, boxes out.

Binds the recipe to one data set.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from paceline.batch import InstanceObjects
from paceline.config.instances import InstanceRecipe
from paceline.input import copy_paste, instance_sample
from paceline.input.draw import Draw
from paceline.input.randomness import SampleRandom
from paceline.store.header import Header
from paceline.store.manifest import Manifest
from paceline.tasks.metrics.best_f1 import best_f1
from paceline.tasks.metrics.coco import score_boxes
from paceline.tasks.metrics.coco_pack import join, unpack
from paceline.tasks.metrics.interval import box_draws
from paceline.tasks.objects import ObjectTask
from paceline.tasks.predictions import (
    InstanceScore,
    approximated,
    describe,
    describe_instances,
    instance_truth,
    require_masks,
    score_instances,
)
from paceline.tasks.self_check import masks_score_one
from paceline.tasks.shapes import Buckets, Fit, Sizes
from paceline.tasks.task import Evaluation
from paceline.tasks.workload import Workload


class InstanceSegmentation(ObjectTask):
    """The task; see `paceline.tasks.task.Task` for what each method promises."""

    def __init__(
        self, workload: Workload, recipe: InstanceRecipe, manifest: Manifest, *, limit_train=0, limit_val=0
    ) -> None:
        """Raises DataError as ObjectTask does, and where masks are to be learned and there are none, or these do not score 1."""
        # Crowd regions have one mask for many objects: no published system trains on them.
        super().__init__(workload, recipe, manifest, limit_train=limit_train, limit_val=limit_val, crowd=False)
        self.masks = None
        if recipe.model.masks:
            for split in (self.train, self.val):
                require_masks(split, manifest.called)
            self.masks = instance_truth(self.truth, self.val, self.val_numbers)
            unseen = masks_score_one(self.masks, self.classes)
            self.facts = {**self.facts, "val_objects_without_a_pixel": unseen}
        if recipe.input.copy_paste:
            self.most_objects *= 2
        self.shapes = Buckets(
            recipe,
            Sizes(self.train.heights, self.train.widths, self.train_numbers),
            Sizes(self.val.heights, self.val.widths, self.val_numbers),
            self.sampled(*self.photos_of_classes()),
        )

    def draw_train(self, fit: Fit, epoch: int, index: int, header: Header, name: str) -> Draw:
        """The photo, resized and augmented, in the left upper corner of the input."""
        random = SampleRandom(self.recipe.seed, epoch, index)
        key = instance_sample.image_key(self.recipe.seed, epoch, index)
        settings, model = self.recipe.input, self.recipe.model
        objects, canvas = (self.train, self.wanted_rows(index)), model.mask.canvas if model.masks else 0
        draw = instance_sample.draw_training_sample(
            header, name, *objects, random, key, settings, fit.side, canvas, fit.shape
        )
        if not settings.copy_paste or not random.coin(settings.copy_paste):
            return draw
        other = int(self.train_numbers[random.integer(0, self.train_images)])
        name, rows = self.train_index.name(other), self.wanted_rows(other)
        return copy_paste.paste(draw, other, name, self.train, rows, random, settings, fit.side)

    def sample(self, epoch: int, number: int) -> tuple[np.ndarray, InstanceObjects]:
        """As `Task.sample`, without the padding: pixels (h, w, 3)."""
        pixels, objects = super().sample(epoch, number)
        return pixels[: objects.size[0], : objects.size[1]], objects

    def new_score(self) -> InstanceScore:
        """An empty score."""
        rules = self.recipe.model.detect
        return InstanceScore(self.val.heights, self.val.widths, rules.mask_above, rules.paste)

    def summarise(self, packed: Sequence[bytes]) -> Evaluation:
        """The twelve numbers of boxes, and of masks where there are some, over all ranks' photos, and the report's predictions."""
        if self.masks is None:
            shares = [unpack(share) for share in packed]
            found = join(shares, self.val_numbers)
            scores, best = score_boxes(self.truth, found), best_f1(self.truth, found)
            predictions = describe(
                self.truth, found, scores, best, self.val_files(), self.val_numbers, self.classes, self.category_ids
            )
            at_best = best.record() if best else {}
            draws = partial(box_draws, self.truth, found)
            return Evaluation(scores.metrics, len(self.val_numbers), predictions, approximated(shares), at_best, draws)
        scored = score_instances(self.masks, packed, self.val_numbers)
        predictions = describe_instances(
            self.masks, scored, self.val_files(), self.val_numbers, self.classes, self.category_ids
        )
        at_best = scored.best.record() if scored.best else {}
        draws = partial(scored.draws, self.masks)
        return Evaluation(scored.metrics, len(self.val_numbers), predictions, scored.approximated, at_best, draws)

    def slots_to_try(self, device: torch.device) -> int:
        """As many as every batch has on an accelerator; on a CPU, where batches differ, enough for the heads.

        A step on them takes as much memory as any step of the run can, so a run that survives it does not run out of memory later.
        """
        roi = self.recipe.model.roi
        return max(self.most_objects, int(roi.samples * roi.positive_share) if device.type == "cpu" else 0)
