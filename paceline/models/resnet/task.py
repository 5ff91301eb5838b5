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
import torch.nn.functional as F
from torch import Tensor, nn

from paceline._utils.errors import RecipeError
from paceline.config.resnet import PhotoRecipe, has_mixing
from paceline.data.batch import Batch, MixedBatch, MixedClass, gray_images, labeled_batch
from paceline.data.index.index import open_split
from paceline.data.index.manifest import Manifest
from paceline.data.loader.sample_rng import SampleRng
from paceline.data.transforms.decode import SampleSpec
from paceline.data.transforms.image_io import Header
from paceline.data.transforms.sample import evaluation_spec, sample_training_spec
from paceline.models.batch_shapes import ResizedShape, Shape, SquareShapes
from paceline.models.datamodule import DataModule, select_evenly
from paceline.models.metrics.bootstrap import resample_accuracy
from paceline.models.metrics.top_k import TopKScore, check_every_image_once, unpack_top_k
from paceline.models.resnet.loss import ClassifierWithLoss, mix_images, mixed_fraction
from paceline.models.task import EvalResult, Evaluator


class ClassificationEvaluator(Evaluator):
    """Top-1 and top-5 accuracy; see `Evaluator` for what each method promises."""

    def new_score(self) -> TopKScore:
        """An empty score."""
        return TopKScore()

    def summarize(self, packed: Sequence[bytes]) -> EvalResult:
        """top1 and top5 over all ranks' photos, and each photo's best five classes."""
        result = unpack_top_k(packed)
        check_every_image_once(result.indices, self.data.val_numbers)
        images = [
            {
                "index": int(index),
                "file": self.data.val_index.path(int(index)),
                "label": int(label),
                "top5": [{"class": int(c), "score": round(float(s), 6)} for c, s in zip(classes, scores)],
            }
            for index, label, classes, scores in zip(result.indices, result.labels, result.classes, result.scores)
        ]
        predictions = {"kind": "classification", "classes": list(self.data.classes), "images": images}
        right = {f"top{k}": result.right(k) for k in (1, 5)}
        metrics = {f"top{k}": result.accuracy(k) for k in (1, 5)}
        return EvalResult(metrics, len(result.indices), predictions, draws=partial(resample_accuracy, right))


class ClassificationData(DataModule):
    """Photos with one class each; see `DataModule` for what each method promises."""

    batch, evaluator = staticmethod(labeled_batch), ClassificationEvaluator

    def __init__(self, recipe: PhotoRecipe, manifest: Manifest, limits: tuple[int, int]) -> None:
        super().__init__(recipe, manifest, limits)
        self.train_index, self.val_index = open_split(manifest, manifest.learnt), open_split(manifest, "val")
        self.classes = manifest.class_names or manifest.classes
        self.choose_images(
            np.arange(len(self.train_index)),
            class_order_hash=manifest.class_order_hash,
            class_folders=list(manifest.classes),
        )
        photo = recipe.input
        self.weigh(np.bincount(self.train_index.labels[self.train_numbers], minlength=len(self.classes)))
        order = self.sampled(np.arange(self.train_images), self.train_index.labels[self.train_numbers])
        self.shapes = SquareShapes(
            photo.image_size, photo.eval_crop_size, images=self.train_images, seed=recipe.seed, order=order
        )

    def setup(self, model: nn.Module) -> None:
        """As `DataModule.setup`. Raises RecipeError where photos are to be mixed and the network does not mix them."""
        super().setup(model)
        if has_mixing(self.recipe.input) and not getattr(model, "mixes", False):
            raise RecipeError(
                f"--input.mixup-alpha and --input.cutmix-alpha: {type(model).__name__} does not mix images. Set both to 0, "
                "or mix images as paceline.models.resnet.loss.ClassifierWithLoss does, and set its `mixes`."
            )

    @staticmethod
    def dummy_batch(recipe: PhotoRecipe, images: int, shape: Shape, slots: int) -> Batch:
        """Black photos of class 0; mixed, half of each is its partner's."""
        half = MixedClass(0, (0, 0, shape[1], shape[0]), 0.5)
        labels = [half] * images if has_mixing(recipe.input) else [0] * images
        return labeled_batch(gray_images(images, shape), labels, torch.zeros(images, dtype=torch.int64))

    @staticmethod
    def draw_eval(recipe: PhotoRecipe, header: Header, name: str, shape: Shape) -> SampleSpec:
        """The center of a photo, of class 0."""
        return evaluation_spec(header, name, 0, recipe.input)

    def draw_train(self, fit: ResizedShape, epoch: int, index: int, header: Header, name: str) -> SampleSpec:
        """RandomResizedCrop, flip, augmentation and mixing."""
        random = SampleRng(self.recipe.seed, epoch, index)
        return sample_training_spec(header, name, int(self.train_index.labels[index]), random, self.recipe.input)

    def samples_of_step(self, step: int) -> Iterator[tuple[np.ndarray, Any]]:
        """As `DataModule.samples_of_step`; mixed with their partners, and the label says with what."""
        samples = super().samples_of_step(step)
        if not has_mixing(self.recipe.input):
            yield from samples
            return
        for pair in zip(samples, samples):
            images = torch.from_numpy(np.stack([pixels for pixels, _ in pair])).permute(0, 3, 1, 2)
            labels = [label for _, label in pair]
            batch = labeled_batch(images, labels, torch.zeros(2, dtype=torch.int64))
            assert isinstance(batch, MixedBatch)
            mixed = mix_images(images.float(), batch.boxes, batch.shares).round().byte().permute(0, 2, 3, 1).numpy()
            shares = mixed_fraction(batch.boxes, batch.shares, math.prod(images.shape[2:])).tolist()
            names = [self.classes[label.label] for label in labels]
            for pixels, own, other, share in zip(mixed, names, names[::-1], shares):
                yield pixels, f"{own} {1 - share:.0%}, {other}"

    def draw_val(self, fit: ResizedShape, _: int, index: int, header: Header, name: str) -> SampleSpec:
        """As `DataModule.draw_val`, with its class."""
        return super().draw_val(fit, 0, index, header, name)._replace(label=int(self.val_index.labels[index]))


# The first weights of a classifier's last layer, fitted to the training photos behind a trunk from a file.
#
# A linear layer that begins at random sends wrong gradients into a good trunk, and needs more steps than few photos give.
# Fitted first, it begins where a linear probe ends (Kumar et al. 2022, "Fine-Tuning can Distort Pretrained Features").
# Letters: N views   C features   K classes

# Views of a photo, as its first epochs draw them; views in all; photos of a forward.
VIEWS, MAX_VIEWS, FORWARD = 2, 8192, 32
PENALTY, ITERATIONS = 0.01, 100


@torch.no_grad()
def fit_linear_probe(data: ClassificationData, model: ClassifierWithLoss) -> str:
    """Fit the model's `fc` in place; -> what was done, in words. It depends only on weights, recipe and data."""
    photos = select_evenly(data.train_images, min(data.train_images, MAX_VIEWS // VIEWS))
    device = model.network.fc.weight.device
    wanted = [(epoch, int(number)) for epoch in range(VIEWS) for number in photos]
    labels = torch.tensor([int(data.train_index.labels[data.train_numbers[number]]) for _, number in wanted])
    training = model.training
    model.eval()
    parts = []
    for first in range(0, len(wanted), FORWARD):
        pixels = np.stack([data.sample(epoch, number)[0] for epoch, number in wanted[first : first + FORWARD]])
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2).to(device)
        parts.append(model.network.pooled(model.normalize(images)).double().cpu())
    model.train(training)
    features = torch.cat(parts)
    weight, bias = linear_probe(features, labels, len(data.classes))
    right = (features @ weight.T + bias).argmax(1).eq(labels).double().mean()
    model.network.fc.weight.copy_(weight)
    model.network.fc.bias.copy_(bias)
    return (
        f"the last layer is initialized by a linear probe on {len(photos):,} training images in {VIEWS} views each, "
        f"with accuracy {right:.1%}"
    )


def linear_probe(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Multinomial logistic regression on standardized features.

    features  (N, C) float64; labels (N,) int64, 0..classes - 1
    return    weight (classes, C) and bias (classes,) float64, for the features as they are; a class without a view gets a low bias
    """
    mean, scale = features.mean(0), features.std(0, correction=0)
    scale = torch.where(scale > 0, scale, 1.0)
    inputs = (features - mean) / scale
    both = torch.zeros(classes, features.shape[1] + 1, dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS([both], max_iter=ITERATIONS, line_search_fn="strong_wolfe")

    @torch.enable_grad()
    def loss() -> Tensor:
        solver.zero_grad()
        weight, bias = both[:, :-1], both[:, -1]
        value = F.cross_entropy(inputs @ weight.T + bias, labels) + PENALTY / 2 * weight.square().sum()
        value.backward()
        return value

    solver.step(loss)
    weight = both.detach()[:, :-1] / scale
    return weight, both.detach()[:, -1] - weight @ mean
