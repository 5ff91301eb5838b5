"""Image classification: class-folder photos in, top-1 and top-5 out. Binds the recipe to one data set.

Letters: B images of a forward   S side of the network's input, pixels   K classes
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from paceline._utils.errors import RecipeError
from paceline.batch import MixedBatch, labelled_batch
from paceline.config.classification import PhotoRecipe, mixes
from paceline.input.draw import Draw, draw_training_photo
from paceline.input.randomness import SampleRandom
from paceline.models.mixed import mixed_images, partners_share
from paceline.store.header import Header
from paceline.store.index import open_split
from paceline.store.manifest import Manifest
from paceline.tasks.metrics.interval import accuracy_draws
from paceline.tasks.metrics.top_k import TopKScore, check_every_image_once, unpack
from paceline.tasks.shapes import Fit, OneShape
from paceline.tasks.task import Evaluation, Task
from paceline.tasks.workload import Workload


class Classification(Task):
    """The task; see `paceline.tasks.task.Task` for what each method promises."""

    def __init__(
        self, workload: Workload, recipe: PhotoRecipe, manifest: Manifest, *, limit_train=0, limit_val=0
    ) -> None:
        super().__init__(workload, recipe, manifest)
        self.train_index, self.val_index = open_split(manifest, manifest.learnt), open_split(manifest, "val")
        self.classes = manifest.class_names or manifest.classes
        self.choose_images(
            np.arange(len(self.train_index)),
            (limit_train, limit_val),
            class_order_hash=manifest.class_order_hash,
            class_folders=list(manifest.classes),
        )
        photo = recipe.input
        self.weigh(np.bincount(self.train_index.labels[self.train_numbers], minlength=len(self.classes)))
        order = self.sampled(np.arange(self.train_images), self.train_index.labels[self.train_numbers])
        self.shapes = OneShape(photo.size, photo.eval_size, images=self.train_images, seed=recipe.seed, order=order)

    def build(self, device: torch.device) -> nn.Module:
        """As `Task.build`. Raises RecipeError where photos are to be mixed and the network is one's own that does not."""
        model = super().build(device)
        if mixes(self.recipe.input) and not getattr(model, "mixes", False):
            raise RecipeError(
                f"--input.mixup and --input.cutmix: {type(model).__name__} does not mix photos. Leave both at 0, or mix as "
                "paceline.models.classifier.Classifier does, and set its `mixes`."
            )
        return model

    def draw_train(self, fit: Fit, epoch: int, index: int, header: Header, name: str) -> Draw:
        """RandomResizedCrop, flip, augmentation and mixing."""
        random = SampleRandom(self.recipe.seed, epoch, index)
        return draw_training_photo(header, name, int(self.train_index.labels[index]), random, self.recipe.input)

    def samples_of_step(self, step: int) -> Iterator[tuple[np.ndarray, Any]]:
        """As `Task.samples_of_step`; mixed with their partners, and the label says with what."""
        samples = super().samples_of_step(step)
        if not mixes(self.recipe.input):
            yield from samples
            return
        for pair in zip(samples, samples):
            images = torch.from_numpy(np.stack([pixels for pixels, _ in pair])).permute(0, 3, 1, 2)
            labels = [label for _, label in pair]
            batch = labelled_batch(images, labels, torch.zeros(2, dtype=torch.int64))
            assert isinstance(batch, MixedBatch)
            mixed = mixed_images(images.float(), batch.boxes, batch.shares).round().byte().permute(0, 2, 3, 1).numpy()
            shares = partners_share(batch.boxes, batch.shares, math.prod(images.shape[2:])).tolist()
            names = [self.classes[label.label] for label in labels]
            for pixels, own, other, share in zip(mixed, names, names[::-1], shares):
                yield pixels, f"{own} {1 - share:.0%}, {other}"

    def draw_val(self, fit: Fit, _: int, index: int, header: Header, name: str) -> Draw:
        """As `Task.draw_val`, with its class."""
        return super().draw_val(fit, 0, index, header, name)._replace(label=int(self.val_index.labels[index]))

    def new_score(self) -> TopKScore:
        """An empty score."""
        return TopKScore()

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
        right = {f"top{k}": result.right(k) for k in (1, 5)}
        metrics = {f"top{k}": result.accuracy(k) for k in (1, 5)}
        return Evaluation(metrics, len(result.indices), predictions, draws=partial(accuracy_draws, right))
