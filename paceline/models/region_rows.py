"""Sampled regions of a batch's images as rows of one table, and what an image has for each row.

Letters: N rows   B images   G object slots of an image   R regions
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Regions(NamedTuple):
    """Sampled regions as rows; a row of weight 0 fills a place."""

    image: Tensor  # (N,) int64, place in the batch; -1 where the weight is 0
    boxes: Tensor  # (N, 4) ltrb, pixels
    slots: Tensor  # (N,) int64, the object of a positive row
    positive: Tensor  # (N,) bool
    shaped: Tensor  # (N,) bool, positives whose box and mask train: no more of an image than its share of positives
    weight: Tensor  # (N,) float32


def rows_of_images(images: int, rows: int, device: torch.device) -> Tensor:
    """0 rows times, 1 rows times, ...: (images * rows,) int64."""
    return torch.arange(images, device=device).repeat_interleave(rows, output_size=images * rows)


def kept_rows(kept: Tensor | None, image: Tensor, boxes: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Image numbers and boxes of the kept rows; of all rows where None, with -1 for the others."""
    if kept is None:
        return image.masked_fill(~valid, -1), boxes
    return image[kept], boxes[kept]


def objects_of(values: Tensor, image: Tensor, slots: Tensor) -> Tensor:
    """values (B, G, ...) at (image, slot) of each row: (N, ...)."""
    return values[image, slots]
