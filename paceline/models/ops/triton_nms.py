"""Suppression's fixed form as two kernels in Triton, in place of rounds of launches over all lists.

Letters: L lists   C boxes of a list, best first   W words of 32 bits, one bit for each of a list's boxes
The first kernel notes for each box which later ones it overlaps, a bit each. The second walks each list once from the best box on, a
word at a time. Overlaps are those of `pairwise_iou` to the bit, as in triton_matching.py, and every chain is settled.
"""

# pyright: reportArgumentType=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# A kernel's text is Triton's language, whose types are not Python's.
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.models.ops.triton_matching import OPTIONS, iou

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
