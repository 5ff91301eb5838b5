"""What travels from data to model: the batches of each workload, and the layout of a batch's tensors in a flat memory.

Letters: B images   G object slots of an image   H, W pixels of the network's input   C canvas side   D places for detections
Its dataclasses are all that `data/` and `models/` share, so shapes and units are here once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

# Alignment of tensors in a flat memory, bytes: that of accelerators' allocators, which kernels rely on.
ALIGNMENT = 512


@dataclass(frozen=True)
class Batch:
    """Images of one forward on one rank, as the loader makes them."""

    images: Tensor  # (B, 3, H, W) uint8, RGB, 0..255; channels_last memory from a loader
    labels: Tensor  # (B,) int64, class index 0..K-1
    indices: (
        Tensor  # (B,) int64, each sample's number in the data set's index: names an image in a failure bundle or a picture
    )

    def __len__(self) -> int:
        return self.images.shape[0]

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by its field's name, in the fields' order."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def to(self, device, *, copy: bool = False) -> Batch:
        """The same batch with every tensor on `device`; with copy, in memory of its own."""
        return replace(self, **{name: tensor.to(device, copy=copy) for name, tensor in self.tensors().items()})


@dataclass(frozen=True)
class MixedBatch(Batch):
    """Photos of classes, still to be mixed with their neighbors: 2i and 2i + 1 are partners; B is even."""

    boxes: Tensor  # (B, 4) int64, left, top, right, bottom, pixels: where the partner shows
    shares: Tensor  # (B,) float32 in [0, 1]: of the partner's pixels there


class MixedClass(NamedTuple):
    """The label of one such photo, from the input path."""

    label: int
    box: tuple[int, int, int, int]  # see MixedBatch
    share: float


def labeled_batch(
    images: Tensor, labels: Sequence[int] | Sequence[MixedClass], indices: Tensor, *, least: int = 0
) -> Batch:
    """A batch whose labels are class indices, all mixed or none; `least` is for batches with objects."""
    if not labels or not isinstance(labels[0], MixedClass):
        return Batch(images=images, labels=torch.tensor(labels, dtype=torch.int64), indices=indices)
    classes, boxes, shares = zip(*labels)  # type: ignore[arg-type]  # all are, as the first
    return MixedBatch(
        images=images,
        labels=torch.tensor(classes, dtype=torch.int64),
        indices=indices,
        boxes=torch.tensor(boxes, dtype=torch.int64),
        shares=torch.tensor(shares, dtype=torch.float32),
    )


def gray_images(images: int, shape: tuple[int, int], *, level: int = 0) -> Tensor:
    """(images, 3, H, W) uint8 in a loader's memory format, all of one `level`, on the current default device."""
    return torch.full((images, *shape, 3), level, dtype=torch.uint8).permute(0, 3, 1, 2)


def count_bytes(tensors: Sequence[Tensor]) -> int:
    """Bytes of a flat memory for tensors of these shapes, formats and strides, one after another."""
    return _starts(tensors)[-1]


def view_tensors(tensors: Sequence[Tensor], memory: Tensor) -> list[Tensor]:
    """Views of a flat uint8 memory (see `count_bytes`) with the shapes and the dimension order of `tensors`; nothing is copied.

    The same tensors have the same places in any memory. Views are dense, `tensors` need not be.
    """
    views = []
    for tensor, start in zip(tensors, _starts(tensors)):
        flat = memory[start : start + tensor.numel() * tensor.element_size()].view(tensor.dtype)
        views.append(flat.as_strided(tensor.shape, _dense_strides(tensor)))
    return views


def _dense_strides(tensor: Tensor) -> Sequence[int]:
    """torch.empty_like's strides; calling it on the meta device, where nothing is allocated, takes two seconds to start."""
    strides, step = [0] * tensor.ndim, 1
    for dimension in sorted(range(tensor.ndim), key=lambda d: (tensor.stride(d), -d)):
        strides[dimension] = step
        step *= tensor.shape[dimension]
    own = tensor.stride()  # the stride of a dimension of one means nothing, and stays as it is
    dense = all(size < 2 or mine == theirs for size, mine, theirs in zip(tensor.shape, strides, own))
    return own if dense else strides


def _starts(tensors: Sequence[Tensor]) -> list[int]:
    """Offsets of each tensor, and the end of the last one's room."""
    sizes = (tensor.numel() * tensor.element_size() for tensor in tensors)
    return list(accumulate((-(-size // ALIGNMENT) * ALIGNMENT for size in sizes), initial=0))


# A forward returns losses by name, and what divides them, in three forms, none of which divides by the number of images. Losses are
# float32 on the device, counts of any number type:
# - "loss", which is trained, and its parts by name, which are logged: scalars, summed over the batch's images;
# - the same, undivided, and under DIVIDE_BY the count that divides them over the global batch, once the step knows it of all ranks;
# - of a recipe with `model.loss_normalizer_images`: sums and counts of each term and group (paceline/training/loss_normalization.py).
DIVIDE_BY = "divide by"  # with a blank: no part of a loss has this name
# Objects are padded to a few numbers of slots, so that shapes repeat.
SLOTS = (8, 16, 32, 64, 128, 256, 512)


@dataclass(frozen=True)
class DetectionBatch(Batch):
    """Images and objects of one forward on one rank.

    labels   (B, G) int64, class 1..K; 0 marks an empty slot. An image's objects fill its first slots
    """

    boxes: Tensor  # (B, G, 4) float32, left, top, right, bottom as fractions of the input; zeros in empty slots


@dataclass(frozen=True)
class Objects:
    """The objects of one image, from the input path. No objects: shapes (0, 4) and (0,)."""

    boxes: np.ndarray  # (n, 4) float32, left, top, right, bottom as fractions of the network's input
    classes: np.ndarray  # (n,) int64, 1..K


def count_slots(objects: int) -> int:
    """The number of slots for so many objects: 8, 16, 32, 64, ..."""
    return next((slots for slots in SLOTS if objects <= slots), -(-objects // SLOTS[-1]) * SLOTS[-1])


def raster_boxes(slots: int) -> Tensor:
    """(slots, 4) fractions of a photo, for a made-up batch: boxes of a quarter of its sides, inside it, distinct up to 256."""
    step = torch.arange(slots)
    left, top = (step % 16) * (3 / 4 / 16), (step // 16 % 16) * (3 / 4 / 16)
    return torch.stack((left, top, left + 1 / 4, top + 1 / 4), dim=1)


def detection_batch(images: Tensor, objects: Sequence[Objects], indices: Tensor, *, least: int = 0) -> DetectionBatch:
    """Pad the objects of B images to the slots for their largest number, or for `least` objects.

    images   (B, 3, H, W) uint8; indices (B,) int64
    """
    slots = count_slots(max(least, *(len(entry.classes) for entry in objects), 0))
    labels = torch.zeros(len(objects), slots, dtype=torch.int64)
    boxes = torch.zeros(len(objects), slots, 4)
    for index, entry in enumerate(objects):
        if len(entry.classes):
            labels[index, : len(entry.classes)] = torch.from_numpy(entry.classes)
            boxes[index, : len(entry.classes)] = torch.from_numpy(entry.boxes)
    return DetectionBatch(images=images, labels=labels, indices=indices, boxes=boxes)


@dataclass(frozen=True)
class InstanceBatch(Batch):
    """Photos padded into one bucket, their objects, and each object's mask on a small canvas: one forward on one rank.

    A photo is in the top left corner of the input; the rest is padding.
    labels    (B, G) int64, class 1..K; 0 marks an empty slot. An image's objects fill its first slots
    frames    (B, G, 4) float32, the place of a canvas: x and y of the left upper corner of canvas pixel (1, 1), pixels of the input,
              then the width and the height of a canvas pixel. Width and height are 1, and x and y whole, where the object fits: then
              the canvas is a cut-out of the mask at the input's own resolution
    """

    boxes: Tensor  # (B, G, 4) float32, left, top, right, bottom in pixels of the network's input; zeros in empty slots
    sizes: Tensor  # (B, 2) int64, height and width of the photo in the input, pixels
    keys: Tensor  # (B,) int64 in [0, 2^32): the image's random key, of all sampling of its anchors and regions
    canvases: Tensor  # (B, G, C + 2, C + 2) uint8, 0 or 1: the mask around each object, with a ring of one canvas pixel
    frames: Tensor


@dataclass(frozen=True)
class InstanceObjects(Objects):
    """The objects of one photo, from the input path; boxes in pixels of the network's input. No objects: n = 0."""

    canvases: np.ndarray  # (n, C + 2, C + 2) uint8, see InstanceBatch
    frames: np.ndarray  # (n, 4) float32, see InstanceBatch
    size: tuple[int, int]  # height and width of the photo in the input, pixels
    key: int  # the image's random key in [0, 2^32)


# What an accelerator's fixed shapes can leave open in a photo; a CPU computes every case in full.
APPROXIMATED: tuple[str, ...] = (
    "unsettled_boxes",  # candidates whose suppression still changed when its rounds were over
    "candidates_left_out",  # detections that scored enough and were more than enter suppression
)


class DetectedInstances(NamedTuple):
    """A network's detections in B photos, best first; empty places are zeros, class 0."""

    detections: (
        Tensor  # (B, D, 6) float32: left, top, right, bottom as fractions of the photo without padding, score, class 1..K
    )
    masks: Tensor | None  # (B, D, S, S) float32: probability that a point of the box is the object's; None: boxes alone
    open: Tensor | None = None  # (B, 2) int64, the numbers that APPROXIMATED names; None on a CPU


def instance_batch(images: Tensor, objects: Sequence[InstanceObjects], indices: Tensor, *, least: int = 0) -> InstanceBatch:
    """`detection_batch` with canvases and frames."""
    plain = detection_batch(images, objects, indices, least=least)
    slots = plain.boxes.shape[1]
    side = max((entry.canvases.shape[-1] for entry in objects), default=2)
    frames = torch.zeros(len(objects), slots, 4)
    frames[..., 2:] = 1.0  # no division by 0 in an empty slot
    canvases = torch.zeros(len(objects), slots, side, side, dtype=torch.uint8)
    for index, entry in enumerate(objects):
        if count := len(entry.classes):
            frames[index, :count] = torch.from_numpy(entry.frames)
            canvases[index, :count] = torch.from_numpy(entry.canvases)
    return InstanceBatch(
        **plain.tensors(),
        sizes=torch.tensor([entry.size for entry in objects], dtype=torch.int64).reshape(-1, 2),
        keys=torch.tensor([entry.key for entry in objects], dtype=torch.int64),
        canvases=canvases,
        frames=frames,
    )


class RepeatBatch:
    """One step's batches again and again, without further reading. wait_seconds: the time to make them."""

    def __init__(
        self, batches: Sequence[Batch], *, first_step: int, last_step: int | None, wait_seconds: float = 0.0
    ) -> None:
        self._batches = list(batches)
        self.wait_seconds = wait_seconds
        self._next_step, self._last_step = first_step, last_step

    @classmethod
    def first_of(cls, loader: Any, *, first_step: int, last_step: int | None) -> RepeatBatch:
        """The first step of a Loader, which it must have. The batches are copies, so the loader is closed."""
        with loader:
            _, batches = next(loader)
            copies = [batch.to(batch.images.device, copy=True) for batch in batches]
        return cls(copies, first_step=first_step, last_step=last_step, wait_seconds=loader.wait_seconds)

    def __enter__(self) -> RepeatBatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> RepeatBatch:
        return self

    def __next__(self) -> tuple[int, list[Batch]]:
        """The next step, with the same batches."""
        if self._next_step == self._last_step:
            raise StopIteration
        self._next_step += 1
        return self._next_step - 1, self._batches

    def close(self) -> None:
        """Nothing is open."""
