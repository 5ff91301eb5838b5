"""The module that training wraps for classification: pixels in, losses out; and pixels in, logits out.

Letters: B images   H, W pixels   K classes
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from paceline.batch import Batch
from paceline.models.classification_loss import Smoothing, smoothed_cross_entropy
from paceline.models.layers import Normalise
from paceline.models.trunk import Trunk


class Classifier(nn.Module):
    """Normalisation, network and loss in one, so that data parallel and the compiler see a whole step's forward."""

    def __init__(
        self,
        network: Trunk,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        channels: Literal[3, 4],
        smoothing: float,
        convention: Smoothing,
    ) -> None:
        """network: a trunk that `add_classes` has made a classifier; channels: as its stem takes them."""
        super().__init__()
        self.normalise = Normalise(mean, std, channels=channels)
        self.network = network
        self.smoothing = smoothing
        self.convention: Smoothing = convention

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """-> {"loss": cross-entropy with label smoothing, summed over the B images, float32 scalar}."""
        losses = smoothed_cross_entropy(self.predict(batch), batch.labels, self.smoothing, self.convention)
        return {"loss": losses.sum()}

    def predict(self, batch: Batch) -> Tensor:
        """-> (B, K) float32 logits."""
        return self.network.classify(self.normalise(batch.images))
