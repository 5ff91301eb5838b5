"""SSD: photos with boxes in, detections and COCO's twelve numbers out. Binds the recipe to one data set.

Letters: B images of a forward   S side of the network's input, pixels   K classes   D places for detections
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paceline.batch.batch import Batch
from paceline.batch.detection import DetectionBatch, Objects, detection_batch, slots_for
from paceline.boxes.anchors import boxes_a_cell, default_boxes
from paceline.config.detection import BoxInput, SSDModel, grids
from paceline.config.errors import DataError
from paceline.config.plan import Plan
from paceline.config.recipe import Recipe
from paceline.config.system import System
from paceline.config.workloads import WORKLOADS
from paceline.data.box_sample import read_evaluation_sample, read_training_sample
from paceline.data.boxes import open_boxes
from paceline.data.decode import require_decoder
from paceline.data.loader import Loader, Repeated
from paceline.data.manifest import Manifest
from paceline.data.randomness import SampleRandom
from paceline.metrics.coco import GroundTruth, score_boxes, subset
from paceline.metrics.coco_pack import Share, join, pack, unpack
from paceline.models.detector import Detector
from paceline.models.ssd import SSD, initialise_ssd
from paceline.models.weights import WeightReport
from paceline.models.weights_ssd import load_ssd_weights
from paceline.tasks import photos
from paceline.tasks.box_predictions import METRICS, describe, to_detections
from paceline.tasks.memory import MemoryEstimate, estimate
from paceline.tasks.self_check import ground_truth_scores_one
from paceline.tasks.task import Evaluation, Place

DetectorRecipe = Recipe[SSDModel, BoxInput]
# Object slots of an image in the memory estimate: more than 99 in 100 images of COCO need.
TYPICAL_SLOTS = 64


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


class Detection:
    """The task; see `paceline.tasks.task.Task` for what each method promises."""

    headline = WORKLOADS["ssd"].headline
    metrics: Sequence[str] = METRICS
    benchmark = "ssd"

    def __init__(self, recipe: DetectorRecipe, manifest: Manifest, *, limit_train: int = 0, limit_val: int = 0) -> None:
        """Raises DataError where the annotations, handed back as detections, do not score 1."""
        require_decoder(recipe.input.decoder)
        self.recipe = recipe
        self.train, self.val = (open_boxes(manifest, split, recipe.input.exif) for split in (manifest.learnt, "val"))
        self.root = manifest.root_path
        wanted = self.train.usable.astype(bool)
        if not recipe.input.crowd:
            wanted &= self.train.crowd == 0
        self.wanted = wanted
        numbers = np.arange(len(self.train))
        if recipe.input.drop_empty:
            before = np.concatenate(([0], np.cumsum(wanted)))
            numbers = numbers[before[self.train.object_starts[1:]] > before[self.train.object_starts[:-1]]]
        if not len(numbers):
            raise DataError(
                f"{manifest.root_path}: none of its {len(self.train):,} training images has an object to learn.\n"
                "Annotate some of them, or train on images without objects as well: --input.no-drop-empty"
            )
        # Of any image, also of one that this run leaves out: the same data always has the same shapes.
        self.most_objects = photos.most_objects(wanted, self.train.object_starts)
        self.train_numbers = numbers[photos.spread(len(numbers), limit_train)]
        self.val_numbers = photos.spread(len(self.val), limit_val)
        self.train_images, self.val_images = len(self.train_numbers), len(self.val_numbers)
        self.classes: Sequence[str] = self.val.names
        self.category_ids: Sequence[int] = self.val.category_ids.tolist()
        self.truth: GroundTruth = subset(
            GroundTruth(**self.val.truth_arrays(), num_classes=len(self.val.names)), self.val_numbers
        )
        ground_truth_scores_one(self.truth, self.classes)
        self.is_target_data = photos.is_target_data(recipe, manifest, (len(numbers), len(self.val)))
        self.facts: Mapping[str, Any] = {
            "root": str(manifest.root_path),
            "manifest": str(manifest.folder),
            "hash": manifest.content_hash,
            "category_ids": list(self.category_ids),
            "train_images": self.train_images,
            "val_images": self.val_images,
            "train_images_left_out": len(self.train) - len(numbers),
        }

    def build(self, device: torch.device) -> nn.Module:
        """The initialised network with its loss, drawn on the CPU so that every machine gets the same weights."""
        model = build_detector(self.recipe, len(self.classes))
        generator = torch.Generator().manual_seed(self.recipe.seed)
        initialise_ssd(model.network, generator, zero_init_last_gamma=self.recipe.model.zero_init_last_gamma)
        return model.to(device)

    def load_weights(self, model: nn.Module, path: Path) -> WeightReport:
        """A ResNet for the trunk, the MLPerf reference's SSD, or our own; other classes get new class heads."""
        assert isinstance(model, Detector)
        return load_ssd_weights(model.network, path)

    def memory(self, system: System) -> MemoryEstimate:
        """What a step needs on one rank."""
        return detector_memory(self.recipe, system, len(self.classes))

    def train_loader(
        self, plan: Plan, system: System, place: Place, *, first: int, one_batch: bool
    ) -> Loader | Repeated:
        """Augmented batches from step `first` to the run's last; with one_batch, step 0's pixels again and again."""
        return photos.train_loader(
            self.train_numbers,
            self.read_train,
            partial(detection_batch, least=photos.fixed_objects(self.most_objects, place.device)),
            side=self.recipe.input.size,
            seed=self.recipe.seed,
            plan=plan,
            system=system,
            place=place,
            name=self.train.index.name,
            first=first,
            one_batch=one_batch,
        )

    def val_loader(self, batch: int, system: System, place: Place) -> Loader:
        """This rank's share of the validation photos."""
        return photos.val_loader(
            self.val_numbers,
            self.read_val,
            detection_batch,
            side=self.recipe.input.size,
            batch=batch,
            system=system,
            place=place,
            name=self.val.index.name,
        )

    def read_train(self, epoch: int, index: int, out: np.ndarray) -> Objects:
        """A random crop of training photo `index` into `out` (S, S, 3) uint8; -> the objects that stay in it."""
        rows = slice(self.train.object_starts[index], self.train.object_starts[index + 1])
        wanted = self.wanted[rows]
        return read_training_sample(
            self.train.index.read(index),
            self.train.index.name(index),
            self.train.boxes[rows][wanted],
            self.train.classes[rows][wanted],
            SampleRandom(self.recipe.seed, epoch, index),
            self.recipe.input,
            out,
        )

    def read_val(self, _: int, index: int, out: np.ndarray) -> Objects:
        """Validation photo `index`, resized, into `out`; its objects are not needed there."""
        read_evaluation_sample(self.val.index.read(index), self.val.index.name(index), self.recipe.input, out)
        return Objects(np.zeros((0, 4), np.float32), np.zeros(0, np.int64))

    def sample(self, epoch: int, number: int) -> tuple[np.ndarray, Objects]:
        """One training sample as the network sees it: pixels (S, S, 3) uint8 and its objects."""
        out = np.empty((self.recipe.input.size, self.recipe.input.size, 3), np.uint8)
        return out, self.read_train(epoch, int(self.train_numbers[number]), out)

    def new_score(self) -> BoxScore:
        """An empty score."""
        return BoxScore(self.val.heights, self.val.widths, self.recipe.model.detect.plus_one)

    def summarise(self, packed: Sequence[bytes]) -> Evaluation:
        """The twelve numbers over all ranks' photos, and what the report is drawn from."""
        found = join([unpack(share) for share in packed], self.val_numbers)
        scores = score_boxes(self.truth, found)
        names = [
            self.val.index.relative_name(int(number)).decode("utf-8", "surrogateescape") for number in self.val_numbers
        ]
        predictions = describe(self.truth, found, scores, names, self.val_numbers, self.classes, self.category_ids)
        return Evaluation(scores.metrics, len(self.val_numbers), predictions)

    def images_of_step(self, plan: Plan, step: int) -> list[str]:
        """Files of the whole global batch of a step."""
        return photos.images_of_step(self.train_numbers, self.recipe.seed, plan, step, self.train.index.name)

    def warm_up_batch(self, plan: Plan, device: torch.device) -> Batch:
        """Black photos without objects, with room for as many as any photo has."""
        images = photos.plain_images(plan, self.recipe.input.size)
        count, slots = len(images), slots_for(self.most_objects)
        labels, boxes = torch.zeros(count, slots, dtype=torch.int64), torch.zeros(count, slots, 4)
        return DetectionBatch(images=images, labels=labels, indices=labels[:, 0], boxes=boxes).to(device)


def build_detector(recipe: DetectorRecipe, classes: int) -> Detector:
    """The network of a recipe for `classes` classes, its weights not drawn yet."""
    settings, photo = recipe.model, recipe.input
    cells = grids(photo.size)
    network = SSD(
        settings.depth,
        classes,
        cells=cells,
        boxes_a_cell=boxes_a_cell(len(cells)),
        width=settings.width,
        extras=settings.extras,
        extras_norm=settings.extras_norm,
        heads=settings.heads,
        head_multiple=settings.head_multiple,
        frozen=settings.frozen,
        bn_eps=settings.bn_eps,
        bn_momentum=settings.bn_momentum,
    )
    with torch.device("cpu"):  # see models/normalise.py
        anchors = default_boxes(photo.size, cells, settings.scales[: len(cells) + 1])
    return Detector(network, anchors, mean=photo.mean, std=photo.std, settings=settings)


def detector_memory(recipe: DetectorRecipe, system: System, classes: int = 80) -> MemoryEstimate:
    """What a training step of this recipe needs on one rank."""
    side = recipe.input.size

    def batch(images: Tensor) -> Batch:
        labels = torch.empty(len(images), TYPICAL_SLOTS, dtype=torch.int64, device=images.device)
        boxes = torch.empty(len(images), TYPICAL_SLOTS, 4, device=images.device)
        return DetectionBatch(images=images, labels=labels, indices=labels[:, 0], boxes=boxes)

    build = partial(build_detector, recipe, classes)
    return estimate(build, (3, side, side), recipe, system, batch, remember=f"{classes} classes")
