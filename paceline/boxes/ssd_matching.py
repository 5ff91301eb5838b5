"""Match default boxes to objects.

Letters: B images   G object slots of an image (label 0: empty)   A default boxes
A default box takes the object it overlaps most if that IoU is above (or at least) a threshold; besides, every object
gets its best default box whatever the IoU, so that no object goes unseen.
Sources: Liu et al. 2016, section 2.2; tie rules of the MLPerf reference SSD ("above", "last") and of TensorFlow's
object detection matcher as the Gaudi models use it ("at_least", "first").
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from paceline.boxes.forms import fixed_shapes, images_cpu
from paceline.boxes.geometry import pairwise_iou

Positive = Literal["above", "at_least"]
Tie = Literal["last", "first"]


def match(
    boxes: Tensor,
    labels: Tensor,
    anchors: Tensor,
    *,
    iou: float = 0.5,
    positive: Positive = "above",
    tie: Tie = "last",
    order: Tensor | None = None,
    equal: Tie = "first",
) -> tuple[Tensor, Tensor]:
    """The object of each default box, and whether it has one.

    boxes     (B, G, 4) ltrb fractions
    labels    (B, G) int64, 0 marks an empty slot, which neither matches nor forces
    anchors   (A, 4) ltrb fractions
    iou       threshold
    positive  whether the IoU must be above the threshold or at least the threshold
    tie       which of the objects that share a best default box gets it
    order     (A,) int64: of an object's equally good default boxes the first in this order is its best; None: as they lie
    equal     which of the objects that a default box overlaps equally it takes, where neither forces it
    return    slots (B, A) int64, the object of a positive default box (elsewhere some slot number below max(G, 1));
              positives (B, A) bool
    An object that touches no default box (one without area, above all) is left out: the reference would hand it
    default box 0 with an infinite target.
    """
    boxes, anchors = boxes.float(), anchors.float()
    if order is not None:
        # Matched in that order and put back: a few numbers a default box, where the overlaps are G as many.
        found = match(boxes, labels, anchors[order], iou=iou, positive=positive, tie=tie, equal=equal)
        slots, positives = (torch.empty_like(part).index_copy_(1, order, part) for part in found)
        return slots, positives
    if fixed_shapes(labels):
        return match_fixed(boxes, labels, anchors, iou, positive, tie, equal)
    slots = labels.new_zeros(len(labels), len(anchors))
    positives = torch.zeros_like(slots, dtype=torch.bool)
    for one, used in images_cpu(labels):
        slots[one], positives[one] = match_fixed(
            boxes[one, :used], labels[one, :used], anchors, iou, positive, tie, equal
        )
    return slots, positives


def match_fixed(
    boxes: Tensor, labels: Tensor, anchors: Tensor, iou: float, positive: Positive, tie: Tie, equal: Tie = "first"
) -> tuple[Tensor, Tensor]:
    """`match` with work in proportion to G and no host synchronisation; shapes depend on shapes only."""
    images, objects = labels.shape
    if objects == 0 or len(anchors) == 0:
        slots = labels.new_zeros(images, len(anchors))
        return slots, torch.zeros_like(slots, dtype=torch.bool)
    if equal == "last":  # the first from behind
        turned: Tie = "first" if tie == "last" else "last"
        slots, positives = match_fixed(boxes.flip(1), labels.flip(1), anchors, iou, positive, turned)
        return objects - 1 - slots, positives
    filled = labels > 0
    overlap = pairwise_iou(boxes, anchors).masked_fill_(~filled.unsqueeze(-1), 0.0)
    best, slots = overlap.max(dim=1)
    positives = best > iou if positive == "above" else best >= iou

    best_of_object, anchor = overlap.max(dim=2)
    forces = filled & (best_of_object > 0)
    number = torch.arange(objects, device=labels.device).expand(images, -1)
    # Of several objects that force one default box the highest or the lowest number stays; `nobody` loses to each.
    nobody, reduce = (-1, "amax") if tie == "last" else (objects, "amin")
    forced = torch.full_like(slots, nobody).scatter_reduce_(1, anchor, number.masked_fill(~forces, nobody), reduce)
    by_force = forced != nobody
    return torch.where(by_force, forced, slots), positives | by_force
