"""The module that training wraps for SSD: pixels and objects in, losses out; pixels in, detections out; and SSD's loss.

Letters: B images   A default boxes   G object slots   K classes (0 is background)   P positives of an image
The loss is cross-entropy on positives and hard negatives, smooth L1 on positives. Only 4 P of the A default boxes have a gradient:
mining runs without a graph, and backward keeps no (B, A, K + 1) tensor besides the logits. Focal loss is Lin et al.'s, which takes all
default boxes, of a softmax. It is divided as the other, and as there an image without positives loses nothing.
Source: Liu et al. 2016, section 2.2; MLPerf reference SSD, base_model.py; Lin et al. 2017.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.config.ssd import SSDModel
from paceline.data.batch import DIVIDE_BY, Batch, DetectionBatch
from paceline.models.layers.common import Normalize
from paceline.models.ops.boxes import SSD_CODER, to_cxcywh, to_ltrb
from paceline.models.ops.dispatch import uses_static_shapes
from paceline.models.ops.matching import match
from paceline.models.ssd.model import SSD
from paceline.models.ssd.postprocess import postprocess_ssd


@dataclass(frozen=True)
class SSDLosses:
    """Sums over one image's default boxes, not divided by its positives."""

    classification: Tensor  # (B,) float32
    localisation: Tensor  # (B,) float32
    positives: Tensor  # (B,) int64, P


def normalize_per_image(losses: SSDLosses) -> tuple[Tensor, Tensor]:
    """Classification and localisation (B,) divided by each image's positives; 0 where an image has none.

    Their sum's mean over images is the reference's loss.
    """
    count = losses.positives.clamp(min=1)
    return losses.classification / count, losses.localisation / count


def ssd_loss(
    logits: Tensor,
    deltas: Tensor,
    boxes: Tensor,
    labels: Tensor,
    anchors: Tensor,
    settings: SSDModel,
    *,
    corners: Tensor | None = None,
    order: Tensor | None = None,
    weights: Tensor | None = None,
) -> SSDLosses:
    """Both losses of each image, computed in float32.

    logits     (B, A, K + 1); deltas (B, A, 4) as models/ops/boxes.py codes them
    boxes      (B, G, 4) ltrb fractions, labels (B, G) int64 1..K, 0 in empty slots; G may be 0
    anchors    (A, 4) cxcywh fractions
    corners    (A, 4) ltrb of the default boxes, for matching; None: of `anchors`
    settings   of matching, as models/ops/matching.py has them; negatives for each positive (rounded down), the hardest of each
               image first, or with a focal loss all default boxes of an image that has positives, each by (1 - p)^gamma,
               p the softmax of its target
    order      as models/ops/matching.py
    weights    (K + 1,) float32, of each target's loss; None: 1
    """
    corners = to_ltrb(anchors.float()) if corners is None else corners
    slots, positives = match(
        boxes,
        labels,
        corners,
        iou=settings.match_iou,
        match_rule=settings.match_rule,
        tie=settings.parity.tie,
        order=order,
        equal="last" if settings.parity.box_order.endswith("-last") else "first",
    )
    count = positives.sum(dim=1)
    if labels.shape[1] == 0:  # gather needs a slot to index
        boxes, labels = boxes.new_zeros(len(boxes), 1, 4), labels.new_zeros(len(labels), 1)
    targets = labels.gather(1, slots).masked_fill_(~positives, 0)
    background = background_loss(logits.detach())
    gamma = 0.0
    if settings.loss == "cross-entropy":
        chosen = positives | select_hardest(background, ~positives, (count * settings.negative_ratio).to(torch.int64))
    else:
        gamma = settings.focal_gamma
        chosen = (count > 0).unsqueeze(1).expand_as(positives)
    logsumexp = background + logits[..., 0].detach()
    factors = None if weights is None else weights[targets]
    classification = HardNegativeCrossEntropy.apply(logits, logsumexp, targets, chosen, factors, gamma)
    return SSDLosses(classification, box_loss(deltas.float(), boxes, slots, positives, anchors), count)


def background_loss(logits: Tensor) -> Tensor:
    """Cross-entropy of each default box if it were background: (B, A, K + 1) -> (B, A) float32, without a graph."""
    if uses_static_shapes(logits):
        return -logits.log_softmax(dim=2, dtype=torch.float32)[..., 0]
    # One image's probabilities fit into the cache.
    losses = logits.new_empty(logits.shape[:2], dtype=torch.float32)
    for image, rows in enumerate(logits):
        losses[image] = -rows.log_softmax(dim=1, dtype=torch.float32)[:, 0]
    return losses


def select_hardest(losses: Tensor, candidates: Tensor, wanted: Tensor) -> Tensor:
    """(B, A) bool: the `wanted` (B,) candidates of highest loss, or all where there are fewer. Of equals the first are taken.

    losses      (B, A) float32, 0 or more; candidates (B, A) bool
    """
    losses = losses.masked_fill(~candidates, -1.0)
    wanted = wanted.minimum(candidates.sum(dim=1)).unsqueeze(1)
    if uses_static_shapes(losses):
        # Not as below: torch 2.11 cannot compile a cumulative sum whose rows are padded.
        order = losses.sort(dim=1, descending=True, stable=True).indices
        return torch.zeros_like(candidates).scatter(1, order, torch.arange(losses.shape[1], device=losses.device) < wanted)
    most = min(losses.shape[1], max(1, int(wanted.max()))) if len(wanted) else 0
    if most == 0:
        return candidates
    bar = losses.topk(most, dim=1).values.gather(1, (wanted - 1).clamp_(min=0))
    above = losses > bar
    level = losses == bar
    room = wanted - above.sum(dim=1, keepdim=True)
    return above | (level & (level.cumsum(dim=1) <= room))


def box_loss(deltas: Tensor, boxes: Tensor, slots: Tensor, positives: Tensor, anchors: Tensor) -> Tensor:
    """Smooth L1 between predicted and true deltas, summed over each image's positives: (B,).

    deltas  (B, A, 4) float32, boxes (B, G, 4) ltrb, slots and positives (B, A) from `match`, anchors (A, 4) cxcywh
    """
    form = box_loss_fixed if uses_static_shapes(deltas) else box_loss_cpu
    return form(deltas, boxes, slots, positives, anchors)


def box_loss_cpu(deltas: Tensor, boxes: Tensor, slots: Tensor, positives: Tensor, anchors: Tensor) -> Tensor:
    image, anchor = positives.nonzero(as_tuple=True)
    true = SSD_CODER.encode(to_cxcywh(boxes[image, slots[image, anchor]]), anchors[anchor])
    wrong = F.smooth_l1_loss(deltas[image, anchor], true, reduction="none").sum(dim=1)
    return deltas.new_zeros(len(deltas)).index_add(0, image, wrong)


def box_loss_fixed(deltas: Tensor, boxes: Tensor, slots: Tensor, positives: Tensor, anchors: Tensor) -> Tensor:
    """`box_loss` with shapes that do not depend on the number of positives."""
    true = SSD_CODER.encode(to_cxcywh(boxes.gather(1, slots.unsqueeze(2).expand(-1, -1, 4))), anchors)
    wrong = F.smooth_l1_loss(deltas, true, reduction="none").sum(dim=2)
    return wrong.masked_fill(~positives, 0.0).sum(dim=1)


class HardNegativeCrossEntropy(torch.autograd.Function):
    """Sum of the chosen default boxes' cross-entropy or focal loss, whose gradient is computed straight from the logits.

    Another cross-entropy changes both methods; a further term beside it is plain autograd.
    """

    @staticmethod
    def forward(
        ctx, logits: Tensor, logsumexp: Tensor, targets: Tensor, chosen: Tensor, factors: Tensor | None, gamma: float
    ) -> Tensor:
        """(B, A, K + 1), (B, A) float32, (B, A) int64, (B, A) bool, (B, A) float32 or None, the focal loss's gamma -> (B,) float32."""
        losses = logsumexp - logits.gather(2, targets.unsqueeze(2)).squeeze(2).float()
        # The slope of a focal loss by its cross-entropy.
        slopes = factors
        if gamma:
            # Above 0, where a power below 1 has no finite slope.
            unsure = (-(-losses).expm1()).clamp(min=torch.finfo(torch.float32).eps)
            slopes = unsure**gamma + gamma * (1 - unsure) * unsure ** (gamma - 1) * losses
            slopes = slopes if factors is None else slopes * factors
            losses = losses * unsure**gamma
        if factors is not None:
            losses = losses * factors
        ctx.save_for_backward(logits, logsumexp, targets, chosen, slopes)
        return losses.masked_fill_(~chosen, 0.0).sum(dim=1)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        logits, logsumexp, targets, chosen, slopes = ctx.saved_tensors
        weight = grads[0].unsqueeze(1) * chosen
        weight = weight if slopes is None else weight * slopes
        if uses_static_shapes(logits):
            return softmax_minus_one_hot(logits, logsumexp, targets, weight), None, None, None, None, None
        rows = chosen.nonzero(as_tuple=True)
        grad = torch.zeros_like(logits)
        grad[rows] = softmax_minus_one_hot(logits[rows], logsumexp[rows], targets[rows], weight[rows])
        return grad, None, None, None, None, None


def softmax_minus_one_hot(logits: Tensor, logsumexp: Tensor, targets: Tensor, weight: Tensor) -> Tensor:
    """Cross-entropy's gradient times a weight: (..., K + 1), then three (...) -> (..., K + 1) in the logits' type."""
    weight, index = weight.unsqueeze(-1), targets.unsqueeze(-1)
    grad = (logits - logsumexp.unsqueeze(-1)).exp_().mul_(weight)
    return grad.scatter_(-1, index, grad.gather(-1, index) - weight).to(logits.dtype)


class SSDWithLoss(nn.Module):
    """Normalization, network, matching and loss in one, so that data parallel and the compiler see a whole forward."""

    anchors: Tensor
    corners: Tensor | None
    order: Tensor | None
    class_weights: Tensor | None

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
        class_weights: Tensor | None = None,
    ) -> None:
        """
        anchors  (A, 4) default boxes as center x, y, width, height, in cell-major order
        corners  (A, 4) their ltrb, to match by; None: computed from them
        order    (A,) int64: an object takes the first of equally good default boxes in this order; None: as they lie
        class_weights  (K + 1,) float32, in whose place the task's are copied; None: there are none
        """
        super().__init__()
        self.normalize = Normalize(mean, std)
        self.network = network
        self.settings = settings
        knobs = settings.detect
        # Overlaps are float32: "at least iou" means above the float before it.
        before = float(np.nextafter(np.float32(knobs.nms_iou), np.float32(-1)))
        self.suppressed_above = knobs.nms_iou if knobs.nms_rule == "gt" else before
        # Recipes have these numbers, checkpoints do not.
        self.register_buffer("anchors", anchors, persistent=False)
        self.register_buffer("corners", corners, persistent=False)
        self.register_buffer("order", order, persistent=False)
        self.register_buffer("class_weights", class_weights, persistent=False)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """-> "loss", "class" and "box", float32 scalars summed over the B images (paceline/data/batch.py).

        Each image's sums are divided by its positives. With loss_normalizer batch they are not, and the positives of this batch are
        added under DIVIDE_BY for the step, which knows the global batch.
        """
        assert isinstance(batch, DetectionBatch)
        settings = self.settings
        logits, deltas = self.network(self.normalize(batch.images))
        losses = ssd_loss(
            logits,
            deltas,
            batch.boxes,
            batch.labels,
            self.anchors,
            settings,
            corners=self.corners,
            order=self.order,
            weights=self.class_weights,
        )
        if settings.loss_normalizer == "batch":
            classes, boxes = losses.classification.sum(), losses.localisation.sum()
            return {"loss": classes + boxes, "class": classes, "box": boxes, DIVIDE_BY: losses.positives.sum()}
        classes, boxes = (part.sum() for part in normalize_per_image(losses))
        return {"loss": classes + boxes, "class": classes, "box": boxes}

    def predict(self, batch: Batch) -> Tensor:
        """-> (B, keep, 6) float32: left, top, right, bottom as fractions of the input, score, class 1..K; best first.

        Empty places are zeros.
        """
        logits, deltas = self.network(self.normalize(batch.images))
        rules, clip = self.settings.detect, self.settings.parity.clip_boxes
        return postprocess_ssd(logits.float(), deltas.float(), self.anchors, rules, self.suppressed_above, clip)
