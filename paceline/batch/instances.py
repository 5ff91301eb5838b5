"""A batch for instance segmentation: photos padded into one bucket, their objects, and each object's mask on a small canvas.

Letters: B images   G object slots of an image   H, W pixels of the network's input   C canvas side   D places for detections
A photo lies in the top left corner of the input; what is right of it and below it is padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from paceline.batch.batch import Batch
from paceline.batch.detection import Objects, detection_batch


@dataclass(frozen=True)
class InstanceBatch(Batch):
    """Photos and objects of one forward on one rank.

    labels    (B, G) int64, class 1..K; 0 marks an empty slot. An image's objects fill its first slots
    indices   (B,) int64, as in Batch
    boxes     (B, G, 4) float32, left, top, right, bottom in pixels of the network's input; zeros in empty slots
    sizes     (B, 2) int64, height and width of the photo in the input, pixels
    keys      (B,) int64 in [0, 2^32): the image's random key, from which all sampling of its anchors and regions is drawn
    canvases  (B, G, C + 2, C + 2) uint8, 0 or 1: the mask around each object, with a ring of one canvas pixel
    frames    (B, G, 4) float32: where a canvas lies: x and y of the left upper corner of canvas pixel (1, 1), pixels of
              the input, then the width and the height of a canvas pixel. Width and height are 1, and x and y whole, where
              the object fits: then the canvas is a cut-out of the mask at the input's own resolution
    """

    boxes: Tensor
    sizes: Tensor
    keys: Tensor
    canvases: Tensor
    frames: Tensor


@dataclass(frozen=True)
class InstanceObjects(Objects):
    """The objects of one photo as the input path hands them over. No objects: n = 0.

    boxes      (n, 4) float32, left, top, right, bottom, pixels of the network's input
    classes    (n,) int64, 1..K
    canvases   (n, C + 2, C + 2) uint8, see InstanceBatch
    frames     (n, 4) float32, see InstanceBatch
    size       height and width of the photo in the input, pixels
    key        the image's random key in [0, 2^32)
    """

    canvases: np.ndarray
    frames: np.ndarray
    size: tuple[int, int]
    key: int


# What an accelerator's fixed shapes can leave open in a photo; a CPU computes every case in full.
APPROXIMATED: tuple[str, ...] = (
    "unsettled_boxes",  # candidates whose suppression still changed when its rounds were over
    "candidates_left_out",  # detections that scored enough and were more than enter suppression
)


class FoundInstances(NamedTuple):
    """What a network finds in B photos, best first; empty places are zeros, class 0.

    detections  (B, D, 6) float32: left, top, right, bottom as fractions of the photo (not of the padding), score, class 1..K
    masks       (B, D, S, S) float32: probability that a point of the box belongs to the object; S is 28 as published
    open        (B, 2) int64, the numbers that APPROXIMATED names; None on a CPU, where there are none
    """

    detections: Tensor
    masks: Tensor
    open: Tensor | None = None


def instance_batch(
    images: Tensor, objects: Sequence[InstanceObjects], indices: Tensor, *, least: int = 0
) -> InstanceBatch:
    """Pad the objects of B photos to the slots that their largest number needs.

    images   (B, 3, H, W) uint8
    indices  (B,) int64
    least    slots for so many objects, whether they are there or not
    """
    plain = detection_batch(images, objects, indices, least=least)
    slots = plain.boxes.shape[1]
    side = max((entry.canvases.shape[-1] for entry in objects), default=2)
    frames = torch.zeros(len(objects), slots, 4)
    frames[..., 2:] = 1.0  # nothing divides by 0 in an empty slot
    canvases = torch.zeros(len(objects), slots, side, side, dtype=torch.uint8)
    for place, entry in enumerate(objects):
        if count := len(entry.classes):
            frames[place, :count] = torch.from_numpy(entry.frames)
            canvases[place, :count] = torch.from_numpy(entry.canvases)
    return InstanceBatch(
        **plain.tensors(),
        sizes=torch.tensor([entry.size for entry in objects], dtype=torch.int64).reshape(-1, 2),
        keys=torch.tensor([entry.key for entry in objects], dtype=torch.int64),
        canvases=canvases,
        frames=frames,
    )
