"""SSD: photos with boxes in, detections and COCO's twelve numbers out. Binds the recipe to one data set.

Letters: B images of a forward   S side of the network's input, pixels   K classes   D places for detections
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from paceline.batch import Batch, DetectionBatch, plain_images, raster_boxes, slots_for
from paceline.boxes.default_boxes import boxes_a_cell, default_boxes, default_corners, tie_order
from paceline.config.detection import BoxInput, SSDModel, grids
from paceline.config.recipe import Recipe
from paceline.input.box_sample import draw_evaluation_sample, draw_training_sample
from paceline.input.draw import Draw
from paceline.input.randomness import SampleRandom
from paceline.models.detector import Detector
from paceline.models.ssd import SSD, initialise_ssd
from paceline.models.trunk import Form, make_trunk
from paceline.store.header import Header
from paceline.store.manifest import Manifest
from paceline.tasks.box_predictions import describe, to_detections
from paceline.tasks.metrics.coco import score_boxes
from paceline.tasks.metrics.coco_pack import Share, join, pack, unpack
from paceline.tasks.objects import ObjectTask
from paceline.tasks.shapes import Fit, OneShape
from paceline.tasks.task import Evaluation
from paceline.tasks.workload import Workload
from paceline.weights.class_rows import Labels
from paceline.weights.load import WeightReport
from paceline.weights.load_ssd import load_ssd_weights
from paceline.weights.weight_file import WeightFile

DetectorRecipe = Recipe[SSDModel, BoxInput]


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
        self, workload: Workload, recipe: DetectorRecipe, manifest: Manifest, *, limit_train=0, limit_val=0
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
        return draw_training_sample(header, name, boxes, classes, random, self.recipe.input)

    def new_score(self) -> BoxScore:
        """An empty score."""
        return BoxScore(self.val.heights, self.val.widths, self.recipe.model.detect.plus_one)

    def summarise(self, packed: Sequence[bytes]) -> Evaluation:
        """The twelve numbers over all ranks' photos, and what the report is drawn from."""
        found = join([unpack(share) for share in packed], self.val_numbers)
        scores = score_boxes(self.truth, found)
        predictions = describe(
            self.truth, found, scores, self.val_files(), self.val_numbers, self.classes, self.category_ids
        )
        return Evaluation(scores.metrics, len(self.val_numbers), predictions)


def draw_for_evaluation(recipe: DetectorRecipe, header: Header, name: str, _: tuple[int, int]) -> Draw:
    """The whole photo; its objects are not needed there."""
    return draw_evaluation_sample(header, name, recipe.input)


def build_detector(recipe: DetectorRecipe, classes: int) -> Detector:
    """The network of a recipe for `classes` classes, its weights not drawn yet."""
    settings, photo = recipe.model, recipe.input
    cells = grids(photo.size)
    network = SSD(
        make_trunk(settings, Form(stride=8)),
        classes,
        cells=cells,
        boxes_a_cell=boxes_a_cell(len(cells)),
        extras=settings.extras,
        extras_norm=settings.extras_norm,
        heads=settings.heads,
        head_multiple=settings.head_multiple,
        frozen=settings.frozen,
        padding=settings.padding,
        bn_eps=settings.bn_eps,
        bn_momentum=settings.bn_momentum,
    )
    with torch.device("cpu"):  # see models/normalise.py
        scales = settings.scales[: len(cells) + 1]
        anchors, order = default_boxes(photo.size, cells, scales), tie_order(settings.box_order, cells)
        corners = default_corners(photo.size, cells, scales) if settings.box_corners == "float64" else None
    return Detector(network, anchors, mean=photo.mean, std=photo.std, settings=settings, corners=corners, order=order)


def initialise_detector(recipe: DetectorRecipe, model: Detector, generator: torch.Generator) -> None:
    """Draw its weights, as the recipe says."""
    settings = recipe.model
    initialise_ssd(
        model.network, generator, zero_init_last_gamma=settings.zero_init_last_gamma, new_bias=settings.new_bias
    )


def load_detector(model: Detector, source: Path | WeightFile, labels: Labels) -> WeightReport:
    """A classifier for the trunk, or an SSD of any form; classes that the file has too, by name, keep their rows."""
    return load_ssd_weights(model.network, source, labels)


def crowded_photos(_: DetectorRecipe, images: int, shape: tuple[int, int], slots: int) -> Batch:
    """A batch that is full of objects."""
    boxes = raster_boxes(slots_for(slots)).expand(images, -1, -1).contiguous()
    labels = torch.ones(boxes.shape[:2], dtype=torch.int64)
    return DetectionBatch(images=plain_images(images, shape), labels=labels, indices=labels[:, 0], boxes=boxes)
