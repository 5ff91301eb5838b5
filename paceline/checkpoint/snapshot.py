"""What a checkpoint holds: named groups of tensors, and facts that fit JSON.

Equal tensors give equal file bytes: clocks and all else that differs between two equal states belong in `facts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paceline.config.errors import CheckpointError


@dataclass(frozen=True)
class Snapshot:
    """One moment of a run.

    tensors  {group: {name: tensor}}; each group becomes the file GROUP.safetensors
    facts    JSON: position, best, clocks, recipe, ... (tuples come back as lists)
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


def copy_into(targets: Mapping[str, Tensor], saved: Mapping[str, Tensor], what: str) -> None:
    """Copy saved values into living tensors by name; their device and memory format stay.

    what   names the group in an error's text
    raise CheckpointError   names that only one side has, and shapes or types that differ
    """
    problems = [f"{name} is missing" for name in targets if name not in saved]
    problems += [f"{name} is not expected" for name in saved if name not in targets]
    for name in targets.keys() & saved.keys():
        have, want = saved[name], targets[name]
        if have.shape != want.shape or have.dtype != want.dtype:
            problems.append(
                f"{name} is {tuple(have.shape)} {have.dtype}, expected {tuple(want.shape)} {want.dtype}".replace(
                    "torch.", ""
                )
            )
    if problems:
        shown = "".join(f"\n  {problem}" for problem in sorted(problems)[:8])
        more = f"\n  and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise CheckpointError(f"{what}: the checkpoint holds other tensors.{shown}{more}")
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(saved[name])
