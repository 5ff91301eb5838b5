"""A batch for detection: images with their objects, padded so that every tensor's shape comes from a few choices.

Letters: B images, G object slots of an image, H and W pixels of the network's input
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paceline.batch.batch import Batch

SLOTS = (8, 16, 32, 64, 128, 256, 512)


@dataclass(frozen=True)
class DetectionBatch(Batch):
    """Images and objects of one forward on one rank.

    labels   (B, G) int64, class 1..K; 0 marks an empty slot. An image's objects fill its first slots
    boxes    (B, G, 4) float32, left, top, right, bottom as fractions of the network's input; zeros in empty slots
    indices  (B,) int64, as in Batch
    """

    boxes: Tensor


@dataclass(frozen=True)
class Objects:
    """The objects of one image as the input path hands them over. No objects: shapes (0, 4) and (0,).

    boxes    (n, 4) float32, left, top, right, bottom as fractions of the network's input
    classes  (n,) int64, 1..K
    """

    boxes: np.ndarray
    classes: np.ndarray


def slots_for(objects: int) -> int:
    """The number of slots that holds so many objects: 8, 16, 32, 64, ..., so that shapes repeat."""
    for slots in SLOTS:
        if objects <= slots:
            return slots
    return -(-objects // SLOTS[-1]) * SLOTS[-1]


def raster_boxes(slots: int) -> Tensor:
    """(slots, 4) fractions of a photo: boxes of a quarter of its sides, distinct up to 256, inside, for a batch that is made up."""
    step = torch.arange(slots)
    left, top = (step % 16) * (3 / 4 / 16), (step // 16 % 16) * (3 / 4 / 16)
    return torch.stack((left, top, left + 1 / 4, top + 1 / 4), dim=1)


def detection_batch(images: Tensor, objects: Sequence[Objects], indices: Tensor, *, least: int = 0) -> DetectionBatch:
    """Pad the objects of B images to the slots that their largest number needs.

    images   (B, 3, H, W) uint8
    indices  (B,) int64
    least    slots for so many objects, whether they are there or not
    """
    slots = slots_for(max(least, *(len(entry.classes) for entry in objects), 0))
    labels = torch.zeros(len(objects), slots, dtype=torch.int64)
    boxes = torch.zeros(len(objects), slots, 4)
    for place, entry in enumerate(objects):
        if len(entry.classes):
            labels[place, : len(entry.classes)] = torch.from_numpy(entry.classes)
            boxes[place, : len(entry.classes)] = torch.from_numpy(entry.boxes)
    return DetectionBatch(images=images, labels=labels, indices=indices, boxes=boxes)
