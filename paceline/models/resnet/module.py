"""The module that training wraps for classification: pixels in, losses out; and pixels in, logits out.

Letters: B images   H, W pixels   K classes
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from paceline.data.batch import Batch, MixedBatch
from paceline.models.backbones.base import Backbone
from paceline.models.layers.common import Normalize
from paceline.models.resnet.loss import Smoothing, smoothed_cross_entropy
from paceline.models.resnet.mixup import mix_images, mixed_fraction, swap_partners


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
        channels: Literal[3, 4],
        smoothing: float,
        convention: Smoothing,
        gamma: float = 0.0,
        class_weights: Tensor | None = None,
    ) -> None:
        """
        network   a trunk that `add_classes` has made a classifier
        channels  as its stem takes them
        smoothing, convention, gamma  see `smoothed_cross_entropy`
        class_weights  (K,) float32, in whose place the task's are copied; None: there are none
        """
        super().__init__()
        self.normalize = Normalize(mean, std, channels=channels)
        self.network = network
        self.smoothing = smoothing
        self.convention: Smoothing = convention
        self.gamma = gamma
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
        more = {"gamma": self.gamma, "weights": self.class_weights}
        return smoothed_cross_entropy(logits, labels, self.smoothing, self.convention, **more)
