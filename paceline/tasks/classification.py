"""Image classification: class-folder photos in, top-1 and top-5 out. Binds the recipe to one data set.

Letters: B images of a forward   S side of the network's input, pixels   K classes
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
from paceline.config.classification import PhotoInput, ResNetModel
from paceline.config.plan import Plan
from paceline.config.recipe import Recipe
from paceline.config.system import System
from paceline.config.workloads import WORKLOADS
from paceline.data.crop import random_resized_crop, resize_and_centre_crop
from paceline.data.decode import decode_crop, require_decoder
from paceline.data.header import read_header
from paceline.data.index import open_split
from paceline.data.loader import Loader, Repeated, labelled_batch
from paceline.data.manifest import Manifest
from paceline.data.randomness import SampleRandom
from paceline.metrics.top_k import TopKScore, check_every_image_once, unpack
from paceline.models.classifier import Classifier
from paceline.models.initialise import initialise
from paceline.models.resnet import ResNet
from paceline.models.weights import WeightReport, load_weights
from paceline.tasks import photos
from paceline.tasks.memory import MemoryEstimate, estimate
from paceline.tasks.task import Evaluation, Place

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


class Classification:
    """The task; see `paceline.tasks.task.Task` for what each method promises."""

    headline = WORKLOADS["classification"].headline
    metrics: Sequence[str] = ("top1", "top5")
    benchmark = "resnet"

    def __init__(
        self, recipe: ClassificationRecipe, manifest: Manifest, *, limit_train: int = 0, limit_val: int = 0
    ) -> None:
        require_decoder(recipe.input.decoder)
        self.recipe = recipe
        self.train, self.val = open_split(manifest, manifest.learnt), open_split(manifest, "val")
        self.train_numbers = photos.spread(len(self.train), limit_train)
        self.val_numbers = photos.spread(len(self.val), limit_val)
        self.train_images, self.val_images = len(self.train_numbers), len(self.val_numbers)
        self.classes: Sequence[str] = manifest.class_names or manifest.classes
        self.is_target_data = photos.is_target_data(recipe, manifest, (len(self.train), len(self.val)))
        self.facts: Mapping[str, Any] = {
            "root": str(manifest.root_path),
            "manifest": str(manifest.folder),
            "hash": manifest.content_hash,
            "class_order_hash": manifest.class_order_hash,
            "class_folders": list(manifest.classes),
            "train_images": self.train_images,
            "val_images": self.val_images,
        }

    def build(self, device: torch.device) -> nn.Module:
        """The initialised network with its loss, drawn on the CPU so that every machine gets the same weights."""
        model = build_classifier(self.recipe, len(self.classes))
        generator = torch.Generator().manual_seed(self.recipe.seed)
        settings = self.recipe.model
        initialise(model.network, settings.init, generator, zero_init_last_gamma=settings.zero_init_last_gamma)
        return model.to(device)

    def load_weights(self, model: nn.Module, path: Path) -> WeightReport:
        """torchvision's files, MXNet's, our own; the last layer may be new."""
        assert isinstance(model, Classifier)
        return load_weights(model.network, path)

    def memory(self, system: System) -> MemoryEstimate:
        """What a step needs on one rank."""
        return classifier_memory(self.recipe, system, len(self.classes))

    def train_loader(
        self, plan: Plan, system: System, place: Place, *, first: int, one_batch: bool
    ) -> Loader | Repeated:
        """Augmented batches from step `first` to the run's last; with one_batch, step 0's pixels again and again."""
        return photos.train_loader(
            self.train_numbers,
            self.read_train,
            labelled_batch,
            side=self.recipe.input.size,
            seed=self.recipe.seed,
            plan=plan,
            system=system,
            place=place,
            name=self.train.name,
            first=first,
            one_batch=one_batch,
        )

    def val_loader(self, batch: int, system: System, place: Place) -> Loader:
        """This rank's share of the validation photos."""
        return photos.val_loader(
            self.val_numbers,
            self.read_val,
            labelled_batch,
            side=self.recipe.input.eval_size,
            batch=batch,
            system=system,
            place=place,
            name=self.val.name,
        )

    def read_train(self, epoch: int, index: int, out: np.ndarray) -> int:
        """RandomResizedCrop and flip of training photo `index` into `out` (S, S, 3) uint8; -> its label."""
        data, name = self.train.read(index), self.train.name(index)
        settings = self.recipe.input
        header = read_header(data, name, settings.exif)
        random = SampleRandom(self.recipe.seed, epoch, index)
        window = random_resized_crop(
            header.height, header.width, settings.size, random, area=settings.area, aspect=settings.aspect
        )
        decode_crop(data, header, window, out, flip=random.coin(settings.flip), decoder=settings.decoder, name=name)
        return int(self.train.labels[index])

    def read_val(self, _: int, index: int, out: np.ndarray) -> int:
        """Resize and centre crop of validation photo `index` into `out`; -> its label."""
        data, name = self.val.read(index), self.val.name(index)
        read_for_evaluation(data, name, self.recipe.input, out)
        return int(self.val.labels[index])

    def sample(self, epoch: int, number: int) -> tuple[np.ndarray, int]:
        """Training image `number` of this run as the network sees it in this epoch, (S, S, 3) uint8, and its class."""
        side = self.recipe.input.size
        pixels = np.empty((side, side, 3), np.uint8)
        return pixels, self.read_train(epoch, int(self.train_numbers[number]), pixels)

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
                "file": self.val.name(int(index)),
                "label": int(label),
                "top5": [{"class": int(c), "score": round(float(s), 6)} for c, s in zip(classes, scores)],
            }
            for index, label, classes, scores in zip(result.indices, result.labels, result.classes, result.scores)
        ]
        predictions = {"kind": "classification", "classes": list(self.classes), "images": images}
        metrics = {"top1": result.accuracy(1), "top5": result.accuracy(5)}
        return Evaluation(metrics, len(result.indices), predictions)

    def images_of_step(self, plan: Plan, step: int) -> list[str]:
        """Files of the whole global batch of a step."""
        return photos.images_of_step(self.train_numbers, self.recipe.seed, plan, step, self.train.name)

    def warm_up_batch(self, plan: Plan, device: torch.device) -> Batch:
        """Black photos of class 0."""
        images = photos.plain_images(plan, self.recipe.input.size)
        zeros = torch.zeros(len(images), dtype=torch.int64)
        return Batch(images=images, labels=zeros, indices=zeros).to(device)


def read_for_evaluation(data: bytes, name: str, settings: PhotoInput, out: np.ndarray) -> None:
    """An encoded photo as evaluation and prediction see it, into `out` (eval_size, eval_size, 3) uint8."""
    header = read_header(data, name, settings.exif)
    window = resize_and_centre_crop(header.height, header.width, settings.eval_resize, settings.eval_size)
    decode_crop(data, header, window, out, flip=False, decoder=settings.decoder, name=name)


def build_classifier(recipe: ClassificationRecipe, classes: int) -> Classifier:
    """The network of a recipe for `classes` classes, its weights not drawn yet."""
    settings, photo = recipe.model, recipe.input
    network = ResNet(
        settings.depth,
        classes,
        width=settings.width,
        stem=settings.stem,
        stem_channels=settings.stem_channels,
        bn_eps=settings.bn_eps,
        bn_momentum=settings.bn_momentum,
    )
    return Classifier(
        network,
        mean=photo.mean,
        std=photo.std,
        channels=settings.stem_channels,
        smoothing=settings.label_smoothing,
        convention=settings.smoothing,
    )


def classifier_memory(recipe: ClassificationRecipe, system: System, classes: int = 1000) -> MemoryEstimate:
    """What a training step of this recipe needs on one rank."""
    side = recipe.input.size

    def batch(images: Tensor) -> Batch:
        none = torch.empty(len(images), dtype=torch.int64, device=images.device)
        return Batch(images, none, none)

    build = partial(build_classifier, recipe, classes)
    return estimate(build, (3, side, side), recipe, system, batch, remember=f"{classes} classes")
