"""One rank of the tests in test_tiny_ranks.py: the real command line, computing in float64 wherever training has float32.

In float32 a recipe with ReLUs and chosen proposals is chaotic: a rounding error of 1e-7, in a sum that is added in another
order, is 1e-3 after ten steps. In float64 it stays below 1e-9, so whatever is larger is an error of the arithmetic itself.
"""

from __future__ import annotations

import torch
from torch.overrides import TorchFunctionMode
from training_rank import main as command_line

from paceline.tasks.task import Task


class Double(TorchFunctionMode):
    """Wherever float32 is named, float64 is meant."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        swapped = [torch.float64 if value is torch.float32 else value for value in args]
        return func(*swapped, **{name: torch.float64 if v is torch.float32 else v for name, v in kwargs.items()})


def main() -> int:
    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign]  in a backward too, where no mode is heard
    build = Task.build
    Task.build = lambda self, device: build(self, device).double()  # type: ignore[method-assign]
    with Double():
        return command_line()
