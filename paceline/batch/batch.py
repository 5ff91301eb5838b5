"""What travels from data to model: a batch, and how the tensors of one lie in a flat memory.

Letters: B images, H and W pixels of the network's input.
This dataclass is all that `data/` and `models/` share, so shapes and units stand here once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate

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
