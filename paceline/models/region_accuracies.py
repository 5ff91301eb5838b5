"""GluonCV's six training accuracies of Mask R-CNN: what each adds to a sum, and to the count that the sum is divided by.

Letters: B images   S sampled anchors   N rows (regions that were sampled, of all images)   K classes   M side of a mask
Sums and counts add up over a forward, the forwards of an interval and all ranks; their quotient is what is logged. Nothing here has
a gradient, and nothing waits for the device. Everything is float32 whatever comes in.
Two differ from a plain accuracy as GluonCV's do: regions that fill no place count as wrong, and the foreground's divisor is the sum
of soft targets. GluonCV adds the foreground up over the channels of all classes, of which only a region's own is trained; ours has
that one alone, which is what its source says it means.
Source: gluoncv/utils/metrics/rcnn.py, at 0.10.5.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

ACCURACIES = ("rpn_acc", "rpn_l1", "rcnn_acc", "rcnn_l1", "mask_acc", "mask_fg_acc")
# Where GluonCV's smooth L1 turns from quadratic to linear, whatever the losses do.
RPN_BETA, RCNN_BETA = 1 / 9, 1.0


def of_anchors(
    logits: Tensor, deltas: Tensor, targets: Tensor, positive: Tensor, taken: Tensor
) -> tuple[Tensor, Tensor]:
    """rpn_acc and rpn_l1."""
    return objectness_accuracy(logits, positive, taken), anchor_box_l1(deltas, targets, positive)


def of_regions(
    logits: Tensor, deltas: Tensor, targets: Tensor, labels: Tensor, taken: Tensor, trains_shape: Tensor, places: int
) -> tuple[Tensor, Tensor]:
    """rcnn_acc and rcnn_l1."""
    return class_accuracy(logits, labels, taken, places), region_box_l1(deltas, targets, labels, trains_shape)


def of_masks(logits: Tensor, targets: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """mask_acc and mask_fg_acc."""
    return mask_accuracy(logits, targets, positive), mask_foreground_accuracy(logits, targets, positive)


@torch.no_grad()
def objectness_accuracy(logits: Tensor, positive: Tensor, taken: Tensor) -> Tensor:
    """Sampled anchors told right: (B, S) logits, bool, bool -> (2,) sum and count."""
    return _pair((((logits >= 0) == positive) & taken).sum(), taken.sum())


@torch.no_grad()
def anchor_box_l1(deltas: Tensor, targets: Tensor, positive: Tensor) -> Tensor:
    """Smooth L1 of positive anchors: (B, S, 4), (B, S, 4), (B, S) bool -> (2,)."""
    loss = F.smooth_l1_loss(deltas.float(), targets, beta=RPN_BETA, reduction="none").sum(dim=-1)
    return _pair(loss.masked_fill(~positive, 0.0).sum(), positive.sum())


@torch.no_grad()
def class_accuracy(logits: Tensor, labels: Tensor, taken: Tensor, places: int) -> Tensor:
    """Regions whose class scores highest: (N, K + 1), (N,) int64, (N,) bool, and places for regions -> (2,)."""
    return _pair(((logits.argmax(dim=1) == labels) & taken).sum(), places)


@torch.no_grad()
def region_box_l1(deltas: Tensor, targets: Tensor, labels: Tensor, positive: Tensor) -> Tensor:
    """Smooth L1 of positive regions for their own class: (N, 4 * (K + 1)), (N, 4), (N,) int64, (N,) bool -> (2,)."""
    own = labels.view(-1, 1, 1).expand(-1, 1, 4)
    mine = deltas.float().unflatten(1, (-1, 4)).gather(1, own).squeeze(1)
    loss = F.smooth_l1_loss(mine, targets, beta=RCNN_BETA, reduction="none").sum(dim=1)
    return _pair(loss.masked_fill(~positive, 0.0).sum(), positive.sum())


@torch.no_grad()
def mask_accuracy(logits: Tensor, targets: Tensor, positive: Tensor) -> Tensor:
    """Points of positives' masks told right: (N, M, M), (N, M, M) in [0, 1], (N,) bool -> (2,)."""
    right = ((logits >= 0) == (targets >= 0.5)).sum(dim=(1, 2))
    return _pair((right * positive).sum(), positive.sum() * (targets.shape[1] * targets.shape[2]))


@torch.no_grad()
def mask_foreground_accuracy(logits: Tensor, targets: Tensor, positive: Tensor) -> Tensor:
    """Of the object's points those that are told so, as above; the count is the sum of the targets."""
    inside = targets >= 0.5
    right = ((logits >= 0) & inside).sum(dim=(1, 2))
    return _pair((right * positive).sum(), (targets.sum(dim=(1, 2)) * positive).sum())


def _pair(total: Tensor, count: Tensor | int) -> Tensor:
    """(2,) float32."""
    count = count.float() if isinstance(count, Tensor) else torch.full_like(total, count, dtype=torch.float32)
    return torch.stack((total.float(), count))
