"""Choose among the forms of an operation `x`: `x_fixed`, whose shapes follow from shapes alone, `x_cpu`, and for some our own kernel.

On an accelerator the host must not read a value, or it waits for the device. On a CPU reading values is free, and work can follow
the rows that exist. Tests hold the two forms equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from torch import Tensor

# (boxes, valid, iou, classes) -> which are kept: see `nms_fixed` in nms.py, whose answer it must be.
Suppression: TypeAlias = Callable[[Tensor, Tensor, float, Tensor | None], Tensor]

_everywhere = False
_triton = False
_suppression: Suppression | None = None


def uses_static_shapes(tensor: Tensor) -> bool:
    """Whether a computation on `tensor` takes the form of fixed shapes: off a CPU, and inside `static_shapes`."""
    return _everywhere or tensor.device.type != "cpu"


def set_triton(wanted: bool) -> None:
    """Set for the rest of the process whether CUDA takes our kernels in Triton where there is one."""
    global _triton
    _triton = wanted


def uses_triton(tensor: Tensor) -> bool:
    """Whether a computation on `tensor` takes our kernel in Triton: for boxes and pooled cells the fixed form's bits."""
    return _triton and tensor.device.type == "cuda"


def run_per_image_on_cpu(labels: Tensor) -> Iterator[tuple[slice, int]]:
    """Image by image, for a CPU's form: results stay in the cache, and slots behind the last object cost nothing.

    labels   (B, G), 0 marks an empty slot
    return   for each image a slice of any (B, ...), and the number of slots up to its last object
    """
    for image, row in enumerate(labels):
        filled = row.nonzero()
        yield slice(image, image + 1), int(filled[-1]) + 1 if len(filled) else 0


def uses_own_nms() -> Suppression | None:
    """What `static_shapes` was given."""
    return _suppression


@contextmanager
def static_shapes(*, suppression: Suppression | None = None) -> Iterator[None]:
    """Inside, a CPU takes the accelerators' forms too, forward and backward: to test, record or export them.

    suppression  in place of our own, for an export to where it is one operator
    """
    global _everywhere, _suppression
    before = _everywhere, _suppression
    _everywhere, _suppression = True, suppression
    try:
        yield
    finally:
        _everywhere, _suppression = before
