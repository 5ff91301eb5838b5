"""The module that training wraps for SSD: pixels and objects in, losses out; pixels in, detections out.

Letters: B images   A default boxes   K classes   G object slots
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor, nn

from paceline.batch import DIVIDE_BY, Batch, DetectionBatch
from paceline.boxes.ssd_detections import ssd_detections
from paceline.config.detection import SSDModel
from paceline.models.layers import Normalise
from paceline.models.ssd import SSD
from paceline.models.ssd_loss import per_image, ssd_loss


class Detector(nn.Module):
    """Normalisation, network, matching and loss in one, so that data parallel and the compiler see a whole forward."""

    anchors: Tensor
    corners: Tensor | None
    order: Tensor | None

    def __init__(
        self,
        network: SSD,
        anchors: Tensor,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        settings: SSDModel,
        corners: Tensor | None = None,
        order: Tensor | None = None,
    ) -> None:
        """
        anchors  (A, 4) default boxes as centre x, y, width, height, in cell-major order
        corners  (A, 4) their ltrb, to match by; None: computed from them
        order    (A,) int64: an object takes the first of equally good default boxes in this order; None: as they lie
        """
        super().__init__()
        self.normalise = Normalise(mean, std)
        self.network = network
        self.settings = settings
        knobs = settings.detect
        # Overlaps are float32: "at least iou" means above the float before it.
        before = float(np.nextafter(np.float32(knobs.iou), np.float32(-1)))
        self.suppressed_above = knobs.iou if knobs.overlap == "above" else before
        # Recipes have these numbers, checkpoints do not.
        self.register_buffer("anchors", anchors, persistent=False)
        self.register_buffer("corners", corners, persistent=False)
        self.register_buffer("order", order, persistent=False)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """-> "loss", "class" and "box", float32 scalars summed over the B images (paceline/batch.py).

        Each image's sums are divided by its positives. With loss_over batch they are not, and the positives of this batch are
        added under DIVIDE_BY for the step, which knows the global batch.
        """
        assert isinstance(batch, DetectionBatch)
        settings = self.settings
        logits, deltas = self.network(self.normalise(batch.images))
        losses = ssd_loss(
            logits,
            deltas,
            batch.boxes,
            batch.labels,
            self.anchors,
            iou=settings.match_iou,
            positive=settings.positive,
            tie=settings.tie,
            corners=self.corners,
            order=self.order,
            equal="last" if settings.box_order.endswith("-last") else "first",
            negatives=settings.negatives,
        )
        if settings.loss_over == "batch":
            classes, boxes = losses.classification.sum(), losses.localisation.sum()
            return {"loss": classes + boxes, "class": classes, "box": boxes, DIVIDE_BY: losses.positives.sum()}
        classes, boxes = (part.sum() for part in per_image(losses))
        return {"loss": classes + boxes, "class": classes, "box": boxes}

    def predict(self, batch: Batch) -> Tensor:
        """-> (B, keep, 6) float32: left, top, right, bottom as fractions of the input, score, class 1..K; best first.

        Empty places are zeros.
        """
        knobs = self.settings.detect
        logits, deltas = self.network(self.normalise(batch.images))
        return ssd_detections(
            logits.float(),
            deltas.float(),
            self.anchors,
            score_above=knobs.score_above,
            iou=self.suppressed_above,
            candidates=knobs.candidates,
            candidates_of=knobs.candidates_of,
            keep=knobs.keep,
            clip=knobs.clip,
        )
