"""Regions: the region proposal network's best boxes of each photo, and detections from the box head's output.

Letters: B images   L lists, in which boxes compete   n_l anchors of a level   C candidates of a list or an image   P places
R regions   K classes (0 is background)   D places for detections
Boxes are ltrb in pixels of the network input. Equal logits: the finer level first, then the earlier anchor. Equal scores: the earlier
region first, then the lower class. (Which of several equals makes the cut to `pre` or `select_candidates` is the device's own choice.)
Sources: torchvision, RegionProposalNetwork.filter_proposals (suppression in each level) and RoIHeads.postprocess_detections; GluonCV,
rpn.py (all levels together) and faster_rcnn.py, whose boxes reach beyond the photo until the end; MLPerf reference,
rpn/inference.py (the best of the batch).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.config.maskrcnn import RPN, InstanceFilter, MaskRCNNParity, NMSOver
from paceline.models.ops.boxes import BoxCoder, clip_to_photo, is_large_enough
from paceline.models.ops.dispatch import uses_static_shapes
from paceline.models.ops.nms import gather_boxes, nms_cpu, nms_fixed, pad_end, top_k


@torch.no_grad()
def make_proposals(
    logits: Sequence[Tensor],
    deltas: Sequence[Tensor],
    anchors: Sequence[Tensor],
    sizes: Tensor,
    rules: RPN,
    parity: MaskRCNNParity,
    *,
    training: bool,
    groups: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """Proposals of each photo, best first.

    logits, deltas, anchors  of each level (B, n_l), (B, n_l, 4) and (n_l, 4) ltrb px
    sizes       (B, 2) height and width of the photos in the input; boxes are clipped to them
    training    whether `pre_nms_topk_train` and `post_nms_topk_train` count, and `parity.post_nms_per` "batch": then the best B /
                groups * post_nms_topk_train of each
                group, or post_nms_batch of them, however they spread; else `pre_nms_topk_test` and `post_nms_topk_test`, of each image
    groups      with post_nms_per "batch" consecutive equal parts of the batch
    return      (B, P, 4) float32, zeros in empty places, (B, P) bool, whether a place is taken, and (B,) int64, candidates
                whose suppression was left open: see `nms_fixed`, always 0 on a CPU; no gradient.
                P is post; with post_nms_per "batch" a group's number, or an image's candidates where they are fewer.
                Fixed shapes and no host synchronization, except on a CPU
    """
    pre, post = (
        (rules.pre_nms_topk_train, rules.post_nms_topk_train)
        if training
        else (rules.pre_nms_topk_test, rules.post_nms_topk_test)
    )
    of_batch = training and parity.post_nms_per == "batch"
    lists = select_candidates(logits, deltas, anchors, sizes, pre=pre, limit=rules.max_log_scale, nms_over=parity.nms_per)
    of_group = parity.post_nms_batch or len(sizes) // groups * post
    indices = post if not of_batch else min(of_group, sum(scores.shape[1] for scores, _ in lists))
    form = proposals_fixed if uses_static_shapes(sizes) else proposals_cpu
    boxes, scores, valid, unsettled = form(lists, indices, iou=rules.nms_iou, min_box_side=rules.min_box_side)
    if of_batch:
        valid = best_of_groups(scores, valid, of_group, groups)
    return boxes.masked_fill(~valid.unsqueeze(2), 0.0), valid, unsettled


def select_candidates(
    logits: Sequence[Tensor],
    deltas: Sequence[Tensor],
    anchors: Sequence[Tensor],
    sizes: Tensor,
    *,
    pre: int,
    limit: float,
    nms_over: NMSOver,
) -> list[tuple[Tensor, Tensor]]:
    """The boxes of the highest logits, of each level or of all; only they are decoded. Arguments as in `make_proposals`.

    return   of each list its scores (B, C), best first, and boxes (B, C, 4) float32, clipped to the photo
    """
    if nms_over == "image":
        logits, deltas, anchors = [torch.cat(list(logits), 1)], [torch.cat(list(deltas), 1)], [torch.cat(list(anchors))]
    coder, lists = BoxCoder(limit=limit), []  # the RPN's deltas are not scaled
    for of_level, moves, references in zip(logits, deltas, anchors):
        scores, positions = top_k(of_level.float(), pre)
        boxes = coder.decode(gather_boxes(moves, positions), references[positions])
        lists.append((scores, clip_to_photo(boxes, sizes)))
    return lists


def proposals_cpu(
    lists: Sequence[tuple[Tensor, Tensor]], indices: int, *, iou: float, min_box_side: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A CPU's form: one image and one list after the other, by torchvision's compiled suppression.

    lists    as `select_candidates` returns them; places P
    return   boxes (B, P, 4), scores (B, P) and valid (B, P), best first; and (B,) zeros: nothing is left open
    """
    images = len(lists[0][0])
    boxes, scores = torch.zeros(images, indices, 4), torch.zeros(images, indices)
    valid = torch.zeros(images, indices, dtype=torch.bool)
    for image in range(images):
        kept_boxes, kept_scores = [], []
        for of_list, list_boxes in lists:
            rows = is_large_enough(list_boxes[image], min_box_side).nonzero().squeeze(1)
            rows = rows[nms_cpu(list_boxes[image][rows], iou)]
            kept_boxes.append(list_boxes[image][rows])
            kept_scores.append(of_list[image][rows])
        result, order = torch.cat(kept_scores).sort(descending=True, stable=True)
        count = min(indices, len(result))
        scores[image, :count] = result[:count]
        boxes[image, :count] = torch.cat(kept_boxes)[order[:count]]
        valid[image, :count] = True
    return boxes, scores, valid, torch.zeros(images, dtype=torch.int64)


def proposals_fixed(
    lists: Sequence[tuple[Tensor, Tensor]], indices: int, *, iou: float, min_box_side: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same with fixed shapes: all images and lists at once, short lists padded; (B,) int64 as from `nms_fixed`."""
    longest = max(scores.shape[1] for scores, _ in lists)
    scores = torch.stack([pad_end(part, longest, -torch.inf) for part, _ in lists], dim=1)
    boxes = torch.stack([pad_end(part.transpose(1, 2), longest, 0.0).transpose(1, 2) for _, part in lists], dim=1)
    enters = is_large_enough(boxes, min_box_side) & (scores > -torch.inf)
    kept, unsettled = nms_fixed(boxes, enters, iou)
    # The finer level comes first in the row, and equals keep their order.
    result, order = scores.masked_fill(~kept, -torch.inf).flatten(1).sort(dim=1, descending=True, stable=True)
    result, order = result[:, :indices], order[:, :indices]
    chosen = gather_boxes(boxes.flatten(1, 2), order).transpose(1, 2)
    result = pad_end(result, indices, -torch.inf)
    return pad_end(chosen, indices, 0.0).transpose(1, 2), result, result > -torch.inf, unsettled.sum(dim=1)


def best_of_groups(scores: Tensor, valid: Tensor, count: int, groups: int) -> Tensor:
    """(B, P) bool: the valid places that are among the `count` best of their group of images; equals: the earlier image first.

    groups  consecutive equal parts of the B images
    """
    width = valid.numel() // groups
    ranked = scores.masked_fill(~valid, -torch.inf).view(groups, width)
    order = ranked.argsort(dim=1, descending=True, stable=True)[:, :count]
    order = order + width * torch.arange(groups, device=order.device).unsqueeze(1)
    chosen = torch.zeros_like(valid).flatten().index_fill(0, order.flatten(), True)
    return valid & chosen.view_as(valid)


@torch.no_grad()
def detect_regions(
    class_logits: Tensor,
    deltas: Tensor,
    regions: Tensor,
    valid: Tensor,
    sizes: Tensor,
    coder: BoxCoder,
    rules: InstanceFilter,
    clip_first: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Detections of each photo, best first.

    class_logits  (B, R, K + 1); deltas (B, R, 4 * (K + 1)), four of each class
    regions       (B, R, 4) ltrb px; valid (B, R) bool, the others give nothing
    sizes         (B, 2) height and width of the photos in the input
    coder         of the deltas
    rules         `topk_candidates` only limits an accelerator
    clip_first    clip boxes to the photo before suppression; without it the caller clips them
    return        boxes (B, D, 4) float32, scores (B, D) float32, labels (B, D) int64 in 1..K, zeros in empty places; and
                  (B, 2) int64, what an accelerator left open: candidates whose suppression did not settle (`nms_fixed`), and
                  pairs beyond `select_candidates` that were not examined; zeros on a CPU.
                  No gradient. Fixed shapes and no host synchronization, except on a CPU
    """
    probs = class_logits.float().softmax(dim=2)[..., 1:]
    probs = probs.masked_fill(~(valid.unsqueeze(2) & (probs > rules.score_threshold)), 0.0)
    of_class = deltas.unflatten(2, (class_logits.shape[2], 4))
    form = detections_fixed if uses_static_shapes(sizes) else detections_cpu
    return form(probs, of_class, regions, sizes, coder, rules, clip_first)


def detections_cpu(
    probs: Tensor, deltas: Tensor, regions: Tensor, sizes: Tensor, coder: BoxCoder, rules: InstanceFilter, clip_first: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A CPU's form, with work that follows the number of scores above the threshold.

    probs    (B, R, K) probabilities of classes 1..K, 0 where they do not count
    deltas   (B, R, K + 1, 4)
    return   as `detect_regions`
    """
    images = len(sizes)
    result = torch.zeros(images, rules.max_detections, 4)
    scores = torch.zeros(images, rules.max_detections)
    labels = torch.zeros(images, rules.max_detections, dtype=torch.int64)
    for image in range(images):
        region, number = probs[image].nonzero(as_tuple=True)
        moves = deltas[image][region, number + 1]
        boxes = coder.decode(moves, regions[image][region])
        if clip_first:
            boxes = clip_to_photo(boxes.unsqueeze(0), sizes[image : image + 1]).squeeze(0)
        rows = is_large_enough(boxes, rules.min_box_side).nonzero().squeeze(1)
        score, order = probs[image][region[rows], number[rows]].sort(descending=True, stable=True)
        rows = rows[order]
        kept = nms_cpu(boxes[rows], rules.nms_iou, number[rows])[: rules.max_detections]
        count = len(kept)
        result[image, :count] = boxes[rows[kept]]
        scores[image, :count] = score[kept]
        labels[image, :count] = number[rows[kept]] + 1
    return result, scores, labels, torch.zeros(images, 2, dtype=torch.int64)


def detections_fixed(
    probs: Tensor, deltas: Tensor, regions: Tensor, sizes: Tensor, coder: BoxCoder, rules: InstanceFilter, clip_first: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same with fixed shapes, among the best `select_candidates` of an image."""
    classes = probs.shape[2]
    scores, entry = top_k(probs.flatten(1), rules.topk_candidates)
    region, number = entry // max(classes, 1), entry % max(classes, 1)
    moves = gather_boxes(deltas.flatten(1, 2), region * (classes + 1) + number + 1)
    boxes = coder.decode(moves, gather_boxes(regions, region))
    if clip_first:
        boxes = clip_to_photo(boxes, sizes)
    enters = (scores > 0) & is_large_enough(boxes, rules.min_box_side)
    kept, unsettled = nms_fixed(boxes, enters, rules.nms_iou, number)
    # Sorting what is kept to the front keeps the order, best first.
    chosen = (~kept).to(torch.uint8).argsort(dim=1, stable=True)[:, : rules.max_detections]
    taken = kept.gather(1, chosen)
    result = gather_boxes(boxes, chosen).masked_fill(~taken.unsqueeze(2), 0.0)
    score = scores.gather(1, chosen).masked_fill(~taken, 0.0)
    label = (number.gather(1, chosen) + 1).masked_fill(~taken, 0)
    result = pad_end(result.transpose(1, 2), rules.max_detections, 0.0).transpose(1, 2)
    beyond = ((probs > 0).sum(dim=(1, 2)) - rules.topk_candidates).clamp(min=0)
    score, label = pad_end(score, rules.max_detections, 0.0), pad_end(label, rules.max_detections, 0)
    return result, score, label, torch.stack((unsettled, beyond), dim=1)
