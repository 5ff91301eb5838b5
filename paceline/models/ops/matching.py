"""Assign objects to SSD's default boxes, to anchors (for the region proposal network) and to regions (for the heads).

Letters: B images   G object slots of an image (label 0: empty)   A anchors or default boxes   P regions   E blocks of anchors
A default box takes the object it overlaps most if that IoU is above (or at least) a threshold; besides, every object gets its best
default box whatever the IoU, so that no object stays without one. An anchor is positive from one IoU on and negative below another;
besides, every object gets the anchors that overlap it most, however little. All anchors that share an object's best IoU are its best,
and each of them learns the object that it overlaps most itself, which may be another one.
An object that touches no (eligible) anchor has no best anchor. torchvision's matcher would take IoU 0 for its best, and every anchor
that touches nothing would be positive. Anchors that are not eligible are no object's best either, as in GluonCV; the MLPerf
reference searches all anchors for the best and drops it afterwards, so an object may stay without.
Sources: Liu et al. 2016, section 2.2; tie rules of the MLPerf reference SSD ("gt", "last") and of TensorFlow's object detection
matcher as the Gaudi models use it ("ge", "first"); Ren et al. 2015, section 3.1.2; torchvision's Matcher with
allow_low_quality_matches; GluonCV's rpn_target.py.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from paceline.models.ops.boxes import pairwise_iou
from paceline.models.ops.dispatch import run_per_image_on_cpu, uses_static_shapes, uses_triton

NEITHER = -1  # beside 1 of a positive, 0 of a negative
# Fixed shapes: pairs of object and anchor at once; their IoU takes about half a gibibyte.
PAIRS_AT_ONCE = 2**25
# A CPU skips blocks of this many anchors that an object cannot touch. Neighbors in a row: 64 span about 100 pixels.
BLOCK = 64


def match_anchors(
    boxes: Tensor,
    labels: Tensor,
    anchors: Tensor,
    *,
    fg_iou: float,
    bg_iou: float,
    allow_low_quality_matches: bool,
    eligible: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The object of each anchor, and whether it is positive, negative or neither.

    boxes         (B, G, 4) ltrb pixels of the network's input; labels (B, G) int64, 0 marks an empty slot
    anchors       (A, 4) ltrb pixels
    fg_iou  positive from this IoU on
    bg_iou  negative below this IoU with every object; above 0
    allow_low_quality_matches  an object's best anchor is positive at any IoU (torchvision, MLPerf), or not (GluonCV)
    eligible      (B, A) bool: the others are neither, and are no object's best; None: all are eligible
    return        slots (B, A) int64, the object it overlaps most, the first of equals, 0 where it touches none;
                  kind (B, A) int8: 1 positive, 0 negative, -1 neither
    """
    boxes, anchors = boxes.float(), anchors.float()
    form = overlaps_triton if uses_triton(labels) else overlaps_fixed if uses_static_shapes(labels) else overlaps_cpu
    best, slots, forced = form(boxes, labels, anchors, eligible)
    return slots, label_anchors(best, forced, fg_iou, bg_iou, allow_low_quality_matches, eligible)


def label_anchors(
    best: Tensor, forced: Tensor, fg_iou: float, bg_iou: float, allow_low_quality_matches: bool, eligible: Tensor | None
) -> Tensor:
    """best (B, A) IoU of each anchor, forced (B, A) whether it is an object's best -> (B, A) int8, as `match_anchors`."""
    below = best < bg_iou
    positive = (best >= fg_iou) | forced
    if not allow_low_quality_matches:
        positive &= ~below
    else:
        below &= ~positive
    # positive and below exclude each other: 1, 0 and, where neither holds, -1.
    kind = positive.to(torch.int8) * 2 + below.to(torch.int8) - 1
    return kind if eligible is None else kind.masked_fill_(~eligible, NEITHER)


def overlaps_fixed(
    boxes: Tensor, labels: Tensor, anchors: Tensor, eligible: Tensor | None, pairs: int = PAIRS_AT_ONCE
) -> tuple[Tensor, Tensor, Tensor]:
    """Any device: fixed shapes, no host synchronization, objects in groups that bound the memory.

    return  best IoU (B, A), slots (B, A) int64, forced (B, A) bool: an object's best
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


def overlaps_triton(
    boxes: Tensor, labels: Tensor, anchors: Tensor, eligible: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """`overlaps_fixed` by our own kernels."""
    from paceline.models.ops.triton_matching import overlaps

    best, slots, forced = overlaps(boxes, labels, anchors, eligible, True, "first", "first")
    return best, slots, forced >= 0


def overlaps_cpu(boxes: Tensor, labels: Tensor, anchors: Tensor, eligible: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """`overlaps_fixed` on a CPU, with work that follows the objects and the anchors near them."""
    images, count = len(labels), len(anchors)
    blocks = -(-count // BLOCK)
    best = boxes.new_zeros(images, blocks, BLOCK)
    slots = torch.zeros_like(best, dtype=torch.int64)
    forced = torch.zeros_like(best, dtype=torch.bool)
    # The last anchor fills up the last block; the surplus is cut off at the end.
    padding = anchors[-1:].expand(blocks * BLOCK - count, -1)
    # Each edge contiguous in memory, as in pairwise_iou.
    edges = torch.stack(torch.cat((anchors, padding)).unbind(1)).unflatten(1, (blocks, BLOCK))
    low, high = edges[:2].amin(dim=2).T, edges[2:].amax(dim=2).T
    for image, row in enumerate(labels):
        allowed = None
        if eligible is not None:
            allowed = torch.nn.functional.pad(eligible[image], (0, len(padding))).unflatten(0, (blocks, BLOCK))
        filled = row.nonzero().squeeze(1)
        box = boxes[image].index_select(0, filled).unsqueeze(1)
        touches = ((low < box[..., 2:]) & (high > box[..., :2])).all(dim=2)
        for index, slot in enumerate(filled.tolist()):
            touched = touches[index].nonzero().squeeze(1)
            if len(touched):
                near = edges.index_select(1, touched)
                overlap = pairwise_iou(box[index], near.flatten(1).T).view(-1, BLOCK)
                if allowed is not None:
                    overlap.mul_(allowed.index_select(0, touched))
                update_best_overlaps(best[image], slots[image], forced[image], touched, overlap, slot)
    return best.flatten(1)[:, :count], slots.flatten(1)[:, :count], forced.flatten(1)[:, :count]


def update_best_overlaps(best: Tensor, slots: Tensor, forced: Tensor, rows: Tensor, overlap: Tensor, slot: int) -> None:
    """Enter one object's overlaps (E, BLOCK) with the blocks `rows` (E,) into an image's results, in place."""
    before = best.index_select(0, rows)
    slots.index_copy_(0, rows, slots.index_select(0, rows).masked_fill_(overlap > before, slot))
    best.index_copy_(0, rows, torch.maximum(before, overlap))
    most = overlap.max()
    if most > 0:
        forced.index_copy_(0, rows, forced.index_select(0, rows).logical_or_(overlap == most))


def is_inside_image(anchors: Tensor, sizes: Tensor, beyond: float = 0.0) -> Tensor:
    """(B, A) bool: anchors that do not cross the photo's border, by the rule of MLPerf's reference and GluonCV.

    anchors  (A, 4); right and bottom name the last pixel inside, so they must be below the photo's width and height
    sizes    (B, 2) height and width of each photo
    beyond   pixels by which right and bottom lie beyond the last pixel inside instead
    """
    left, top, right, bottom = anchors.unbind(1)
    height, width = sizes.unsqueeze(2).unbind(1)
    return (left >= 0) & (top >= 0) & (right - beyond < width) & (bottom - beyond < height)


def match_regions(boxes: Tensor, labels: Tensor, regions: Tensor, valid: Tensor, *, iou: float) -> tuple[Tensor, Tensor]:
    """The object of each region, and whether it has one.

    boxes    (B, G, 4); labels (B, G) int64, 0 marks an empty slot
    regions  (B, P, 4); valid (B, P) bool, the others are not positive
    iou      a region is positive from this IoU on; above 0
    return   slots (B, P) int64, the object it overlaps most, the first of equals, 0 where it touches none;
             positive (B, P) bool
    """
    boxes, regions = boxes.float(), regions.float()
    if uses_static_shapes(labels):
        return match_regions_fixed(boxes, labels, regions, valid, iou)
    slots = labels.new_zeros(valid.shape)
    positive = torch.zeros_like(valid)
    for one, used in run_per_image_on_cpu(labels):
        slots[one], positive[one] = match_regions_fixed(
            boxes[one, :used], labels[one, :used], regions[one], valid[one], iou
        )
    return slots, positive


def match_regions_fixed(boxes: Tensor, labels: Tensor, regions: Tensor, valid: Tensor, iou: float) -> tuple[Tensor, Tensor]:
    """`match_regions` with fixed shapes and no host synchronization."""
    if labels.shape[1] == 0:
        return torch.zeros_like(valid, dtype=torch.int64), torch.zeros_like(valid)
    overlap = pairwise_iou(boxes, regions).mul_((labels > 0).unsqueeze(2))
    best, slots = overlap.max(dim=1)
    return slots, valid & (best >= iou)


MatchRule = Literal["gt", "ge"]
Tie = Literal["last", "first"]


def match(
    boxes: Tensor,
    labels: Tensor,
    anchors: Tensor,
    *,
    iou: float = 0.5,
    match_rule: MatchRule = "gt",
    tie: Tie = "last",
    order: Tensor | None = None,
    equal: Tie = "first",
) -> tuple[Tensor, Tensor]:
    """The object of each default box, and whether it has one.

    boxes     (B, G, 4) ltrb fractions; labels (B, G) int64, 0 marks an empty slot, which neither matches nor forces
    anchors   (A, 4) ltrb fractions
    match_rule  whether the IoU must be greater than `iou` (gt), or at least `iou` (ge)
    tie       which of the objects that share a best default box gets it
    order     (A,) int64: of an object's equally good default boxes the first in this order is its best; None: as they lie
    equal     which of the objects that a default box overlaps equally it takes, where neither forces it
    return    slots (B, A) int64, the object of a positive default box (elsewhere some slot number below max(G, 1));
              positives (B, A) bool
    An object that touches no default box (one without area, above all) is left out: the reference would give it default box 0
    with an infinite target.
    """
    boxes, anchors = boxes.float(), anchors.float()
    if order is not None:
        # Match in that order and put back a few numbers a default box; reordering the overlaps would move G times as many.
        result = match(boxes, labels, anchors[order], iou=iou, match_rule=match_rule, tie=tie, equal=equal)
        slots, positives = (torch.empty_like(part).index_copy_(1, order, part) for part in result)
        return slots, positives
    if uses_static_shapes(labels):
        form = match_triton if uses_triton(labels) else match_fixed
        return form(boxes, labels, anchors, iou, match_rule, tie, equal)
    slots = labels.new_zeros(len(labels), len(anchors))
    positives = torch.zeros_like(slots, dtype=torch.bool)
    for one, used in run_per_image_on_cpu(labels):
        slots[one], positives[one] = match_fixed(
            boxes[one, :used], labels[one, :used], anchors, iou, match_rule, tie, equal
        )
    return slots, positives


def match_fixed(
    boxes: Tensor,
    labels: Tensor,
    anchors: Tensor,
    iou: float,
    match_rule: MatchRule,
    tie: Tie,
    equal: Tie = "first",
    pairs: int = PAIRS_AT_ONCE,
) -> tuple[Tensor, Tensor]:
    """`match` with work in proportion to G and no host synchronization; shapes depend on shapes only.

    pairs  images are matched in equal parts that have no more pairs of object and default box, which bounds the memory
    """
    images, objects = labels.shape
    if objects == 0 or len(anchors) == 0:
        slots = labels.new_zeros(images, len(anchors))
        return slots, torch.zeros_like(slots, dtype=torch.bool)
    if equal == "last":  # the first of the reversed slots
        turned: Tie = "first" if tie == "last" else "last"
        slots, positives = match_fixed(boxes.flip(1), labels.flip(1), anchors, iou, match_rule, turned, pairs=pairs)
        return objects - 1 - slots, positives
    at_once = max(1, pairs // (objects * len(anchors)))
    if images > at_once:
        step = -(-images // -(-images // at_once))
        parts = [
            match_fixed(boxes[k : k + step], labels[k : k + step], anchors, iou, match_rule, tie, pairs=pairs)
            for k in range(0, images, step)
        ]
        slots, positives = map(torch.cat, zip(*parts))
        return slots, positives
    filled = labels > 0
    overlap = pairwise_iou(boxes, anchors).masked_fill_(~filled.unsqueeze(-1), 0.0)
    best, slots = overlap.max(dim=1)
    positives = best > iou if match_rule == "gt" else best >= iou

    best_of_object, anchor = overlap.max(dim=2)
    forces = filled & (best_of_object > 0)
    number = torch.arange(objects, device=labels.device).expand(images, -1)
    # Of several objects that force one default box the highest or the lowest number stays; `nobody` loses to each.
    nobody, reduce = (-1, "amax") if tie == "last" else (objects, "amin")
    forced = torch.full_like(slots, nobody).scatter_reduce_(1, anchor, number.masked_fill(~forces, nobody), reduce)
    by_force = forced != nobody
    return torch.where(by_force, forced, slots), positives | by_force


def match_triton(
    boxes: Tensor, labels: Tensor, anchors: Tensor, iou: float, match_rule: MatchRule, tie: Tie, equal: Tie = "first"
) -> tuple[Tensor, Tensor]:
    """`match_fixed` by our own kernels."""
    from paceline.models.ops.triton_matching import overlaps

    best, slots, forced = overlaps(boxes, labels, anchors, None, False, equal, tie)
    by_force = forced >= 0
    positives = best > iou if match_rule == "gt" else best >= iou
    return torch.where(by_force, forced, slots), positives | by_force
