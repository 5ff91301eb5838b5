"""The module that training wraps for classification (pixels in, losses or logits out), its loss, and the mixing of photos.

The loss has label smoothing in the two conventions that published results use, focal loss and class weights.
Letters: B images, of which 2i and 2i + 1 are partners   H, W pixels   K classes
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.config.resnet import ResNetModel
from paceline.data.batch import Batch, MixedBatch
from paceline.models.backbones.base import Backbone
from paceline.models.layers.common import Normalize

Smoothing = Literal["torch", "mxnet"]


def smoothed_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    smoothing: float,
    convention: Smoothing,
    *,
    gamma: float = 0.0,
    weights: Tensor | None = None,
) -> Tensor:
    """Cross-entropy of each image against its smoothed label, computed in float32.

    logits     (B, K) any floating type
    labels     (B,) int64, 0..K-1
    smoothing  0 for none
    torch: the true class gets 1 - smoothing + smoothing / K, each other smoothing / K (Szegedy et al. 2015).
    mxnet: the true class gets 1 - smoothing, each other smoothing / (K - 1): MXNet's SoftmaxOutput, used by MLPerf.
    gamma      of the focal loss: a class of probability p counts (1 - p)^gamma times (Lin et al. 2017, of a softmax); 0: once
    weights    (K,) float32, of each class's part, as torch's cross_entropy has them; None: 1
    return     (B,) float32, not divided by weights
    """
    classes = logits.shape[1]
    spread = smoothing
    if convention == "mxnet" and classes > 1:
        spread = smoothing * classes / (classes - 1)
    if not gamma:
        return F.cross_entropy(logits.float(), labels, weights, label_smoothing=spread, reduction="none")
    scores = logits.float().log_softmax(1)
    # Above 0, where a power below 1 has no finite slope; what such a class loses is 0 anyway.
    parts = -scores * (-scores.expm1()).clamp(min=torch.finfo(torch.float32).eps) ** gamma
    if weights is not None:
        parts = parts * weights
    return (1 - spread) * parts.gather(1, labels[:, None]).squeeze(1) + spread / classes * parts.sum(1)


# Mixing photos of a forward with their neighbors, by what data/transforms/augment.py drew for each, on the device,
# once they are normalized.


def swap_partners(values: Tensor) -> Tensor:
    """(B, ...) -> (B, ...): at each place what its partner has. B is even."""
    return values.unflatten(0, (-1, 2)).flip(1).flatten(0, 1)


def mix_images(images: Tensor, boxes: Tensor, shares: Tensor) -> Tensor:
    """Each image with its share of the partner's pixels inside its box.

    images  (B, C, H, W), any floating type
    boxes   (B, 4) int64, left, top, right, bottom, pixels
    shares  (B,) float32 in [0, 1]
    return  (B, C, H, W), in the same memory format
    """
    height, width = images.shape[2:]
    left, top, right, bottom = boxes[:, :, None].unbind(1)
    across, down = torch.arange(width, device=images.device), torch.arange(height, device=images.device)
    columns, rows = (across >= left) & (across < right), (down >= top) & (down < bottom)
    inside = rows[:, None, :, None] & columns[:, None, None, :]
    # lerp gives the exact pixels of one of the two where the weight is 0 or 1.
    return images.lerp(swap_partners(images), inside * shares.to(images.dtype)[:, None, None, None])


def mixed_fraction(boxes: Tensor, shares: Tensor, pixels: int) -> Tensor:
    """(B,) float32: the part of each image that is its partner's, and so the weight of the partner's label. pixels: H times W."""
    left, top, right, bottom = boxes.unbind(1)
    return shares * ((right - left) * (bottom - top) / pixels)


class ClassifierWithLoss(nn.Module):
    """Normalization, network and loss in one, so that data parallel and the compiler see a whole step's forward."""

    mixes = True  # the photos of a MixedBatch
    class_weights: Tensor | None

    def __init__(
        self,
        network: Backbone,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        settings: ResNetModel,
        class_weights: Tensor | None = None,
    ) -> None:
        """
        network  a trunk that `add_classes` has made a classifier
        class_weights  (K,) float32, in whose place the task's are copied; None: there are none
        """
        super().__init__()
        self.normalize = Normalize(mean, std, channels=settings.input_channels)
        self.network = network
        self.settings = settings
        # They follow from recipe and data; checkpoints have none.
        self.register_buffer("class_weights", class_weights, persistent=False)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """-> {"loss": cross-entropy or focal loss with label smoothing, summed over the B images, float32 scalar}.

        A mixed photo's is the mean of its own label's and its partner's, weighted by their parts of the picture.
        """
        logits = self.predict(batch)
        losses = self._losses(logits, batch.labels)
        if isinstance(batch, MixedBatch):
            share = mixed_fraction(batch.boxes, batch.shares, math.prod(batch.images.shape[2:]))
            losses = losses.lerp(self._losses(logits, swap_partners(batch.labels)), share)
        return {"loss": losses.sum()}

    def predict(self, batch: Batch) -> Tensor:
        """-> (B, K) float32 logits, of a MixedBatch for its mixed photos."""
        images = self.normalize(batch.images)
        if isinstance(batch, MixedBatch):
            images = mix_images(images, batch.boxes, batch.shares)
        return self.network.classify(images)

    def _losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        settings = self.settings
        more = {"gamma": settings.focal_gamma if settings.loss == "focal" else 0.0, "weights": self.class_weights}
        return smoothed_cross_entropy(logits, labels, settings.label_smoothing, settings.label_smoothing_style, **more)
