"""Greedy non-maximum suppression: from best to worst, a box stays unless a better one that stayed overlaps it.

Letters: ... any leading dimensions   C boxes of one list, best first   E pairs of overlapping boxes
"Overlaps" is an IoU of `iou` or more in SSD's two forms (`stays_in_lists`, `stays_in_list`) and an IoU above `iou`, as
torchvision has it, in `stays_settled`. Which boxes stay has exactly one answer. The first finds it for many short lists
with fixed shapes, the second for one list with work that follows the overlaps there are, the third for many long lists
with fixed shapes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.boxes.geometry import pairwise_iou

# Bounds the memory of one list's pairs to some ten mebibytes.
PAIRS_AT_ONCE = 2**18
# Boxes that `stays_settled` settles together: few enough for cheap rounds and short chains, many enough for few blocks.
BLOCK = 256
# Lists of 1,000 and 2,000 boxes around 1 to 200 objects, at IoU 0.5 and 0.7, never needed more than 10. Equal scores over
# a flat part of a photo can: there an even number keeps some boxes too many and none too few.
ROUNDS = 32


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


def stays_settled(
    boxes: Tensor, valid: Tensor, iou: float, *, rounds: int, classes: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Many long lists at once, with fixed shapes and no host synchronisation; here an IoU ABOVE `iou` suppresses.

    The lists are walked in blocks. In a block a box's answer is right as soon as it is right for the better boxes that
    overlap it: repeating the rule settles a chain of overlaps one link a round. What stays in a block then
    suppresses in all later ones. No more than BLOCK * C overlaps of a list exist at a time.

    boxes    (..., C, 4) ltrb, best first
    valid    (..., C) bool; the others neither stay nor suppress
    rounds   how often the rule is repeated in a block, 1 or more; see ROUNDS. BLOCK - 1 are always enough
    classes  (..., C) int64, where only boxes of one class compete; None: all do
    return   (..., C) bool, and (...) int64: a list's boxes whose answer still changed in the last round. 0 proves it right
    """
    stays = valid.clone()
    unsettled = torch.zeros(valid.shape[:-1], dtype=torch.int64, device=boxes.device)
    count = boxes.shape[-2]
    for first in range(0, count, BLOCK):
        inside, end = slice(first, first + BLOCK), min(first + BLOCK, count)
        beats = pairwise_iou(boxes[..., inside, :], boxes[..., first:, :]) > iou
        if classes is not None:
            beats &= classes[..., inside, None] == classes[..., None, first:]
        # A box is beaten by earlier ones of its list only.
        among = beats[..., : end - first].triu(1)
        candidates = stays[..., inside]
        block = candidates
        before = block
        for _ in range(rounds):
            before, block = block, candidates & ~(among & block.unsqueeze(-1)).any(dim=-2)
        unsettled += (before != block).sum(dim=-1)
        stays[..., inside] = block
        if end < count:
            stays[..., end:] &= ~(beats[..., end - first :] & block.unsqueeze(-1)).any(dim=-2)
    return stays, unsettled
