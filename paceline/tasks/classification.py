"""Image classification: class-folder photos in, top-1 and top-5 out. Binds the recipe to one data set.

Letters: B images of a forward   S side of the network's input, pixels   K classes
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from paceline.batch import Batch, plain_images
from paceline.config.classification import PhotoInput, ResNetModel
from paceline.config.recipe import Recipe
from paceline.input.draw import Draw
from paceline.input.photo_sample import draw_evaluation_sample, draw_training_sample
from paceline.input.randomness import SampleRandom
from paceline.models.classifier import Classifier
from paceline.models.initialise import initialise
from paceline.models.trunk import Form, make_trunk
from paceline.store.header import Header
from paceline.store.index import open_split
from paceline.store.manifest import Manifest
from paceline.tasks.metrics.top_k import TopKScore, check_every_image_once, unpack
from paceline.tasks.shapes import Fit, OneShape
from paceline.tasks.task import Evaluation, Task
from paceline.tasks.workload import Workload
from paceline.weights.class_rows import Labels
from paceline.weights.load import WeightReport, load_weights
from paceline.weights.weight_file import WeightFile

ClassificationRecipe = Recipe[ResNetModel, PhotoInput]


class ClassificationScore:
    """One rank's share of an evaluation."""

    def __init__(self) -> None:
        self._score = TopKScore()

    def add(self, batch: Batch, outputs: Tensor) -> None:
        """outputs: (B, K) logits."""
        self._score.add(batch.indices, batch.labels, outputs)

    def pack(self) -> bytes:
        """For rank 0."""
        return self._score.pack()


class Classification(Task):
    """The task; see `paceline.tasks.task.Task` for what each method promises."""

    def __init__(
        self, workload: Workload, recipe: ClassificationRecipe, manifest: Manifest, *, limit_train=0, limit_val=0
    ) -> None:
        super().__init__(workload, recipe, manifest)
        self.train_index, self.val_index = open_split(manifest, manifest.learnt), open_split(manifest, "val")
        self.classes = manifest.class_names or manifest.classes
        self.settle(
            np.arange(len(self.train_index)),
            (limit_train, limit_val),
            class_order_hash=manifest.class_order_hash,
            class_folders=list(manifest.classes),
        )
        photo = recipe.input
        self.shapes = OneShape(photo.size, photo.eval_size, images=self.train_images, seed=recipe.seed)

    def draw_train(self, fit: Fit, epoch: int, index: int, header: Header, name: str) -> Draw:
        """RandomResizedCrop and flip."""
        random = SampleRandom(self.recipe.seed, epoch, index)
        return draw_training_sample(header, name, int(self.train_index.labels[index]), random, self.recipe.input)

    def draw_val(self, fit: Fit, _: int, index: int, header: Header, name: str) -> Draw:
        """As all tasks, with its class."""
        return super().draw_val(fit, 0, index, header, name)._replace(label=int(self.val_index.labels[index]))

    def new_score(self) -> ClassificationScore:
        """An empty score."""
        return ClassificationScore()

    def summarise(self, packed: Sequence[bytes]) -> Evaluation:
        """top1 and top5 over all ranks' photos, and each photo's best five classes."""
        result = unpack(packed)
        check_every_image_once(result.indices, self.val_numbers)
        images = [
            {
                "index": int(index),
                "file": self.val_index.path(int(index)),
                "label": int(label),
                "top5": [{"class": int(c), "score": round(float(s), 6)} for c, s in zip(classes, scores)],
            }
            for index, label, classes, scores in zip(result.indices, result.labels, result.classes, result.scores)
        ]
        predictions = {"kind": "classification", "classes": list(self.classes), "images": images}
        metrics = {"top1": result.accuracy(1), "top5": result.accuracy(5)}
        return Evaluation(metrics, len(result.indices), predictions)


def draw_for_evaluation(recipe: ClassificationRecipe, header: Header, name: str, _: tuple[int, int]) -> Draw:
    """The centre of a photo, of class 0."""
    return draw_evaluation_sample(header, name, 0, recipe.input)


def build_classifier(recipe: ClassificationRecipe, classes: int) -> Classifier:
    """The network of a recipe for `classes` classes, its weights not drawn yet."""
    settings, photo = recipe.model, recipe.input
    network = make_trunk(settings, Form(stem=settings.stem, stem_channels=settings.stem_channels))
    network.add_classes(classes)
    return Classifier(
        network,
        mean=photo.mean,
        std=photo.std,
        channels=settings.stem_channels,
        smoothing=settings.label_smoothing,
        convention=settings.smoothing,
    )


def initialise_classifier(recipe: ClassificationRecipe, model: Classifier, generator: torch.Generator) -> None:
    """Draw its weights, as the recipe says."""
    settings = recipe.model
    initialise(model.network, settings.init, generator, zero_init_last_gamma=settings.zero_init_last_gamma)


def load_classifier(model: Classifier, source: Path | WeightFile, labels: Labels) -> WeightReport:
    """A classifier of any form; classes that the file has too, by name, keep their rows of the last layer, others are new."""
    return load_weights(model.network, source, labels)


def black_photos(_: ClassificationRecipe, images: int, shape: tuple[int, int], __: int) -> Batch:
    """A batch of class 0."""
    zeros = torch.zeros(images, dtype=torch.int64)
    return Batch(images=plain_images(images, shape), labels=zeros, indices=zeros)
