"""Which of its two forms an operation takes: shapes that follow from shapes alone, or work that follows from values.

On an accelerator the host must not learn a value, or it waits for the device; on a CPU it costs nothing to know how many rows
there are, and rows that are not there cost nothing either. Of an operation `x` the forms are `x_cpu` and `x_fixed`; tests hold
them equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

_everywhere = False


def fixed_shapes(tensor: Tensor) -> bool:
    """Whether what is computed from `tensor` keeps to shapes that are known beforehand: off a CPU, and inside `fixed`."""
    return _everywhere or tensor.device.type != "cpu"


def images_cpu(labels: Tensor) -> Iterator[tuple[slice, int]]:
    """Image by image, for a CPU's form: what is computed stays in the cache, and slots behind the last object cost nothing.

    labels   (B, G), 0 marks an empty slot
    return   of each image its rows of any (B, ...), and how many slots reach to its last object
    """
    for image, row in enumerate(labels):
        filled = row.nonzero()
        yield slice(image, image + 1), int(filled[-1]) + 1 if len(filled) else 0


@contextmanager
def fixed() -> Iterator[None]:
    """Inside, a CPU takes the accelerators' forms too, forward and backward: to try them, record them, or export them."""
    global _everywhere
    before, _everywhere = _everywhere, True
    try:
        yield
    finally:
        _everywhere = before
