"""The five loss terms of Mask R-CNN as sums over each image, the rows that they run over, and GluonCV's six training accuracies.

Letters: B images   N rows (anchors or regions that were sampled, of all images)   K classes   S side of a mask, or sampled anchors
    G object slots of an image
A row that counts has weight 1; rows of weight 0 fill fixed shapes. Everything is computed in float32.
Divisors are counts, taken over the images of a loss group (see `MaskRCNNWithLoss`): sampled anchors for both proposal terms, sampled
regions for class and box, positive regions for the mask (a mask's loss is already the mean over its S * S points).
Accuracies are (2,) float32, a sum and the count that divides it: both add up over a forward, the forwards of an interval and all
ranks, and their quotient is logged. They have no gradient and do not wait for the device. Two differ from a plain accuracy, as in
GluonCV: empty places for regions count as wrong, and the foreground's divisor is the sum of soft targets. GluonCV adds the
foreground up over the channels of all classes, of which only a region's own is trained; ours has that one alone, which GluonCV's
comments say it means.
Sources: He et al. 2017, section 3.1; torchvision's and detectron2's formulations agree on these sums. gluoncv/utils/metrics/rcnn.py,
at 0.10.5.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

TERMS = ("objectness", "rpn_box", "class", "box", "mask")


class Regions(NamedTuple):
    """Sampled regions as rows; a row of weight 0 fills a place."""

    image: Tensor  # (N,) int64, place in the batch; -1 where the weight is 0
    boxes: Tensor  # (N, 4) ltrb, pixels
    slots: Tensor  # (N,) int64, the object of a positive row
    positive: Tensor  # (N,) bool
    trains_shape: Tensor  # (N,) bool, positives whose box and mask train: at most an image's share of positives
    weight: Tensor  # (N,) float32


def rows_of_images(images: int, rows: int, device: torch.device) -> Tensor:
    """(images * rows,) int64: 0 `rows` times, then 1 `rows` times, ..."""
    return torch.arange(images, device=device).repeat_interleave(rows, output_size=images * rows)


def keep_rows(kept: Tensor | None, image: Tensor, boxes: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Image numbers and boxes of the kept rows; None: of all rows, with -1 for those that are not valid."""
    if kept is None:
        return image.masked_fill(~valid, -1), boxes
    return image[kept], boxes[kept]


def gather_objects(values: Tensor, image: Tensor, slots: Tensor) -> Tensor:
    """values (B, G, ...) at (image, slot) of each row: (N, ...)."""
    return values[image, slots]


def objectness_loss(logits: Tensor, positive: Tensor, taken: Tensor) -> Tensor:
    """Binary cross-entropy of sampled anchors: (B, S) logits, bool, bool -> (B,)."""
    loss = F.binary_cross_entropy_with_logits(logits.float(), positive.float(), reduction="none")
    return (loss * taken).sum(dim=1)


def anchor_box_loss(deltas: Tensor, targets: Tensor, positive: Tensor, beta: float) -> Tensor:
    """Smooth L1 over the positive anchors: (B, S, 4), (B, S, 4), (B, S) -> (B,)."""
    loss = F.smooth_l1_loss(deltas.float(), targets, beta=beta, reduction="none").sum(dim=2)
    return loss.masked_fill(~positive, 0.0).sum(dim=1)


def class_loss(logits: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """Cross-entropy of regions: (N, K + 1), (N,) int64, (N,) -> (N,)."""
    return F.cross_entropy(logits.float(), labels, reduction="none") * weight


def region_box_loss(deltas: Tensor, targets: Tensor, labels: Tensor, positive: Tensor, beta: float) -> Tensor:
    """Smooth L1 of positive regions for their own class: (N, 4 * (K + 1)), (N, 4), (N,) int64, (N,) bool -> (N,)."""
    own = labels.view(-1, 1, 1).expand(-1, 1, 4)
    mine = deltas.float().unflatten(1, (-1, 4)).gather(1, own).squeeze(1)
    loss = F.smooth_l1_loss(mine, targets, beta=beta, reduction="none").sum(dim=1)
    return loss.masked_fill(~positive, 0.0)


def mask_loss(logits: Tensor, targets: Tensor, weight: Tensor) -> Tensor:
    """Mean binary cross-entropy over a mask's points: (N, S, S), (N, S, S), (N,) -> (N,)."""
    loss = F.binary_cross_entropy_with_logits(logits.float(), targets, reduction="none")
    return loss.mean(dim=(1, 2)) * weight


def per_image(values: Tensor, image: Tensor, images: int) -> Tensor:
    """Sum the rows of each image: (N,) values, (N,) image numbers -> (images,)."""
    return values.new_zeros(images).index_add(0, image, values)


ACCURACIES = ("rpn_acc", "rpn_l1", "rcnn_acc", "rcnn_l1", "mask_acc", "mask_fg_acc")
# Where GluonCV's smooth L1 turns from quadratic to linear, whatever beta the losses have.
RPN_BETA, RCNN_BETA = 1 / 9, 1.0


def anchor_accuracies(
    logits: Tensor, deltas: Tensor, targets: Tensor, positive: Tensor, taken: Tensor
) -> tuple[Tensor, Tensor]:
    """rpn_acc and rpn_l1 of sampled anchors."""
    return objectness_accuracy(logits, positive, taken), anchor_box_l1(deltas, targets, positive)


def region_accuracies(
    logits: Tensor, deltas: Tensor, targets: Tensor, labels: Tensor, taken: Tensor, trains_shape: Tensor, indices: int
) -> tuple[Tensor, Tensor]:
    """rcnn_acc and rcnn_l1 of sampled regions."""
    return class_accuracy(logits, labels, taken, indices), region_box_l1(deltas, targets, labels, trains_shape)


def mask_accuracies(logits: Tensor, targets: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """mask_acc and mask_fg_acc of masks."""
    return mask_accuracy(logits, targets, positive), mask_foreground_accuracy(logits, targets, positive)


@torch.no_grad()
def objectness_accuracy(logits: Tensor, positive: Tensor, taken: Tensor) -> Tensor:
    """Sampled anchors classified correctly: (B, S) logits, bool, bool -> (2,) sum and count."""
    return _pair((((logits >= 0) == positive) & taken).sum(), taken.sum())


@torch.no_grad()
def anchor_box_l1(deltas: Tensor, targets: Tensor, positive: Tensor) -> Tensor:
    """Smooth L1 of positive anchors: (B, S, 4), (B, S, 4), (B, S) bool -> (2,)."""
    loss = F.smooth_l1_loss(deltas.float(), targets, beta=RPN_BETA, reduction="none").sum(dim=-1)
    return _pair(loss.masked_fill(~positive, 0.0).sum(), positive.sum())


@torch.no_grad()
def class_accuracy(logits: Tensor, labels: Tensor, taken: Tensor, indices: int) -> Tensor:
    """Regions whose class scores highest: (N, K + 1), (N,) int64, (N,) bool, and places for regions -> (2,)."""
    return _pair(((logits.argmax(dim=1) == labels) & taken).sum(), indices)


@torch.no_grad()
def region_box_l1(deltas: Tensor, targets: Tensor, labels: Tensor, positive: Tensor) -> Tensor:
    """`region_box_loss` with GluonCV's beta: -> (2,)."""
    return _pair(region_box_loss(deltas, targets, labels, positive, RCNN_BETA).sum(), positive.sum())


@torch.no_grad()
def mask_accuracy(logits: Tensor, targets: Tensor, positive: Tensor) -> Tensor:
    """Points of positives' masks classified correctly: (N, S, S), (N, S, S) in [0, 1], (N,) bool -> (2,)."""
    right = ((logits >= 0) == (targets >= 0.5)).sum(dim=(1, 2))
    return _pair((right * positive).sum(), positive.sum() * (targets.shape[1] * targets.shape[2]))


@torch.no_grad()
def mask_foreground_accuracy(logits: Tensor, targets: Tensor, positive: Tensor) -> Tensor:
    """The object's points that are classified as such, arguments as above; the count is the sum of the targets."""
    inside = targets >= 0.5
    right = ((logits >= 0) & inside).sum(dim=(1, 2))
    return _pair((right * positive).sum(), (targets.sum(dim=(1, 2)) * positive).sum())


def _pair(total: Tensor, count: Tensor | int) -> Tensor:
    """(2,) float32."""
    count = count.float() if isinstance(count, Tensor) else torch.full_like(total, count, dtype=torch.float32)
    return torch.stack((total.float(), count))
