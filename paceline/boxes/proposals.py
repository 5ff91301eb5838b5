"""Proposals: the region proposal network's best boxes of each photo, without those that a better one overlaps.

Letters: B images   L lists, in which boxes compete   n_l anchors of a level   C candidates of a list   P places
Boxes are ltrb in pixels of the network input. Equal logits: the finer level first, then the earlier anchor. (Which of
several equals makes the cut to `pre` is the device's own choice.)
Sources: torchvision, RegionProposalNetwork.filter_proposals (suppression in each level); GluonCV, rpn.py (all levels
together); MLPerf reference, rpn/inference.py (the best of the batch).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from paceline.boxes.coding import BoxCoder
from paceline.boxes.forms import fixed_shapes
from paceline.boxes.geometry import clip_to_photo, large_enough
from paceline.boxes.suppression import gather_boxes, keep_cpu, keep_fixed, pad_end, top_k

NMSOver = Literal["level", "image"]
PostOf = Literal["image", "batch"]


@torch.no_grad()
def proposals(
    logits: Sequence[Tensor],
    deltas: Sequence[Tensor],
    anchors: Sequence[Tensor],
    sizes: Tensor,
    *,
    pre: int,
    post: int,
    iou: float,
    least_side: float,
    limit: float,
    nms_over: NMSOver,
    post_of: PostOf,
    post_group: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Proposals of each photo, best first.

    logits      of each level (B, n_l)
    deltas      of each level (B, n_l, 4)
    anchors     of each level (n_l, 4) ltrb px
    sizes       (B, 2) height and width of the photos in the input; boxes are clipped to them
    pre         candidates that enter suppression, by logit: of each level, or of all levels with nms_over "image"
    post        proposals of an image; with post_of "batch" B * post of the whole batch, the best, however they spread
    post_group  with post_of "batch" the whole batch's number where it is not B * post; 0: it is
    iou         of two candidates of a list that overlap by more, the better one is kept
    least_side  narrower or lower boxes are dropped before suppression, pixels
    limit       most that a width or height may grow, logarithm
    return      (B, P, 4) float32, zeros in empty places, (B, P) bool, whether a place is taken, and (B,) int64, candidates
                whose suppression was left open: see `keep_fixed`, always 0 on a CPU; no gradient.
                P is post; with post_of "batch" the batch's number, or an image's candidates where they are fewer.
                Fixed shapes and no host synchronisation, except on a CPU
    """
    images = len(sizes)
    lists = candidates(logits, deltas, anchors, sizes, pre=pre, limit=limit, nms_over=nms_over)
    of_batch = post_group or images * post
    places = post if post_of == "image" else min(of_batch, sum(scores.shape[1] for scores, _ in lists))
    form = proposals_fixed if fixed_shapes(sizes) else proposals_cpu
    boxes, scores, valid, unsettled = form(lists, places, iou=iou, least_side=least_side)
    if post_of == "batch":
        valid = best_of_batch(scores, valid, of_batch)
    return boxes.masked_fill(~valid.unsqueeze(2), 0.0), valid, unsettled


def candidates(
    logits: Sequence[Tensor],
    deltas: Sequence[Tensor],
    anchors: Sequence[Tensor],
    sizes: Tensor,
    *,
    pre: int,
    limit: float,
    nms_over: NMSOver,
) -> list[tuple[Tensor, Tensor]]:
    """The boxes of the highest logits, of each level or of all; only they are decoded.

    Arguments as in `proposals`.
    return   of each list its scores (B, C), best first, and boxes (B, C, 4) float32, clipped to the photo
    """
    if nms_over == "image":
        logits, deltas, anchors = [torch.cat(list(logits), 1)], [torch.cat(list(deltas), 1)], [torch.cat(list(anchors))]
    coder, lists = BoxCoder(limit=limit), []  # the RPN's deltas are not scaled
    for of_level, moves, references in zip(logits, deltas, anchors):
        scores, place = top_k(of_level.float(), pre)
        boxes = coder.decode(gather_boxes(moves, place), references[place])
        lists.append((scores, clip_to_photo(boxes, sizes)))
    return lists


def proposals_cpu(
    lists: Sequence[tuple[Tensor, Tensor]], places: int, *, iou: float, least_side: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A CPU's form: one image and one list after the other, by torchvision's compiled suppression.

    lists    as `candidates` returns them
    places   P
    return   boxes (B, P, 4), scores (B, P) and valid (B, P), best first; and (B,) zeros: nothing is left open
    """
    images = len(lists[0][0])
    boxes, scores = torch.zeros(images, places, 4), torch.zeros(images, places)
    valid = torch.zeros(images, places, dtype=torch.bool)
    for image in range(images):
        kept_boxes, kept_scores = [], []
        for of_list, list_boxes in lists:
            rows = large_enough(list_boxes[image], least_side).nonzero().squeeze(1)
            rows = rows[keep_cpu(list_boxes[image][rows], iou)]
            kept_boxes.append(list_boxes[image][rows])
            kept_scores.append(of_list[image][rows])
        found, order = torch.cat(kept_scores).sort(descending=True, stable=True)
        count = min(places, len(found))
        scores[image, :count] = found[:count]
        boxes[image, :count] = torch.cat(kept_boxes)[order[:count]]
        valid[image, :count] = True
    return boxes, scores, valid, torch.zeros(images, dtype=torch.int64)


def proposals_fixed(
    lists: Sequence[tuple[Tensor, Tensor]], places: int, *, iou: float, least_side: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same with fixed shapes: all images and lists at once, short lists padded.

    return   boxes (B, P, 4), scores (B, P), valid (B, P), best first; and (B,) int64 as from `keep_fixed`
    """
    longest = max(scores.shape[1] for scores, _ in lists)
    scores = torch.stack([pad_end(part, longest, -torch.inf) for part, _ in lists], dim=1)
    boxes = torch.stack([pad_end(part.transpose(1, 2), longest, 0.0).transpose(1, 2) for _, part in lists], dim=1)
    enters = large_enough(boxes, least_side) & (scores > -torch.inf)
    kept, unsettled = keep_fixed(boxes, enters, iou)
    # The finer level comes first in the row, and equals keep their order.
    found, order = scores.masked_fill(~kept, -torch.inf).flatten(1).sort(dim=1, descending=True, stable=True)
    found, order = found[:, :places], order[:, :places]
    chosen = gather_boxes(boxes.flatten(1, 2), order).transpose(1, 2)
    found = pad_end(found, places, -torch.inf)
    return pad_end(chosen, places, 0.0).transpose(1, 2), found, found > -torch.inf, unsettled.sum(dim=1)


def best_of_batch(scores: Tensor, valid: Tensor, count: int) -> Tensor:
    """Which of the places are among the `count` best of all images; equals: the earlier image first.

    scores   (B, P), best first
    return   (B, P) bool, the valid ones that are kept
    """
    order = scores.masked_fill(~valid, -torch.inf).flatten().argsort(descending=True, stable=True)
    chosen = torch.zeros_like(order, dtype=torch.bool).index_fill(0, order[:count], True)
    return valid & chosen.view_as(valid)
