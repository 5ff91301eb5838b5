"""From the box head's output to detections: class probabilities, boxes of each class, suppression.

Letters: B images   R regions   K classes (0 is background)   C candidates of an image   D places for detections
Boxes are ltrb in pixels of the network input. Equal scores: the earlier region first, then the lower class. (Which of
several equals makes the cut to `candidates` is an accelerator's own choice.)
Sources: torchvision, RoIHeads.postprocess_detections; GluonCV, faster_rcnn.py, whose boxes reach beyond the photo until the end.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from paceline.boxes.box_deltas import Weights, decode_deltas
from paceline.boxes.detections import best, rows_of
from paceline.boxes.forms import fixed_shapes
from paceline.boxes.proposals import clip_to_photo, large_enough, padded, suppressed_by_torchvision
from paceline.boxes.suppression import ROUNDS, stays_settled

Clip = Literal["before", "after"]


@torch.no_grad()
def detections(
    class_logits: Tensor,
    deltas: Tensor,
    regions: Tensor,
    valid: Tensor,
    sizes: Tensor,
    *,
    weights: Weights,
    limit: float,
    score_above: float,
    iou: float,
    keep: int,
    candidates: int,
    least_side: float,
    clip: Clip = "before",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Detections of each photo, best first.

    class_logits  (B, R, K + 1)
    deltas        (B, R, 4 * (K + 1)), four of each class
    regions       (B, R, 4) ltrb px
    valid         (B, R) bool; the other regions give nothing
    sizes         (B, 2) height and width of the photos in the input
    weights       scales of dx, dy, dw, dh
    limit         most that a width or height may grow, logarithm
    score_above   a class probability must be above this; 0 or more
    iou           of two boxes of one class that overlap by more, the better one stays
    keep          D
    candidates    best pairs of region and class that enter suppression on an accelerator; a CPU takes all
    least_side    narrower or lower boxes are dropped before suppression, pixels
    clip          boxes are cut at the photo's border "before" suppression; "after": that is left to the caller
    return        boxes (B, D, 4) float32, scores (B, D) float32, labels (B, D) int64 in 1..K, zeros in empty places; and
                  (B, 2) int64, what an accelerator left open: candidates whose suppression was (`stays_settled`), and pairs
                  beyond `candidates` that nobody looked at; zeros on a CPU.
                  No gradient. Fixed shapes and no host synchronisation, except on a CPU
    """
    chances = class_logits.float().softmax(dim=2)[..., 1:]
    chances = chances.masked_fill(~(valid.unsqueeze(2) & (chances > score_above)), 0.0)
    of_class = deltas.unflatten(2, (class_logits.shape[2], 4))
    if not fixed_shapes(sizes):
        return one_by_one(
            chances, of_class, regions, sizes,
            weights=weights, limit=limit, iou=iou, keep=keep, least_side=least_side, clip=clip,
        )  # fmt: skip
    return together(
        chances, of_class, regions, sizes,
        weights=weights, limit=limit, iou=iou, keep=keep, candidates=candidates, least_side=least_side, clip=clip,
    )  # fmt: skip


def one_by_one(
    chances: Tensor,
    deltas: Tensor,
    regions: Tensor,
    sizes: Tensor,
    *,
    weights: Weights,
    limit: float,
    iou: float,
    keep: int,
    least_side: float,
    clip: Clip = "before",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A CPU's form, with work that follows the number of scores above the threshold.

    chances  (B, R, K) probabilities of classes 1..K, 0 where they do not count
    deltas   (B, R, K + 1, 4)
    return   as `detections`
    """
    images = len(sizes)
    found = torch.zeros(images, keep, 4)
    scores = torch.zeros(images, keep)
    labels = torch.zeros(images, keep, dtype=torch.int64)
    for image in range(images):
        region, number = chances[image].nonzero(as_tuple=True)
        moves = deltas[image][region, number + 1].float()
        boxes = decode_deltas(moves, regions[image][region].float(), weights, limit)
        if clip == "before":
            boxes = clip_to_photo(boxes.unsqueeze(0), sizes[image : image + 1]).squeeze(0)
        rows = large_enough(boxes, least_side).nonzero().squeeze(1)
        score, order = chances[image][region[rows], number[rows]].sort(descending=True, stable=True)
        rows = rows[order]
        stays = stays_in_class(boxes[rows], number[rows], iou)[:keep]
        count = len(stays)
        found[image, :count] = boxes[rows[stays]]
        scores[image, :count] = score[stays]
        labels[image, :count] = number[rows[stays]] + 1
    return found, scores, labels, torch.zeros(images, 2, dtype=torch.int64)


def stays_in_class(boxes: Tensor, classes: Tensor, iou: float) -> Tensor:
    """Suppression of one list where only boxes of one class compete, on a CPU.

    boxes    (C, 4) ltrb, best first
    classes  (C,) int64
    return   places of those that stay, ascending
    """
    grouped, order = classes.sort(stable=True)
    parts = order.split(torch.unique_consecutive(grouped, return_counts=True)[1].tolist())
    # Class by class instead of torchvision's boxes moved apart: a float32 coordinate far away has lost its fractions.
    stays = [part[suppressed_by_torchvision(boxes[part], iou)] for part in parts]
    return torch.cat([order[:0], *stays]).sort().values


def together(
    chances: Tensor,
    deltas: Tensor,
    regions: Tensor,
    sizes: Tensor,
    *,
    weights: Weights,
    limit: float,
    iou: float,
    keep: int,
    candidates: int,
    least_side: float,
    clip: Clip = "before",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same with fixed shapes, among the best `candidates` of an image."""
    classes = chances.shape[2]
    scores, entry = best(chances.flatten(1), candidates)
    region, number = entry // max(classes, 1), entry % max(classes, 1)
    moves = rows_of(deltas.flatten(1, 2), region * (classes + 1) + number + 1).float()
    boxes = decode_deltas(moves, rows_of(regions, region).float(), weights, limit)
    if clip == "before":
        boxes = clip_to_photo(boxes, sizes)
    enters = (scores > 0) & large_enough(boxes, least_side)
    stays, unsettled = stays_settled(boxes, enters, iou, rounds=ROUNDS, classes=number)
    # Sorting what stays to the front keeps the order, best first.
    chosen = (~stays).to(torch.uint8).argsort(dim=1, stable=True)[:, :keep]
    taken = stays.gather(1, chosen)
    found = rows_of(boxes, chosen).masked_fill(~taken.unsqueeze(2), 0.0)
    score = scores.gather(1, chosen).masked_fill(~taken, 0.0)
    label = (number.gather(1, chosen) + 1).masked_fill(~taken, 0)
    found = padded(found.transpose(1, 2), keep, 0.0).transpose(1, 2)
    beyond = ((chances > 0).sum(dim=(1, 2)) - candidates).clamp(min=0)
    return found, padded(score, keep, 0.0), padded(label, keep, 0), torch.stack((unsettled, beyond), dim=1)
