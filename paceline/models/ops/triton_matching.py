"""The fixed forms of matching and, below, of suppression, as two kernels in Triton each.

Matching takes the place of hundreds of launches that each pass over all pairs.
Letters as in matching.py: B images   G object slots of an image   A anchors or default boxes
The first kernel finds each object's best anchor, the second each anchor's best object. Both compute an IoU by the operations of
`pairwise_iou` in their order, without fused multiply-adds and with a correctly rounded quotient: overlaps, and with them all ties, are
those of the torch form to the bit, for boxes that are finite. Empty slots cost a read of their label.
"""

# A kernel's text is Triton's language, whose types are not Python's.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
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


# Suppression's fixed form as two kernels in Triton, in place of rounds of launches over all lists.
#
# Letters: L lists   C boxes of a list, best first   W words of 32 bits, one bit for each of a list's boxes
# The first kernel notes for each box which later ones it overlaps, a bit each. The second walks each list once from the best box on, a
# word at a time. Overlaps are those of `pairwise_iou` to the bit, as above, and every chain is settled.

ROWS = 64  # boxes whose words a program of the first kernel makes
WIDE = 128  # words that a warp of the second kernel holds, four to a thread


@torch.library.custom_op("paceline::keep_best", mutates_args=())
def keep_best(boxes: Tensor, valid: Tensor, iou: float, classes: Tensor | None) -> Tensor:
    """(..., C, 4) float32 ltrb, (..., C) bool, (..., C) int64 or None -> (..., C) bool, `nms_fixed`'s first answer."""
    kept = torch.empty_like(valid, memory_format=torch.contiguous_format)
    if not kept.numel():
        return kept
    count = valid.shape[-1]
    lists, words = kept.numel() // count, triton.cdiv(count, 32)
    boxes, valid = boxes.contiguous(), valid.contiguous()
    classes = None if classes is None else classes.expand_as(valid).contiguous()
    beats = torch.empty(lists, count, words, dtype=torch.int32, device=boxes.device)
    mark_overlapped[(lists, words, triton.cdiv(count, ROWS))](boxes, classes, beats, iou, count, words, ROWS, **OPTIONS)
    width = triton.next_power_of_2(words)
    walk[(lists,)](valid, beats, kept, count, words, width, **OPTIONS | {"num_warps": max(1, width // WIDE)})
    return kept


@keep_best.register_fake
def _(boxes: Tensor, valid: Tensor, iou: float, classes: Tensor | None) -> Tensor:
    return torch.empty_like(valid, memory_format=torch.contiguous_format)


@triton.jit
def mark_overlapped(boxes, classes, beats, threshold, count, words, ROWS: tl.constexpr):
    """Set the bits of one word of ROWS boxes. Words that end before their box are never read, and stay as they are."""
    start, word, first = tl.program_id(0).to(tl.int64) * count, tl.program_id(1), tl.program_id(2) * ROWS
    if 32 * word + 31 > first:
        row, bit = first + tl.arange(0, ROWS), tl.arange(0, 32)
        other = 32 * word + bit
        here, there = row < count, other < count
        left, right = boxes + 4 * (start + row), boxes + 4 * (start + other)
        overlap = iou(
            tl.load(left, here, 0.0)[:, None], tl.load(left + 1, here, 0.0)[:, None],
            tl.load(left + 2, here, 0.0)[:, None], tl.load(left + 3, here, 0.0)[:, None],
            tl.load(right, there, 0.0)[None, :], tl.load(right + 1, there, 0.0)[None, :],
            tl.load(right + 2, there, 0.0)[None, :], tl.load(right + 3, there, 0.0)[None, :],
        )  # fmt: skip
        beaten = (overlap > threshold) & (other[None, :] > row[:, None]) & there[None, :]
        if classes is not None:
            of_row, of_other = tl.load(classes + start + row, here, 0), tl.load(classes + start + other, there, 0)
            beaten = beaten & (of_row[:, None] == of_other[None, :])
        packed = tl.sum(beaten.to(tl.int32) << bit[None, :], axis=1)
        tl.store(beats + (start + row) * words + word, packed, here)


@triton.jit
def walk(valid, beats, kept, count, words, WIDTH: tl.constexpr):
    """Settle one list: word by word its boxes among themselves, then what those that stay suppress in all later words."""
    start = tl.program_id(0).to(tl.int64) * count
    column, bit = tl.arange(0, WIDTH), tl.arange(0, 32)
    beaten = tl.zeros([WIDTH], tl.int32)
    for word in range(words):
        location = 32 * word + bit
        here = location < count
        enters = (tl.load(valid + start + location, here, 0) != 0).to(tl.int32)
        # Only kept boxes suppress: those that do not enter count as beaten from the start.
        out = ~tl.sum(enters << bit, axis=0) | tl.sum(tl.where(column == word, beaten, 0), axis=0)
        for one in tl.static_range(32):
            row = beats + (start + 32 * word + one) * words
            among = tl.load(row + word, 32 * word + one < count, 0)
            out = out | tl.where((out >> one) & 1 == 0, among, 0)
        for one in tl.static_range(32):
            row = beats + (start + 32 * word + one) * words
            end = tl.where((out >> one) & 1 == 0, words, 0)  # a box that goes suppresses nothing
            beaten = beaten | tl.load(row + column, (column > word) & (column < end), 0)
        tl.store(kept + start + location, (out >> bit) & 1 == 0, here)
