"""Matching's fixed form as two kernels in Triton, in place of hundreds of launches that each pass over all pairs.

Letters as in matching.py: B images   G object slots of an image   A anchors or default boxes
The first kernel finds each object's best anchor, the second each anchor's best object. Both compute an IoU by the operations of
`pairwise_iou` in their order, without fused multiply-adds and with a correctly rounded quotient: overlaps, and with them all ties, are
those of the torch form to the bit, for boxes that are finite. Empty slots cost a read of their label.
"""

# pyright: reportArgumentType=false, reportOperatorIssue=false
# A kernel's text is Triton's language, whose types are not Python's.
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 512  # anchors of a program: few programs, and four for each thread
# What every launch asks for: a fused multiply-add rounds once where torch rounds twice.
OPTIONS = {"enable_fp_fusion": False, "num_warps": 4}
TINY = tl.constexpr(torch.finfo(torch.float32).tiny)
LAST_PLACE = tl.constexpr(2**31 - 1)


@torch.library.custom_op("paceline::overlaps", mutates_args=())
def overlaps(
    boxes: Tensor, labels: Tensor, anchors: Tensor, eligible: Tensor | None, every: bool, equal: str, tie: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Best IoU and object of each anchor, and the object whose best anchor it is.

    boxes     (B, G, 4) float32 ltrb, labels (B, G) int64, 0 marks an empty slot; anchors (A, 4) float32
    eligible  (B, A) bool, the others overlap nothing; None: all are
    every     all anchors that share an object's best IoU are its best; else the first of them is
    equal     which of the objects that an anchor overlaps equally it takes, "first" or "last"
    tie       which of the objects that share a best anchor gets it, "first" or "last"
    return    best IoU (B, A) float32; slots (B, A) int64; forced (B, A) int32, an object's slot or -1
    """
    (images, objects), count = labels.shape, len(anchors)
    best, slots, forced = _results(labels, anchors)
    if not best.numel():
        return best, slots, forced
    boxes, labels, anchors = boxes.contiguous(), labels.contiguous(), anchors.contiguous()
    chosen = None if eligible is None else eligible.contiguous()
    most = torch.zeros_like(labels)
    grid = (triton.cdiv(count, BLOCK), images)
    best_of_objects[grid](boxes, labels, anchors, chosen, most, objects, count, BLOCK, **OPTIONS)
    best_of_anchors[grid](
        boxes, labels, anchors, chosen, most, best, slots, forced, objects, count,
        every, equal == "last", tie == "last", BLOCK, **OPTIONS,
    )  # fmt: skip
    return best, slots, forced


@overlaps.register_fake
def _(
    boxes: Tensor, labels: Tensor, anchors: Tensor, eligible: Tensor | None, every: bool, equal: str, tie: str
) -> tuple[Tensor, Tensor, Tensor]:
    return _results(labels, anchors)


def _results(labels: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for what `overlaps` returns."""
    best = anchors.new_empty(len(labels), len(anchors))
    return best, torch.empty_like(best, dtype=torch.int64), torch.empty_like(best, dtype=torch.int32)


@triton.jit
def iou(l1, t1, r1, b1, l2, t2, r2, b2):
    """`pairwise_iou` of boxes.py, operation by operation."""
    width = tl.maximum(tl.minimum(r1, r2) - tl.maximum(l1, l2), 0.0)
    height = tl.maximum(tl.minimum(b1, b2) - tl.maximum(t1, t2), 0.0)
    shared = width * height
    area1 = tl.maximum(r1 - l1, 0.0) * tl.maximum(b1 - t1, 0.0)
    area2 = tl.maximum(r2 - l2, 0.0) * tl.maximum(b2 - t2, 0.0)
    return tl.div_rn(shared, tl.maximum(area1 + area2 - shared, TINY))


@triton.jit
def overlap_with(box, left, top, right, bottom, allowed):
    """IoU of the box at an address with a program's anchors, 0 where they are not allowed."""
    overlap = iou(tl.load(box), tl.load(box + 1), tl.load(box + 2), tl.load(box + 3), left, top, right, bottom)
    return tl.where(allowed, overlap, 0.0)


@triton.jit
def anchors_of(anchors, eligible, image, count, BLOCK: tl.constexpr):
    """A program's anchors: their places, edges, and which of them exist and are eligible."""
    location = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = location < count
    edge = anchors + 4 * location
    left, top = tl.load(edge, exists, 0.0), tl.load(edge + 1, exists, 0.0)
    right, bottom = tl.load(edge + 2, exists, 0.0), tl.load(edge + 3, exists, 0.0)
    allowed = exists
    if eligible is not None:
        allowed = exists & (tl.load(eligible + image * count + location, exists, 0) != 0)
    return location, left, top, right, bottom, allowed


@triton.jit
def rank_overlaps(overlap, location):
    """An int64 that orders by IoU, of equals the first place highest; 0 for no overlap. The bits of floats above 0 order like ints."""
    bits = overlap.to(tl.int32, bitcast=True).to(tl.int64)
    return tl.where(overlap > 0, (bits << 32) | (LAST_PLACE - location), 0)


@triton.jit
def best_of_objects(boxes, labels, anchors, eligible, most, objects, count, BLOCK: tl.constexpr):
    """Raise each object's entry of `most` (B, G), zeros at first, to the highest `rank_overlaps` of its overlaps: the order of
    programs, and so of the atomics, does not matter to a maximum."""
    image = tl.program_id(1).to(tl.int64)
    location, left, top, right, bottom, allowed = anchors_of(anchors, eligible, image, count, BLOCK)
    for slot in range(objects):
        row = image * objects + slot
        if tl.load(labels + row) > 0:
            overlap = overlap_with(boxes + 4 * row, left, top, right, bottom, allowed)
            highest = tl.max(rank_overlaps(overlap, location), axis=0)
            if highest > 0:
                tl.atomic_max(most + row, highest)


@triton.jit
def best_of_anchors(
    boxes, labels, anchors, eligible, most, best, slots, forced, objects, count,
    EVERY: tl.constexpr, EQUAL_LAST: tl.constexpr, TIE_LAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Walk over the objects in the order of their slots, and keep what an anchor has found best so far."""
    image = tl.program_id(1).to(tl.int64)
    location, left, top, right, bottom, allowed = anchors_of(anchors, eligible, image, count, BLOCK)
    result = tl.zeros([BLOCK], tl.float32)
    of = tl.zeros([BLOCK], tl.int32)
    if EQUAL_LAST:  # where nothing overlaps, all slots are equal
        of += tl.maximum(objects - 1, 0)
    by = tl.full([BLOCK], -1, tl.int32)
    for slot in range(objects):
        row = image * objects + slot
        if tl.load(labels + row) > 0:
            overlap = overlap_with(boxes + 4 * row, left, top, right, bottom, allowed)
            better = overlap > result
            if EQUAL_LAST:
                better = (overlap >= result) & (overlap > 0)
            of = tl.where(better, slot, of)
            result = tl.where(better, overlap, result)
            rank, highest = rank_overlaps(overlap, location), tl.load(most + row)
            forces = rank == highest
            if EVERY:
                forces = (rank >> 32) == (highest >> 32)
            forces = forces & (rank > 0)
            if not TIE_LAST:
                forces = forces & (by < 0)
            by = tl.where(forces, slot, by)
    exists = location < count
    to = image * count + location
    tl.store(best + to, result, exists)
    tl.store(slots + to, of.to(tl.int64), exists)
    tl.store(forced + to, by, exists)
