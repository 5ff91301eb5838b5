"""What a checkpoint holds: named groups of tensors, and facts that fit JSON.

Equal tensors give equal file bytes: clocks and all else that differs between two equal states belong in `facts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Snapshot:
    """One moment of a run.

    tensors  {group: {name: tensor}}; each group becomes the file GROUP.safetensors
    facts    JSON: position, clocks, recipe, ... (tuples come back as lists)
    """

    tensors: Mapping[str, Mapping[str, Tensor]]
    facts: Mapping[str, Any]


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Bytes that `tensors` take on disk, headers aside."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def unusual_strides(tensor: Tensor) -> tuple[int, ...] | None:
    """The strides of a dense tensor that is not laid out row by row (channels_last, a transpose); None otherwise.

    Of a 1x1 convolution's weight both layouts hold the same bytes but have different strides; those count as well,
    because kernels and norms go by the strides.
    """
    rows = torch.empty(tensor.shape, device="meta").stride()
    if tensor.stride() == rows or tensor.numel() == 0:
        return None
    return tuple(tensor.stride()) if are_dense(tensor.shape, tensor.stride()) else None


def are_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a tensor's numbers fill its memory without a gap or an overlap: the strides are those of a permutation.

    A dimension of size 1 is never stepped over, so its stride may be any.
    """
    reach = 1
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size != 1):
        if stride != reach:
            return False
        reach *= size
    return all(stride >= 0 for stride in strides)


def with_strides(tensor: Tensor, strides: Iterable[int] | None) -> Tensor:
    """`tensor`'s values in memory of the given strides; itself where there are none.

    raise ValueError   the strides are none of a dense tensor of this shape: some numbers would share their memory
    """
    if strides is None:
        return tensor
    strides = tuple(strides)
    if not are_dense(tensor.shape, strides):
        raise ValueError(f"strides {strides} do not fit the shape {tuple(tensor.shape)}")
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)
