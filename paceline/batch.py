"""What travels from data to model: a batch, and how the tensors of one lie in a flat memory.

Letters: B images, H and W pixels of the network's input.
Its dataclasses are all that `input/` and `models/` share, so shapes and units stand here once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

# Where a tensor may begin in a flat memory, bytes: as the allocators of accelerators align theirs, which kernels rely on.
ALIGNMENT = 512


@dataclass(frozen=True)
class Batch:
    """Images of one forward on one rank, as the loader hands them over.

    images   (B, 3, H, W) uint8, RGB, 0..255; memory is channels_last where the loader was asked for it
    labels   (B,) int64, class index 0..K-1
    indices  (B,) int64, each sample's number in the data set's index: names an image in a failure bundle or a picture
    """

    images: Tensor
    labels: Tensor
    indices: Tensor

    def __len__(self) -> int:
        return self.images.shape[0]

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by its field's name, in the fields' order."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def to(self, device, *, copy: bool = False) -> Batch:
        """The same batch with every tensor on `device`; with copy, in memory of its own."""
        return replace(self, **{name: tensor.to(device, copy=copy) for name, tensor in self.tensors().items()})


def labelled_batch(images: Tensor, labels: Sequence[int], indices: Tensor, *, least: int = 0) -> Batch:
    """A batch whose labels are class indices. `least` counts for batches with objects."""
    return Batch(images=images, labels=torch.tensor(labels, dtype=torch.int64), indices=indices)


def plain_images(images: int, shape: tuple[int, int], *, level: int = 0) -> Tensor:
    """(images, 3, H, W) uint8 in the memory format of a loader's, all of one `level`, on the current default device."""
    return torch.full((images, *shape, 3), level, dtype=torch.uint8).permute(0, 3, 1, 2)


def room_for(tensors: Sequence[Tensor]) -> int:
    """Bytes of a flat memory that holds tensors of these shapes, formats and strides, one after another."""
    return _starts(tensors)[-1]


def laid_out(tensors: Sequence[Tensor], memory: Tensor) -> list[Tensor]:
    """Views of a flat uint8 memory with room for them, with the shape of `tensors` and their dimensions in the same order.

    The same tensors lie at the same places of any memory; nothing is copied. Views are dense, `tensors` need not be.
    """
    views = []
    for tensor, start in zip(tensors, _starts(tensors)):
        flat = memory[start : start + tensor.numel() * tensor.element_size()].view(tensor.dtype)
        views.append(flat.as_strided(tensor.shape, _dense_strides(tensor)))
    return views


def _dense_strides(tensor: Tensor) -> Sequence[int]:
    """As torch.empty_like's; on the meta device, where nothing would be allocated, that takes two seconds to begin."""
    strides, step = [0] * tensor.ndim, 1
    for dimension in sorted(range(tensor.ndim), key=lambda d: (tensor.stride(d), -d)):
        strides[dimension] = step
        step *= tensor.shape[dimension]
    own = tensor.stride()  # of a dimension of one they mean nothing, and stay as they are
    dense = all(size < 2 or mine == theirs for size, mine, theirs in zip(tensor.shape, strides, own))
    return own if dense else strides


def _starts(tensors: Sequence[Tensor]) -> list[int]:
    """Where each begins, and where the last one's room ends."""
    sizes = (tensor.numel() * tensor.element_size() for tensor in tensors)
    return list(accumulate((-(-size // ALIGNMENT) * ALIGNMENT for size in sizes), initial=0))


# What a forward gives back for the step: losses by name, and what divides them.
#
# Three forms, none of which divides by the number of images. Losses are float32 on the device, counts of any number type:
# - "loss", which is trained, and its parts by name, which are logged: scalars, summed over the batch's images;
# - the same, undivided, and under DIVIDE_BY the count that divides them over the global batch, once the step knows it of all ranks;
# - of a recipe with `model.loss_group`: sums and counts of each term and group (paceline/training/loss_groups.py).


DIVIDE_BY = "divide by"  # with a blank: no part of a loss has this name


# A batch for detection: images with their objects, padded so that every tensor's shape comes from a few choices.
#
# Letters: B images, G object slots of an image, H and W pixels of the network's input


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


# A batch for instance segmentation: photos padded into one bucket, their objects, and each object's mask on a small canvas.
#
# Letters: B images   G object slots of an image   H, W pixels of the network's input   C canvas side   D places for detections
# A photo lies in the top left corner of the input; what is right of it and below it is padding.


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
