"""Greedy non-maximum suppression: from best to worst, a box is kept unless a better one that was kept overlaps it.

Letters: ... any leading dimensions   C boxes of one list, best first
"Overlaps" is an IoU above a threshold, in float32, as torchvision has it. Which boxes are kept has exactly one answer.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.models.ops.boxes import pairwise_iou
from paceline.models.ops.dispatch import uses_own_nms, uses_triton
from paceline.models.ops.torchvision_kernels import nms

# Boxes that `nms_fixed` settles together: few enough for cheap rounds and short chains, many enough for few blocks.
BLOCK = 256
# Lists of 1,000 and 2,000 boxes around 1 to 200 objects, at IoU 0.5 and 0.7, never needed more than 10. Equal scores over a flat part
# of a photo can need more: there an even number keeps some boxes too many and none too few.
ROUNDS = 32


def nms_cpu(boxes: Tensor, iou: float, classes: Tensor | None = None) -> Tensor:
    """Places of the boxes that are kept, ascending: one list on a CPU, by torchvision's compiled suppression.

    boxes    (C, 4) ltrb, best first
    classes  (C,) int64, where only boxes of one class compete; None: all do
    """
    # torchvision compares float32 overlaps with a float64 threshold; rounded to float32, it is the same rule as ours.
    threshold = float(torch.tensor(iou, dtype=boxes.dtype))
    falling = -torch.arange(len(boxes), dtype=boxes.dtype)
    if classes is None:
        return nms(boxes, falling, threshold)
    grouped, order = classes.sort(stable=True)
    counts = torch.unique_consecutive(grouped, return_counts=True)[1].tolist()
    # Class by class; torchvision moves the classes apart instead, but a float32 coordinate far away has lost its fractions.
    keep = [
        part[nms(of_class, falling[: len(part)], threshold)] if len(part) > 1 else part
        for part, of_class in zip(order.split(counts), boxes[order].split(counts))
    ]
    return torch.cat([order[:0], *keep]).sort().values


def nms_fixed(
    boxes: Tensor, valid: Tensor, iou: float, classes: Tensor | None = None, *, block: int = BLOCK, rounds: int = ROUNDS
) -> tuple[Tensor, Tensor]:
    """Many lists at once, with fixed shapes and no host synchronization.

    The lists are processed in blocks. In a block a box's answer is right as soon as it is right for the better boxes that overlap
    it: repeating the rule settles a chain of overlaps one link a round. What a block keeps then suppresses in all later ones. No more
    than block * C overlaps of a list exist at a time.

    boxes    (..., C, 4) ltrb, best first; valid (..., C) bool, the others are not kept and do not suppress
    classes  (..., C) int64, where only boxes of one class compete; None: all do
    block    boxes that are settled together
    rounds   how often the rule is repeated in a block, 1 or more; block - 1 are always enough
    return   (..., C) bool, and (...) int64: a list's boxes whose answer still changed in the last round. 0 proves it right
    """
    unsettled = torch.zeros(valid.shape[:-1], dtype=torch.int64, device=boxes.device)
    if (own := uses_own_nms()) is not None:
        return own(boxes, valid, iou, classes), unsettled
    if uses_triton(boxes):
        from paceline.models.ops.triton_matching import keep_best

        return keep_best(boxes, valid, iou, classes), unsettled
    keep = valid.clone()
    count = boxes.shape[-2]
    # A product of matrices counts the boxes that beat another one: one kernel that reads the overlaps once, where a mask and its
    # `any` are three passes and as many kernels. Such a count may be rounded; it is 0 or it is not.
    counting = _counting_type(boxes.device)
    for first in range(0, count, block):
        inside, end = slice(first, first + block), min(first + block, count)
        beats = pairwise_iou(boxes[..., inside, :], boxes[..., first:, :]) > iou
        if classes is not None:
            beats &= classes[..., inside, None] == classes[..., None, first:]
        beats = beats.to(counting)
        # A box is beaten by earlier ones of its list only.
        among = beats[..., : end - first].triu(1)
        candidates = keep[..., None, inside].to(counting)
        kept = before = candidates
        for _ in range(rounds):
            # 1 where a candidate, 1, exceeds the count of those that are kept and beat it.
            before, kept = kept, torch.matmul(kept, among).lt_(candidates)
        unsettled += (before != kept).sum(dim=(-2, -1))
        keep[..., inside] = kept.squeeze(-2)
        if end < count:
            keep[..., end:] &= torch.matmul(kept, beats[..., end - first :]).squeeze(-2) == 0
    return keep, unsettled


def _counting_type(device: torch.device) -> torch.dtype:
    """The cheapest type for small counts, and one that autocast leaves as it is."""
    if device.type == "cuda":
        return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else torch.float16
    return torch.float32


def top_k(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` highest along the last dimension, or all, and their places; equals in order of their place.

    A graph that is traced for any number of scores always has `count`; those beyond the scores are -inf.
    """
    number = scores.shape[-1]
    if traced := isinstance(number, torch.SymInt):
        scores = F.pad(scores, (0, count), value=-torch.inf)
    values, indices = scores.topk(count if traced else min(count, number), dim=-1)
    indices, order = indices.sort(dim=-1)
    values, by_value = values.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    indices = indices.gather(-1, by_value)
    return values, indices.clamp(max=number - 1) if traced else indices


def gather_boxes(boxes: Tensor, indices: Tensor) -> Tensor:
    """(B, N, 4) and (B, C) -> (B, C, 4)."""
    return boxes.gather(1, indices.unsqueeze(2).expand(-1, -1, boxes.shape[2]))


def pad_end(rows: Tensor, count: int, value: float) -> Tensor:
    """(..., n) -> (..., count), n being at most count."""
    return F.pad(rows, (0, count - rows.shape[-1]), value=value)
