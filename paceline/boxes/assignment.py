"""Assign objects to anchors (for the region proposal network) and to regions (for the heads).

Letters: B images   G object slots of an image (label 0: empty)   A anchors   P regions   E blocks of anchors near an object
Boxes are ltrb pixels of the network's input.
An anchor is positive from one IoU on and negative below another; besides, every object gets the anchors that overlap it
most, however little, so that no object goes unseen. All anchors that share an object's best IoU are its best, and each
such anchor learns the object that it overlaps most ITSELF, which may be another one.
An object that touches no (eligible) anchor has no best anchor. torchvision's matcher would take IoU 0 for its best, and
every anchor that touches nothing would be positive.
Anchors that are not eligible are no object's best either, as in GluonCV; the MLPerf reference finds the best among all
anchors and drops it afterwards, so that an object may go without.
Sources: Ren et al. 2015, section 3.1.2; torchvision's Matcher with allow_low_quality_matches; GluonCV's rpn_target.py.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from paceline.boxes.forms import fixed_shapes, images_cpu
from paceline.boxes.geometry import pairwise_iou

BestAnchor = Literal["positive", "negative"]

NEITHER = -1  # beside 1 of a positive, 0 of a negative
# Fixed shapes: so many pairs of object and anchor at once; their IoU takes some half a gibibyte.
PAIRS_AT_ONCE = 2**25
# A CPU leaves out blocks of so many anchors that an object cannot touch. Neighbours in a row: 64 span some 100 pixels.
BLOCK = 64


def match_anchors(
    boxes: Tensor,
    labels: Tensor,
    anchors: Tensor,
    *,
    positive_iou: float,
    negative_iou: float,
    best_anchor: BestAnchor,
    eligible: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The object of each anchor, and whether it is positive, negative or neither.

    boxes         (B, G, 4)
    labels        (B, G) int64, 0 marks an empty slot
    anchors       (A, 4)
    positive_iou  positive from this IoU on
    negative_iou  negative below this IoU with every object; above 0
    best_anchor   an object's best anchor below negative_iou is positive (torchvision, MLPerf) or negative (GluonCV)
    eligible      (B, A) bool: the others are neither, and are no object's best; None: all are eligible
    return        slots (B, A) int64, the object it overlaps most, the first of equals; 0 where it touches none;
                  kind (B, A) int8: 1 positive, 0 negative, -1 neither
    """
    boxes, anchors = boxes.float(), anchors.float()
    form = overlaps_fixed if fixed_shapes(labels) else overlaps_cpu
    best, slots, forced = form(boxes, labels, anchors, eligible)
    return slots, kinds(best, forced, positive_iou, negative_iou, best_anchor, eligible)


def kinds(
    best: Tensor,
    forced: Tensor,
    positive_iou: float,
    negative_iou: float,
    best_anchor: BestAnchor,
    eligible: Tensor | None,
) -> Tensor:
    """best (B, A) IoU of each anchor, forced (B, A) whether it is some object's best -> (B, A) int8."""
    below = best < negative_iou
    positive = (best >= positive_iou) | forced
    if best_anchor == "negative":
        positive &= ~below
    else:
        below &= ~positive
    # positive and below exclude each other: 1, 0 and, where neither holds, -1.
    kind = positive.to(torch.int8) * 2 + below.to(torch.int8) - 1
    return kind if eligible is None else kind.masked_fill_(~eligible, NEITHER)


def overlaps_fixed(
    boxes: Tensor, labels: Tensor, anchors: Tensor, eligible: Tensor | None, pairs: int = PAIRS_AT_ONCE
) -> tuple[Tensor, Tensor, Tensor]:
    """Any device: fixed shapes, no host synchronisation, objects in groups that bound the memory.

    return  best IoU (B, A), slots (B, A) int64, forced (B, A) bool
    """
    images, objects = labels.shape
    best = boxes.new_zeros(images, len(anchors))
    slots = torch.zeros_like(best, dtype=torch.int64)
    forced = torch.zeros_like(best, dtype=torch.bool)
    step = max(1, pairs // max(1, images * len(anchors)))
    for first in range(0, objects if len(anchors) else 0, step):
        part = slice(first, first + step)
        overlap = pairwise_iou(boxes[:, part], anchors).mul_((labels[:, part] > 0).unsqueeze(2))
        if eligible is not None:
            overlap.mul_(eligible.unsqueeze(1))
        most = overlap.amax(dim=2, keepdim=True)
        forced |= ((overlap == most) & (most > 0)).any(dim=1)
        value, slot = overlap.max(dim=1)
        slots = torch.where(value > best, slot + first, slots)
        best = torch.maximum(best, value)
    return best, slots, forced


def overlaps_cpu(
    boxes: Tensor, labels: Tensor, anchors: Tensor, eligible: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The same on a CPU with work that follows the objects there are and the anchors near them.

    return  as overlaps_fixed
    """
    images, count = len(labels), len(anchors)
    blocks = -(-count // BLOCK)
    best = boxes.new_zeros(images, blocks, BLOCK)
    slots = torch.zeros_like(best, dtype=torch.int64)
    forced = torch.zeros_like(best, dtype=torch.bool)
    # The last block is filled up with the last anchor; what it gets there is cut off at the end.
    padding = anchors[-1:].expand(blocks * BLOCK - count, -1)
    # Each edge as one run of memory, as in pairwise_iou.
    edges = torch.stack(torch.cat((anchors, padding)).unbind(1)).unflatten(1, (blocks, BLOCK))
    low, high = edges[:2].amin(dim=2).T, edges[2:].amax(dim=2).T
    for image, row in enumerate(labels):
        allowed = None
        if eligible is not None:
            allowed = torch.nn.functional.pad(eligible[image], (0, len(padding))).unflatten(0, (blocks, BLOCK))
        filled = row.nonzero().squeeze(1)
        box = boxes[image].index_select(0, filled).unsqueeze(1)
        touches = ((low < box[..., 2:]) & (high > box[..., :2])).all(dim=2)
        for place, slot in enumerate(filled.tolist()):
            touched = touches[place].nonzero().squeeze(1)
            if len(touched):
                near = edges.index_select(1, touched)
                overlap = pairwise_iou(box[place], near.flatten(1).T).view(-1, BLOCK)
                if allowed is not None:
                    overlap.mul_(allowed.index_select(0, touched))
                take(best[image], slots[image], forced[image], touched, overlap, slot)
    return best.flatten(1)[:, :count], slots.flatten(1)[:, :count], forced.flatten(1)[:, :count]


def take(best: Tensor, slots: Tensor, forced: Tensor, rows: Tensor, overlap: Tensor, slot: int) -> None:
    """Enter one object's overlaps (E, BLOCK) with the blocks `rows` (E,) into an image's results, in place."""
    before = best.index_select(0, rows)
    slots.index_copy_(0, rows, slots.index_select(0, rows).masked_fill_(overlap > before, slot))
    best.index_copy_(0, rows, torch.maximum(before, overlap))
    most = overlap.max()
    if most > 0:
        forced.index_copy_(0, rows, forced.index_select(0, rows).logical_or_(overlap == most))


def inside_photo(anchors: Tensor, sizes: Tensor, beyond: float = 0.0) -> Tensor:
    """Anchors that do not cross the photo's border, as MLPerf's reference and GluonCV have it.

    anchors  (A, 4); right and bottom name the last pixel inside, so they must be below the photo's width and height
    sizes    (B, 2) height and width of each photo
    beyond   or they lie so many pixels beyond it
    return   (B, A) bool
    """
    left, top, right, bottom = anchors.unbind(1)
    height, width = sizes.unsqueeze(2).unbind(1)
    return (left >= 0) & (top >= 0) & (right - beyond < width) & (bottom - beyond < height)


def match_regions(
    boxes: Tensor, labels: Tensor, regions: Tensor, valid: Tensor, *, iou: float
) -> tuple[Tensor, Tensor]:
    """The object of each region, and whether it has one.

    boxes    (B, G, 4)
    labels   (B, G) int64, 0 marks an empty slot
    regions  (B, P, 4)
    valid    (B, P) bool; the others are not positive
    iou      a region is positive from this IoU on; above 0
    return   slots (B, P) int64, the object it overlaps most, the first of equals; 0 where it touches none;
             positive (B, P) bool
    """
    boxes, regions = boxes.float(), regions.float()
    if fixed_shapes(labels):
        return match_regions_fixed(boxes, labels, regions, valid, iou)
    slots = labels.new_zeros(valid.shape)
    positive = torch.zeros_like(valid)
    for one, used in images_cpu(labels):
        slots[one], positive[one] = match_regions_fixed(
            boxes[one, :used], labels[one, :used], regions[one], valid[one], iou
        )
    return slots, positive


def match_regions_fixed(
    boxes: Tensor, labels: Tensor, regions: Tensor, valid: Tensor, iou: float
) -> tuple[Tensor, Tensor]:
    """`match_regions` with fixed shapes and no host synchronisation."""
    if labels.shape[1] == 0:
        return torch.zeros_like(valid, dtype=torch.int64), torch.zeros_like(valid)
    overlap = pairwise_iou(boxes, regions).mul_((labels > 0).unsqueeze(2))
    best, slots = overlap.max(dim=1)
    return slots, valid & (best >= iou)
