"""From the box head's output to detections: class probabilities, boxes of each class, suppression.

Letters: B images   R regions   K classes (0 is background)   C candidates of an image   D places for detections
Boxes are ltrb in pixels of the network input. Equal scores: the earlier region first, then the lower class. (Which of
several equals makes the cut to `candidates` is an accelerator's own choice.)
Sources: torchvision, RoIHeads.postprocess_detections; GluonCV, faster_rcnn.py, whose boxes reach beyond the photo until the end.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from paceline.boxes.coding import BoxCoder
from paceline.boxes.forms import fixed_shapes
from paceline.boxes.geometry import clip_to_photo, large_enough
from paceline.boxes.suppression import gather_boxes, keep_cpu, keep_fixed, pad_end, top_k


class RegionRules(NamedTuple):
    """What becomes a detection."""

    coder: BoxCoder  # of the deltas
    score_above: float  # a class probability must be above this; 0 or more
    iou: float  # of two boxes of one class that overlap by more, the better one is kept
    keep: int  # D
    candidates: int  # best pairs of region and class that enter suppression on an accelerator; a CPU takes all
    least_side: float  # narrower or lower boxes are dropped before suppression, pixels
    clip: Literal["before", "after"] = (
        "before"  # boxes are cut at the photo's border before suppression, or left to the caller
    )


@torch.no_grad()
def region_detections(
    class_logits: Tensor,
    deltas: Tensor,
    regions: Tensor,
    valid: Tensor,
    sizes: Tensor,
    rules: RegionRules,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Detections of each photo, best first.

    class_logits  (B, R, K + 1)
    deltas        (B, R, 4 * (K + 1)), four of each class
    regions       (B, R, 4) ltrb px
    valid         (B, R) bool; the other regions give nothing
    sizes         (B, 2) height and width of the photos in the input
    return        boxes (B, D, 4) float32, scores (B, D) float32, labels (B, D) int64 in 1..K, zeros in empty places; and
                  (B, 2) int64, what an accelerator left open: candidates whose suppression was (`keep_fixed`), and pairs
                  beyond `candidates` that nobody looked at; zeros on a CPU.
                  No gradient. Fixed shapes and no host synchronisation, except on a CPU
    """
    probs = class_logits.float().softmax(dim=2)[..., 1:]
    probs = probs.masked_fill(~(valid.unsqueeze(2) & (probs > rules.score_above)), 0.0)
    of_class = deltas.unflatten(2, (class_logits.shape[2], 4))
    form = detections_fixed if fixed_shapes(sizes) else detections_cpu
    return form(probs, of_class, regions, sizes, rules)


def detections_cpu(
    probs: Tensor, deltas: Tensor, regions: Tensor, sizes: Tensor, rules: RegionRules
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A CPU's form, with work that follows the number of scores above the threshold.

    probs    (B, R, K) probabilities of classes 1..K, 0 where they do not count
    deltas   (B, R, K + 1, 4)
    return   as `region_detections`
    """
    images = len(sizes)
    found = torch.zeros(images, rules.keep, 4)
    scores = torch.zeros(images, rules.keep)
    labels = torch.zeros(images, rules.keep, dtype=torch.int64)
    for image in range(images):
        region, number = probs[image].nonzero(as_tuple=True)
        moves = deltas[image][region, number + 1]
        boxes = rules.coder.decode(moves, regions[image][region])
        if rules.clip == "before":
            boxes = clip_to_photo(boxes.unsqueeze(0), sizes[image : image + 1]).squeeze(0)
        rows = large_enough(boxes, rules.least_side).nonzero().squeeze(1)
        score, order = probs[image][region[rows], number[rows]].sort(descending=True, stable=True)
        rows = rows[order]
        kept = keep_cpu(boxes[rows], rules.iou, number[rows])[: rules.keep]
        count = len(kept)
        found[image, :count] = boxes[rows[kept]]
        scores[image, :count] = score[kept]
        labels[image, :count] = number[rows[kept]] + 1
    return found, scores, labels, torch.zeros(images, 2, dtype=torch.int64)


def detections_fixed(
    probs: Tensor, deltas: Tensor, regions: Tensor, sizes: Tensor, rules: RegionRules
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same with fixed shapes, among the best `candidates` of an image."""
    classes = probs.shape[2]
    scores, entry = top_k(probs.flatten(1), rules.candidates)
    region, number = entry // max(classes, 1), entry % max(classes, 1)
    moves = gather_boxes(deltas.flatten(1, 2), region * (classes + 1) + number + 1)
    boxes = rules.coder.decode(moves, gather_boxes(regions, region))
    if rules.clip == "before":
        boxes = clip_to_photo(boxes, sizes)
    enters = (scores > 0) & large_enough(boxes, rules.least_side)
    kept, unsettled = keep_fixed(boxes, enters, rules.iou, number)
    # Sorting what is kept to the front keeps the order, best first.
    chosen = (~kept).to(torch.uint8).argsort(dim=1, stable=True)[:, : rules.keep]
    taken = kept.gather(1, chosen)
    found = gather_boxes(boxes, chosen).masked_fill(~taken.unsqueeze(2), 0.0)
    score = scores.gather(1, chosen).masked_fill(~taken, 0.0)
    label = (number.gather(1, chosen) + 1).masked_fill(~taken, 0)
    found = pad_end(found.transpose(1, 2), rules.keep, 0.0).transpose(1, 2)
    beyond = ((probs > 0).sum(dim=(1, 2)) - rules.candidates).clamp(min=0)
    return (
        found,
        pad_end(score, rules.keep, 0.0),
        pad_end(label, rules.keep, 0),
        torch.stack((unsettled, beyond), dim=1),
    )
