"""Mask R-CNN: photos with instance masks in, boxes and masks and COCO's numbers for both out; or Faster R-CNN: boxes in, boxes out.

Binds the recipe to one data set.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from paceline.config.maskrcnn import InstanceRecipe
from paceline.data.batch import (
    Batch,
    InstanceBatch,
    InstanceObjects,
    count_slots,
    gray_images,
    instance_batch,
    raster_boxes,
)
from paceline.data.index.manifest import Manifest
from paceline.data.loader.sample_rng import SampleRng
from paceline.data.transforms.decode import SampleSpec
from paceline.data.transforms.image_io import Header
from paceline.models.batch_shapes import AspectBuckets, ImageSizes, ResizedShape, Shape
from paceline.models.maskrcnn import transforms
from paceline.models.metrics.self_check import masks_score_one
from paceline.models.object_predictions import (
    InstanceScore,
    instance_predictions_json,
    read_instance_truth,
    require_masks,
    score_instances,
)
from paceline.models.object_task import ObjectData, ObjectEvaluator
from paceline.models.task import EvalResult


class InstanceEvaluator(ObjectEvaluator):
    """Average precision of boxes and of masks; see `Evaluator` for what each method promises."""

    def __init__(self, data: InstanceData) -> None:
        """Raises DataError as ObjectEvaluator does, and where the masks do not score 1."""
        super().__init__(data)
        self.masks = None
        if data.recipe.model.masks:
            self.masks = read_instance_truth(self.truth, data.val, data.val_numbers)
            self.facts = {"val_objects_without_a_pixel": masks_score_one(self.masks, data.classes)}

    def new_score(self) -> InstanceScore:
        """An empty score."""
        data, model = self.data, self.data.recipe.model
        return InstanceScore(data.val.heights, data.val.widths, model.detect.mask_threshold, model.parity.mask_paste)

    def summarize(self, packed: Sequence[bytes]) -> EvalResult:
        """The twelve numbers of boxes, and of masks where there are some, over all ranks' photos, and the report's predictions."""
        if self.masks is None:
            return super().summarize(packed)
        data, scored = self.data, score_instances(self.masks, packed, self.data.val_numbers)
        predictions = instance_predictions_json(
            self.masks, scored, data.val_files(), data.val_numbers, data.classes, data.category_ids
        )
        at_best, draws = scored.best.record() if scored.best else {}, partial(scored.draws, self.masks)
        return EvalResult(scored.metrics, len(data.val_numbers), predictions, scored.approximated, at_best, draws)


class InstanceData(ObjectData):
    """Photos with boxes and masks, resized; see `DataModule` for what each method promises."""

    batch, evaluator = staticmethod(instance_batch), InstanceEvaluator

    def __init__(self, recipe: InstanceRecipe, manifest: Manifest, limits: tuple[int, int]) -> None:
        """Raises DataError as ObjectData does, and where masks are to be learned and there are none."""
        # Crowd regions have one mask for many objects: no published system trains on them.
        super().__init__(recipe, manifest, limits, crowd=False)
        if recipe.model.masks:
            for split in (self.train, self.val):
                require_masks(split, manifest.called)
        if recipe.input.copy_paste_prob:
            self.max_objects *= 2
        self.shapes = AspectBuckets(
            recipe,
            ImageSizes(self.train.heights, self.train.widths, self.train_numbers),
            ImageSizes(self.val.heights, self.val.widths, self.val_numbers),
            self.sampled(*self.photos_of_classes()),
        )

    @staticmethod
    def dummy_batch(recipe: InstanceRecipe, images: int, shape: Shape, slots: int) -> Batch:
        """Gray photos full of objects."""
        side = (recipe.model.mask.target_buffer_size if recipe.model.masks else 0) + 2
        (height, width), slots = shape, count_slots(slots)
        # Each object has its own region.
        boxes = (raster_boxes(slots) * torch.tensor([width, height] * 2)).expand(images, -1, -1).contiguous()
        return InstanceBatch(
            images=gray_images(images, shape, level=128),
            labels=torch.ones(images, slots, dtype=torch.int64),
            indices=torch.zeros(images, dtype=torch.int64),
            boxes=boxes,
            sizes=torch.tensor([[height, width]]).expand(images, -1).contiguous(),
            keys=torch.arange(images),
            canvases=torch.ones(images, slots, side, side, dtype=torch.uint8),
            frames=torch.tensor([0.0, 0.0, 1.0, 1.0]).expand(images, slots, -1).contiguous(),
        )

    @staticmethod
    def draw_eval(recipe: InstanceRecipe, header: Header, name: str, shape: Shape) -> SampleSpec:
        """The whole photo in the left upper corner of the input; its objects are not needed there."""
        return transforms.evaluation_instance_spec(header, name, recipe.input, recipe.input.min_size[-1], shape)

    def draw_train(self, fit: ResizedShape, epoch: int, index: int, header: Header, name: str) -> SampleSpec:
        """The photo, resized and augmented, in the left upper corner of the input."""
        random = SampleRng(self.recipe.seed, epoch, index)
        key = transforms.image_key(self.recipe.seed, epoch, index)
        settings, model = self.recipe.input, self.recipe.model
        objects, canvas = (self.train, self.wanted_rows(index)), model.mask.target_buffer_size if model.masks else 0
        draw = transforms.sample_instance_spec(header, name, *objects, random, key, settings, fit.side, canvas, fit.shape)
        if not settings.copy_paste_prob or not random.coin(settings.copy_paste_prob):
            return draw
        other = int(self.train_numbers[random.integer(0, self.train_images)])
        name, rows = self.train_index.name(other), self.wanted_rows(other)
        return transforms.paste_objects(draw, other, name, self.train, rows, random, settings, fit.side)

    def sample(self, epoch: int, number: int) -> tuple[np.ndarray, InstanceObjects]:
        """As `DataModule.sample`, without the padding: pixels (h, w, 3)."""
        pixels, objects = super().sample(epoch, number)
        return pixels[: objects.size[0], : objects.size[1]], objects

    def objects_per_probe(self, device: torch.device) -> int:
        """As many as every batch has on an accelerator; on a CPU, where batches differ, enough for the heads.

        A step on them takes as much memory as any step of the run can, so a run that survives it does not run out of memory later.
        """
        roi = self.recipe.model.roi
        return max(self.max_objects, int(roi.samples_per_image * roi.positive_fraction) if device.type == "cpu" else 0)
