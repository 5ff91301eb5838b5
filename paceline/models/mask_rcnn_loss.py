"""The five loss terms of Mask R-CNN as sums over each image, what each is divided by, and the rows that they run over.

Letters: B images   N rows (anchors or regions that were sampled, of all images)   K classes   S side of a mask
    G object slots of an image
A row that counts has weight 1; rows of weight 0 fill fixed shapes. Everything is float32 whatever comes in.
Divisors are counts, taken over the images of a loss group (see `Segmenter`): sampled anchors for both proposal terms, sampled
regions for class and box, positive regions for the mask (a mask's loss is already the mean over its S * S points).
Source: He et al. 2017, section 3.1; torchvision's and detectron2's formulations agree on these sums.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

TERMS = ("objectness", "rpn_box", "class", "box", "mask")


class Regions(NamedTuple):
    """Sampled regions as rows; a row of weight 0 fills a place."""

    image: Tensor  # (N,) int64, place in the batch; -1 where the weight is 0
    boxes: Tensor  # (N, 4) ltrb, pixels
    slots: Tensor  # (N,) int64, the object of a positive row
    positive: Tensor  # (N,) bool
    trains_shape: (
        Tensor  # (N,) bool, positives whose box and mask train: no more of an image than its share of positives
    )
    weight: Tensor  # (N,) float32


def rows_of_images(images: int, rows: int, device: torch.device) -> Tensor:
    """0 rows times, 1 rows times, ...: (images * rows,) int64."""
    return torch.arange(images, device=device).repeat_interleave(rows, output_size=images * rows)


def keep_rows(kept: Tensor | None, image: Tensor, boxes: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Image numbers and boxes of the kept rows; of all rows where None, with -1 for the others."""
    if kept is None:
        return image.masked_fill(~valid, -1), boxes
    return image[kept], boxes[kept]


def gather_objects(values: Tensor, image: Tensor, slots: Tensor) -> Tensor:
    """values (B, G, ...) at (image, slot) of each row: (N, ...)."""
    return values[image, slots]


def objectness_loss(logits: Tensor, positive: Tensor, taken: Tensor) -> Tensor:
    """Binary cross-entropy of sampled anchors: (B, S) logits, bool, bool -> (B,)."""
    loss = F.binary_cross_entropy_with_logits(logits.float(), positive.float(), reduction="none")
    return (loss * taken).sum(dim=1)


def anchor_box_loss(deltas: Tensor, targets: Tensor, positive: Tensor, beta: float) -> Tensor:
    """Smooth L1 over the positive anchors: (B, S, 4), (B, S, 4), (B, S) -> (B,)."""
    loss = F.smooth_l1_loss(deltas.float(), targets, beta=beta, reduction="none").sum(dim=2)
    return loss.masked_fill(~positive, 0.0).sum(dim=1)


def class_loss(logits: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """Cross-entropy of regions: (N, K + 1), (N,) int64, (N,) -> (N,)."""
    return F.cross_entropy(logits.float(), labels, reduction="none") * weight


def region_box_loss(deltas: Tensor, targets: Tensor, labels: Tensor, positive: Tensor, beta: float) -> Tensor:
    """Smooth L1 of positive regions' deltas for their own class.

    deltas    (N, 4 * (K + 1)), targets (N, 4), labels (N,) int64, positive (N,) bool
    return    (N,)
    """
    own = labels.view(-1, 1, 1).expand(-1, 1, 4)
    mine = deltas.float().unflatten(1, (-1, 4)).gather(1, own).squeeze(1)
    loss = F.smooth_l1_loss(mine, targets, beta=beta, reduction="none").sum(dim=1)
    return loss.masked_fill(~positive, 0.0)


def mask_loss(logits: Tensor, targets: Tensor, weight: Tensor) -> Tensor:
    """Mean binary cross-entropy over a mask's points: (N, S, S), (N, S, S), (N,) -> (N,)."""
    loss = F.binary_cross_entropy_with_logits(logits.float(), targets, reduction="none")
    return loss.mean(dim=(1, 2)) * weight


def per_image(values: Tensor, image: Tensor, images: int) -> Tensor:
    """Sum the rows of each image: (N,) values, (N,) image numbers -> (images,)."""
    return values.new_zeros(images).index_add(0, image, values)
