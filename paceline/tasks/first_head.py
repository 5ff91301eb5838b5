"""The first weights of a classifier's last layer, fitted to the training photos behind a trunk from a file.

A linear layer that begins at random sends wrong gradients into a good trunk, and needs hundreds of steps that few photos do not give.
Fitted first, it begins where a linear probe ends (Kumar et al. 2022, "Fine-Tuning can Distort Pretrained Features").
Letters: N views   C features   K classes
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.models.classifier import Classifier
from paceline.tasks.classification import Classification
from paceline.tasks.task import spread

# Views of a photo, as its first epochs draw them; views in all; photos of a forward.
VIEWS, MOST_VIEWS, FORWARD = 2, 8192, 32
PENALTY, ITERATIONS = 0.01, 100


@torch.no_grad()
def fit_head(task: Classification, model: Classifier) -> str:
    """Fit the model's `fc` in place; -> what was done, in words. A function of weights, recipe and data alone."""
    photos = spread(task.train_images, min(task.train_images, MOST_VIEWS // VIEWS))
    device = model.network.fc.weight.device
    wanted = [(epoch, int(number)) for epoch in range(VIEWS) for number in photos]
    labels = torch.tensor([int(task.train_index.labels[task.train_numbers[number]]) for _, number in wanted])
    training = model.training
    model.eval()
    parts = []
    for first in range(0, len(wanted), FORWARD):
        pixels = np.stack([task.sample(epoch, number)[0] for epoch, number in wanted[first : first + FORWARD]])
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2).to(device)
        parts.append(model.network.pooled(model.normalise(images)).double().cpu())
    model.train(training)
    features = torch.cat(parts)
    weight, bias = linear_probe(features, labels, len(task.classes))
    right = (features @ weight.T + bias).argmax(1).eq(labels).double().mean()
    model.network.fc.weight.copy_(weight)
    model.network.fc.bias.copy_(bias)
    return f"the last layer begins fitted to {len(photos):,} training photos in {VIEWS} views each: {right:.1%} right"


def linear_probe(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Multinomial logistic regression on standardised features.

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
