"""What travels from data to model: one image before batching, and a batch.

Letters: B images, H and W pixels of the network's input.
These two dataclasses are all that `data/` and `models/` share, so shapes and units stand here once.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

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
