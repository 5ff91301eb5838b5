"""Greedy non-maximum suppression: from best to worst, a box stays unless a better one that stayed overlaps it.

Letters: ... any leading dimensions   C boxes of one list, best first   E pairs of overlapping boxes
"Overlaps" is an IoU of `iou` or more. Which boxes stay has exactly one answer; one form below finds it for many lists
with fixed shapes, the other for one list with work that follows the overlaps there are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.boxes.geometry import pairwise_iou

# Bounds the memory of one list's pairs to some ten mebibytes.
PAIRS_AT_ONCE = 2**18


def stays_in_lists(boxes: Tensor, valid: Tensor, iou: float, classes: Tensor | None = None) -> Tensor:
    """Many lists at once, with fixed shapes and no host synchronisation.

    boxes    (..., C, 4) ltrb, best first
    valid    (..., C) bool; the others neither stay nor suppress
    classes  (..., C) int64, where only boxes of one class compete; None: all do
    return   (..., C) bool
    """
    beats = pairwise_iou(boxes, boxes) >= iou
    if classes is not None:
        beats &= classes.unsqueeze(-1) == classes.unsqueeze(-2)
    stays = valid.clone()
    for better in range(boxes.shape[-2] - 1):
        worse = better + 1
        stays[..., worse:] &= ~(beats[..., better, worse:] & stays[..., better, None])
    return stays


def stays_in_list(boxes: Tensor, classes: Tensor, iou: float) -> Tensor:
    """One list on a CPU, where only boxes of one class compete.

    boxes    (C, 4) ltrb, best first
    classes  (C,) int64
    return   (C,) bool
    """
    stays = torch.ones(len(boxes), dtype=torch.bool)
    better, worse = overlapping(boxes, classes, iou)
    # Right for a box as soon as it is right for all better boxes that overlap it: ends after the longest chain.
    while True:
        settled = torch.ones_like(stays).index_fill_(0, worse[stays[better]], False)
        if torch.equal(settled, stays):
            return stays
        stays = settled


def overlapping(boxes: Tensor, classes: Tensor, iou: float) -> tuple[Tensor, Tensor]:
    """Pairs of one class that overlap.

    boxes    (C, 4) ltrb, classes (C,) int64
    return   (E,) and (E,) int64, the first of a pair earlier in the list than the second
    """
    # Sorted by class, each box pairs with those between its class's start and itself.
    grouped, order = classes.sort(stable=True)
    start = torch.searchsorted(grouped, grouped)
    earlier = torch.arange(len(order)) - start
    last = earlier.cumsum(0)
    better, worse = [order[:0]], [order[:0]]
    for first in range(0, int(earlier.sum()), PAIRS_AT_ONCE):
        pair = torch.arange(first, min(first + PAIRS_AT_ONCE, int(last[-1])))
        second = torch.searchsorted(last, pair, right=True)
        one, other = order[start[second] + pair - (last - earlier)[second]], order[second]
        overlap = pairwise_iou(boxes[one].unsqueeze(1), boxes[other].unsqueeze(1)).flatten()
        better.append(one[overlap >= iou])
        worse.append(other[overlap >= iou])
    return torch.cat(better), torch.cat(worse)
