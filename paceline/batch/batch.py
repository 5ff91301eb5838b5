"""What travels from data to model: one image before batching, and a batch.

Letters: B images, H and W pixels of the network's input.
These two dataclasses are all that `data/` and `models/` share, so shapes and units stand here once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor


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

    def to(self, device, *, non_blocking: bool = False, copy: bool = False) -> Batch:
        """The same batch with every tensor on `device`; with copy, in memory of its own."""
        moved = {
            field.name: getattr(self, field.name).to(device, non_blocking=non_blocking, copy=copy)
            for field in fields(self)
        }
        return replace(self, **moved)


def labelled_batch(images: Tensor, labels: Sequence[int], indices: Tensor, *, least: int = 0) -> Batch:
    """A batch whose labels are class indices. `least` counts for batches with objects."""
    return Batch(images=images, labels=torch.tensor(labels, dtype=torch.int64), indices=indices)


def plain_images(images: int, shape: tuple[int, int], *, level: int = 0) -> Tensor:
    """(images, 3, H, W) uint8 in the memory format of a loader's, all of one `level`, on the current default device."""
    return torch.full((images, *shape, 3), level, dtype=torch.uint8).permute(0, 3, 1, 2)
