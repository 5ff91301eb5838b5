"""Mask R-CNN: photos with instance masks in, boxes and masks and COCO's numbers for both out. Binds the recipe to one data set.

Letters: B images of a forward   H, W pixels of the network's input   K classes   D places for detections
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from paceline.batch import Batch, InstanceBatch, InstanceObjects, plain_images, raster_boxes, slots_for
from paceline.config.errors import RecipeError
from paceline.config.instances import InstanceInput, MaskRCNNModel
from paceline.config.plan import Plan
from paceline.config.recipe import Recipe
from paceline.input.buckets import Shape, padded_shape, resized
from paceline.input.draw import Draw
from paceline.input.instance_sample import draw_evaluation_sample, draw_training_sample, image_key
from paceline.input.randomness import SampleRandom
from paceline.models.mask_rcnn import MaskRCNN, initialise_mask_rcnn
from paceline.models.segmenter import Segmenter
from paceline.store.header import Header
from paceline.store.manifest import Manifest
from paceline.tasks.instance_predictions import (
    InstanceScore,
    describe_instances,
    instance_truth,
    require_masks,
    score_instances,
)
from paceline.tasks.objects import ObjectTask
from paceline.tasks.self_check import masks_score_one
from paceline.tasks.shapes import Buckets, Fit, Sizes
from paceline.tasks.task import Evaluation
from paceline.tasks.workload import Workload
from paceline.weights.class_rows import Labels
from paceline.weights.load import WeightReport
from paceline.weights.load_maskrcnn import load_mask_rcnn_weights
from paceline.weights.weight_file import WeightFile

InstanceRecipe = Recipe[MaskRCNNModel, InstanceInput]


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
        return draw_training_sample(
            header,
            name,
            self.train,
            self.wanted_rows(index),
            SampleRandom(self.recipe.seed, epoch, index),
            image_key(self.recipe.seed, epoch, index),
            self.recipe.input,
            fit.side,
            self.recipe.model.mask.canvas,
            fit.shape,
        )

    def sample(self, epoch: int, number: int) -> tuple[np.ndarray, InstanceObjects]:
        """As all tasks, without the padding: pixels (h, w, 3)."""
        pixels, objects = super().sample(epoch, number)
        return pixels[: objects.size[0], : objects.size[1]], objects

    def new_score(self) -> InstanceScore:
        """An empty score."""
        rules = self.recipe.model.detect
        return InstanceScore(self.val.heights, self.val.widths, rules.mask_above, rules.paste)

    def summarise(self, packed: Sequence[bytes]) -> Evaluation:
        """The twelve numbers of boxes and of masks over all ranks' photos, and what the report is drawn from."""
        scored = score_instances(self.masks, packed, self.val_numbers)
        predictions = describe_instances(
            self.masks, scored, self.val_files(), self.val_numbers, self.classes, self.category_ids
        )
        return Evaluation(scored.metrics, len(self.val_numbers), predictions, scored.approximated)

    def slots_to_try(self, device: torch.device) -> int:
        """As many as every batch has on an accelerator; on a CPU, where batches differ, enough for the heads.

        What a step on them takes is what any step of the run takes at most, so a run that gets past it does not run out of
        memory over the images that happen to come later.
        """
        roi = self.recipe.model.roi
        return max(self.most_objects, int(roi.samples * roi.positive_share) if device.type == "cpu" else 0)


def check_loss_groups(recipe: InstanceRecipe, plan: Plan) -> None:
    """Raises RecipeError where the best proposals of a loss group would be chosen from a part of it."""
    if recipe.model.rpn.post_of == "batch" and plan.loss_forwards * plan.loss_join > 1:
        raise RecipeError(
            f"--model.rpn.post-of batch: the best proposals of {plan.loss_group} images are kept together, but a forward "
            f"holds {plan.images_per_forward} of them. Give forwards room for the group (--system.images-per-forward "
            f"{plan.loss_group}), or count proposals by image: --model.rpn.post-of image"
        )


def eval_shape(recipe: InstanceRecipe, height: int, width: int) -> Shape:
    """What one photo is padded to."""
    photo, short = recipe.input, recipe.input.short[-1]
    return padded_shape(*resized(height, width, short, photo.long, photo.sides), photo, short)


def draw_for_evaluation(recipe: InstanceRecipe, header: Header, name: str, shape: Shape) -> Draw:
    """The whole photo in the left upper corner of the input; its objects are not needed there."""
    return draw_evaluation_sample(header, name, recipe.input, recipe.input.short[-1], shape)


def build_segmenter(recipe: InstanceRecipe, classes: int) -> Segmenter:
    """The network of a recipe for `classes` classes, its weights not drawn yet."""
    photo = recipe.input
    return Segmenter(MaskRCNN(recipe.model, classes), mean=photo.mean, std=photo.std, settings=recipe.model)


def initialise_segmenter(recipe: InstanceRecipe, model: Segmenter, generator: torch.Generator) -> None:
    """Draw its weights."""
    initialise_mask_rcnn(model.network, generator, recipe.model.init)


def load_segmenter(model: Segmenter, source: Path | WeightFile, labels: Labels) -> WeightReport:
    """A classifier for the trunk, or a Mask R-CNN of any form; classes that the file has too, by name, keep their rows."""
    return load_mask_rcnn_weights(model.network, source, labels)


def crowded_photos(recipe: InstanceRecipe, images: int, shape: Shape, slots: int) -> Batch:
    """Grey photos that are full of objects."""
    (height, width), side, slots = shape, recipe.model.mask.canvas + 2, slots_for(slots)
    # Each is matched by its own region.
    boxes = (raster_boxes(slots) * torch.tensor([width, height] * 2)).expand(images, -1, -1).contiguous()
    return InstanceBatch(
        images=plain_images(images, shape, level=128),
        labels=torch.ones(images, slots, dtype=torch.int64),
        indices=torch.zeros(images, dtype=torch.int64),
        boxes=boxes,
        sizes=torch.tensor([[height, width]]).expand(images, -1).contiguous(),
        keys=torch.arange(images),
        canvases=torch.ones(images, slots, side, side, dtype=torch.uint8),
        frames=torch.tensor([0.0, 0.0, 1.0, 1.0]).expand(images, slots, -1).contiguous(),
    )
