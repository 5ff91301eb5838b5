"""Mask R-CNN: photos with instance masks in, boxes and masks and COCO's numbers for both out. Binds the recipe to one data set.

Letters: B images of a forward   H, W pixels of the network's input   K classes   D places for detections
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paceline.batch.batch import Batch
from paceline.batch.detection import slots_for
from paceline.batch.instances import InstanceBatch, InstanceObjects, instance_batch
from paceline.config.errors import DataError, RecipeError
from paceline.config.instances import InstanceInput, MaskRCNNModel
from paceline.config.plan import Plan
from paceline.config.recipe import Recipe
from paceline.config.system import System
from paceline.config.workloads import WORKLOADS
from paceline.data.boxes import open_boxes
from paceline.data.buckets import Shape, aspect_groups, padded, resized_all, short_of_step
from paceline.data.decode import require_decoder
from paceline.data.grouped import group_batches, grouped_indices, shapes_of_run
from paceline.data.instance_sample import image_key, read_evaluation_sample, read_training_sample
from paceline.data.loader import Forward, Loader, Repeated
from paceline.data.manifest import Manifest
from paceline.data.randomness import SampleRandom
from paceline.models.initialise_mask_rcnn import initialise_mask_rcnn
from paceline.models.mask_rcnn import MaskRCNN
from paceline.models.segmenter import Segmenter
from paceline.models.weights import WeightReport
from paceline.models.weights_maskrcnn import load_mask_rcnn_weights
from paceline.tasks import photos
from paceline.tasks.instance_predictions import (
    METRICS,
    InstanceScore,
    describe_instances,
    instance_truth,
    require_masks,
    score_instances,
)
from paceline.tasks.memory import MemoryEstimate, estimate
from paceline.tasks.self_check import ground_truth_scores_one, masks_score_one
from paceline.tasks.task import Evaluation, Place

InstanceRecipe = Recipe[MaskRCNNModel, InstanceInput]
# Object slots of an image in the memory estimate: more than 99 in 100 images of COCO need.
TYPICAL_SLOTS = 64


class InstanceSegmentation:
    """The task; see `paceline.tasks.task.Task` for what each method promises."""

    headline = WORKLOADS["maskrcnn"].headline
    metrics: Sequence[str] = METRICS
    benchmark = "maskrcnn"
    shapes_vary = True
    compiles = False
    exact_on_cuda = False

    def __init__(self, recipe: InstanceRecipe, manifest: Manifest, *, limit_train: int = 0, limit_val: int = 0) -> None:
        """Raises DataError where the annotations have no masks, or, handed back as detections, do not score 1."""
        require_decoder(recipe.input.decoder)
        self.recipe = recipe
        self.train, self.val = (open_boxes(manifest, split, recipe.input.exif) for split in (manifest.learnt, "val"))
        require_masks(self.train)
        # Crowd regions have one mask for many objects: no published system trains on them.
        self.wanted = self.train.usable.astype(bool) & (self.train.crowd == 0)
        numbers = np.arange(len(self.train))
        if recipe.input.drop_empty:
            before = np.concatenate(([0], np.cumsum(self.wanted)))
            numbers = numbers[before[self.train.object_starts[1:]] > before[self.train.object_starts[:-1]]]
        if not len(numbers):
            raise DataError(
                f"{manifest.root_path}: none of its {len(self.train):,} training images has an object to learn; crowd regions are "
                "none.\nAnnotate some of them, or train on images without objects as well: --input.no-drop-empty"
            )
        self.train_numbers = numbers[photos.spread(len(numbers), limit_train)]
        self.val_numbers = photos.spread(len(self.val), limit_val)
        self.train_images, self.val_images = len(self.train_numbers), len(self.val_numbers)
        self.classes: Sequence[str] = self.val.names
        self.category_ids: Sequence[int] = self.val.category_ids.tolist()
        self.truth = instance_truth(self.val, self.val_numbers)
        ground_truth_scores_one(self.truth.boxes, self.classes)
        self.unseen = masks_score_one(self.truth, self.classes)
        self.is_target_data = photos.is_target_data(recipe, manifest, (len(numbers), len(self.val)))
        kept = self.train_numbers
        self.groups = aspect_groups(self.train.heights[kept], self.train.widths[kept], recipe.input)
        self.most_objects = photos.most_objects(self.wanted, self.train.object_starts)
        self.facts: Mapping[str, Any] = {
            "root": str(manifest.root_path),
            "manifest": str(manifest.folder),
            "hash": manifest.content_hash,
            "category_ids": list(self.category_ids),
            "train_images": self.train_images,
            "val_images": self.val_images,
            "train_images_left_out": len(self.train) - len(numbers),
            "val_objects_without_a_pixel": self.unseen,
        }

    def build(self, device: torch.device) -> nn.Module:
        """The initialised network with its losses, drawn on the CPU so that every machine gets the same weights."""
        model = build_segmenter(self.recipe, len(self.classes))
        initialise_mask_rcnn(model.network, torch.Generator().manual_seed(self.recipe.seed))
        return model.to(device)

    def load_weights(self, model: nn.Module, path: Path) -> WeightReport:
        """A ResNet for the trunk, torchvision's Mask R-CNN, or our own; other classes get new class outputs."""
        assert isinstance(model, Segmenter)
        return load_mask_rcnn_weights(model.network, path, category_ids=self.category_ids)

    def memory(self, system: System) -> MemoryEstimate:
        """What a step needs on one rank, for the largest input that there is."""
        photo = self.recipe.input
        heights, widths = self.train.heights[self.train_numbers], self.train.widths[self.train_numbers]
        sizes = np.unique(resized_all(heights, widths, max(photo.short), photo.long), axis=0).tolist()
        shapes = {padded(height, width, photo, max(photo.short)) for height, width in sizes}
        return segmenter_memory(self.recipe, system, len(self.classes), max(shapes, key=math.prod, default=None))

    def check_plan(self, plan: Plan) -> None:
        """Raises RecipeError where the best proposals of a loss group would be chosen from a part of it."""
        if self.recipe.model.rpn.post_of == "batch" and plan.loss_forwards * plan.loss_join > 1:
            raise RecipeError(
                f"--model.rpn.post-of batch: the best proposals of {plan.loss_group} images are kept together, but a forward "
                f"holds {plan.images_per_forward} of them. Give forwards room for the group (--system.images-per-forward "
                f"{plan.loss_group}), or count proposals by image: --model.rpn.post-of image"
            )

    def train_loader(
        self, plan: Plan, system: System, place: Place, *, first: int, one_batch: bool
    ) -> Loader | Repeated:
        """Augmented batches from step `first` to the run's last; with one_batch, step 0's pixels again and again."""
        return photos.train_loader(
            self.train_numbers,
            partial(self.read_train, self.recipe.input.short[0]),
            partial(instance_batch, least=photos.fixed_objects(self.most_objects, place.device)),
            side=self.largest(plan),
            seed=self.recipe.seed,
            plan=plan,
            system=system,
            place=place,
            name=self.train.index.name,
            first=first,
            one_batch=one_batch,
            order=partial(self.order, plan),
            forward=self.forward,
        )

    def order(self, plan: Plan, rank: int, step: int) -> tuple[np.ndarray, np.ndarray]:
        """(epochs, positions among the training images) of a rank's share of a step, images of like shape together."""
        return grouped_indices(
            self.train_images,
            groups=self.groups,
            seed=self.recipe.seed,
            step=step,
            rank=rank,
            world=plan.world,
            global_batch=plan.global_batch,
            forwards=plan.forwards,
            join=plan.bn_join,
        )

    def samples_of_step(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """(epochs, positions among the training images) of a whole step, on however many ranks it is taken."""
        seed, batch = self.recipe.seed, self.recipe.global_batch
        return grouped_indices(self.train_images, groups=self.groups, seed=seed, step=step, global_batch=batch)

    def forward(self, step: int, epochs: np.ndarray, numbers: np.ndarray) -> Forward:
        """One forward's images, the shape they are padded to, and how they are read at this step's size."""
        photo = self.recipe.input
        short = short_of_step(self.recipe.seed, step, photo.short)
        return Forward(epochs, numbers, self.shape(self.train, numbers, short), partial(self.read_train, short))

    def shape(self, split: Any, numbers: np.ndarray, short: int) -> Shape:
        """(H, W) that these photos are padded to together."""
        photo = self.recipe.input
        if not len(numbers):
            return photo.multiple, photo.multiple
        height, width = resized_all(split.heights[numbers], split.widths[numbers], short, photo.long).max(axis=0)
        return padded(int(height), int(width), photo, short)

    def largest(self, plan: Plan) -> Shape:
        """The largest input that this run will see: its memory is taken once, and the first step is tried at this shape."""
        photo, kept = self.recipe.input, self.train_numbers
        found = []
        for short in photo.short:
            sizes = resized_all(self.train.heights[kept], self.train.widths[kept], short, photo.long)
            found += shapes_of_run(
                self.groups,
                sizes,
                lambda height, width, short=short: padded(height, width, photo, short),
                global_batch=plan.global_batch,
                each=plan.images_per_forward,
                steps=plan.total_steps,
            )
        return max(found, key=lambda shape: shape[0] * shape[1])

    def val_loader(self, batch: int, system: System, place: Place) -> Loader:
        """This rank's share of the validation photos; what one is padded to depends on the photo alone."""
        short = self.recipe.input.short[-1]
        # Of every photo in the split: its own padded shape, so that a batch holds photos of one shape.
        shapes = np.zeros((len(self.val), 2), np.int64)
        for number in self.val_numbers:
            shapes[number] = self.shape(self.val, np.array([number]), short)

        def cut(mine: np.ndarray, batch: int) -> list[Forward]:
            groups = np.unique(shapes[mine], axis=0, return_inverse=True)[1].reshape(-1)
            forwards = []
            for places in group_batches(groups, batch):
                numbers = mine[places]
                height, width = shapes[numbers[0]].tolist()
                forwards.append(Forward(np.zeros(len(numbers), np.int64), numbers, (height, width), None))
            return forwards

        height, width = shapes[shapes.prod(axis=1).argmax()].tolist()
        return photos.val_loader(
            self.val_numbers,
            partial(self.read_val, short),
            instance_batch,
            side=(height, width),
            batch=batch,
            system=system,
            place=place,
            name=self.val.index.name,
            cut=cut,
        )

    def read_train(self, short: int, epoch: int, index: int, out: np.ndarray) -> InstanceObjects:
        """Training photo `index`, resized and augmented, into the left upper corner of `out` (H, W, 3) uint8."""
        rows = np.arange(self.train.object_starts[index], self.train.object_starts[index + 1])
        return read_training_sample(
            self.train.index.read(index),
            self.train.index.name(index),
            self.train,
            rows[self.wanted[rows]],
            SampleRandom(self.recipe.seed, epoch, index),
            image_key(self.recipe.seed, epoch, index),
            self.recipe.input,
            short,
            self.recipe.model.mask.canvas,
            out,
        )

    def read_val(self, short: int, _: int, index: int, out: np.ndarray) -> InstanceObjects:
        """Validation photo `index`, resized, into `out`; its objects are not needed there."""
        data, name = self.val.index.read(index), self.val.index.name(index)
        return read_evaluation_sample(data, name, self.recipe.input, short, out)

    def sample(self, epoch: int, number: int) -> tuple[np.ndarray, InstanceObjects]:
        """One training sample as the network sees it, without its padding: pixels (h, w, 3) uint8 and its objects."""
        short = self.recipe.input.short[-1]
        index = int(self.train_numbers[number])
        height, width = self.shape(self.train, np.array([index]), short)
        out = np.zeros((height, width, 3), np.uint8)
        objects = self.read_train(short, epoch, index, out)
        return out[: objects.size[0], : objects.size[1]], objects

    def new_score(self) -> InstanceScore:
        """An empty score."""
        return InstanceScore(self.val.heights, self.val.widths)

    def summarise(self, packed: Sequence[bytes]) -> Evaluation:
        """The twelve numbers of boxes and of masks over all ranks' photos, and what the report is drawn from."""
        scored = score_instances(self.truth, packed, self.val_numbers)
        names = [
            self.val.index.relative_name(int(number)).decode("utf-8", "surrogateescape") for number in self.val_numbers
        ]
        predictions = describe_instances(self.truth, scored, names, self.val_numbers, self.classes, self.category_ids)
        return Evaluation(scored.metrics, len(self.val_numbers), predictions)

    def images_of_step(self, plan: Plan, step: int) -> list[str]:
        """Files of the whole global batch of a step."""
        return photos.images_of_step(
            self.train_numbers, self.recipe.seed, plan, step, self.train.index.name, order=partial(self.order, plan)
        )

    def warm_up_batch(self, plan: Plan, device: torch.device) -> Batch:
        """Grey photos of the largest shape of the run and with as many objects as the heads have room for.

        What a step on it takes is what any step of the run takes at most, so a run that gets past it does not run out of
        memory over the images that happen to come later.
        """
        model = self.recipe.model
        height, width = self.largest(plan)
        count, side = plan.images_per_forward, model.mask.canvas + 2
        # On an accelerator as many as every batch has; on a CPU, where batches differ, enough for the heads.
        most = int(model.roi.samples * model.roi.positive_share) if device.type == "cpu" else 0
        slots = slots_for(max(self.most_objects, most))
        step = torch.arange(slots)
        # Boxes of a quarter of the photo's sides in a raster: distinct, inside, and each matched by its own region.
        left, top = (step % 16) * (width * 3 / 4 / 16), (step // 16 % 16) * (height * 3 / 4 / 16)
        boxes = torch.stack((left, top, left + width / 4, top + height / 4), dim=1).expand(count, -1, -1).contiguous()
        return InstanceBatch(
            images=photos.plain_images(plan, (height, width), level=128),
            labels=torch.ones(count, slots, dtype=torch.int64),
            indices=torch.zeros(count, dtype=torch.int64),
            boxes=boxes,
            sizes=torch.tensor([[height, width]]).expand(count, -1).contiguous(),
            keys=torch.arange(count),
            canvases=torch.ones(count, slots, side, side, dtype=torch.uint8),
            frames=torch.tensor([0.0, 0.0, 1.0, 1.0]).expand(count, slots, -1).contiguous(),
        ).to(device)


def build_segmenter(recipe: InstanceRecipe, classes: int) -> Segmenter:
    """The network of a recipe for `classes` classes, its weights not drawn yet."""
    photo = recipe.input
    return Segmenter(MaskRCNN(recipe.model, classes), mean=photo.mean, std=photo.std, settings=recipe.model)


def segmenter_memory(
    recipe: InstanceRecipe, system: System, classes: int = 80, shape: Shape | None = None
) -> MemoryEstimate:
    """What a training step of this recipe needs on one rank.

    shape  (H, W) of the largest input; None: the widest photo's. A forward that has to mix portraits with landscapes is
           larger still, and rare: the first, discarded step of a run tries the largest that its order brings
    """
    photo = recipe.input
    short, long, multiple = max(photo.short), photo.long, photo.multiple
    height, width = shape or (-(-short // multiple) * multiple, -(-long // multiple) * multiple)
    side = recipe.model.mask.canvas + 2

    def batch(images: Tensor) -> Batch:
        device, count = images.device, len(images)
        labels = torch.empty(count, TYPICAL_SLOTS, dtype=torch.int64, device=device)
        boxes = torch.empty(count, TYPICAL_SLOTS, 4, device=device)
        return InstanceBatch(
            images=images,
            labels=labels,
            indices=labels[:, 0],
            boxes=boxes,
            sizes=labels[:, :2],
            keys=labels[:, 0],
            canvases=torch.empty(count, TYPICAL_SLOTS, side, side, dtype=torch.uint8, device=device),
            frames=boxes,
        )

    build = partial(build_segmenter, recipe, classes)
    return estimate(build, (3, height, width), recipe, system, batch, remember=f"{classes} classes")
