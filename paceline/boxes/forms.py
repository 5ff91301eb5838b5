"""Which of its two forms an operation takes: shapes that follow from shapes alone, or work that follows from values.

On an accelerator the host must not learn a value, or it waits for the device; on a CPU it costs nothing to know how many rows
there are, and rows that are not there cost nothing either. Tests hold the two forms equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

_everywhere = False


def fixed_shapes(tensor: Tensor) -> bool:
    """Whether what is computed from `tensor` keeps to shapes that are known beforehand: off a CPU, and inside `fixed`."""
    return _everywhere or tensor.device.type != "cpu"


@contextmanager
def fixed() -> Iterator[None]:
    """Inside, a CPU takes the accelerators' forms too, forward and backward: to try them, record them, or export them."""
    global _everywhere
    before, _everywhere = _everywhere, True
    try:
        yield
    finally:
        _everywhere = before
