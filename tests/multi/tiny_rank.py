"""One rank of the tests in test_tiny_ranks.py: the real command line, computing in float64 wherever training has float32.

In float32 a recipe with ReLUs and chosen proposals is chaotic: a rounding error of 1e-7, in a sum that is added in another
order, is 1e-3 after ten steps. In float64 it stays below 1e-9, so whatever is larger is an error of the arithmetic itself.
"""

from __future__ import annotations

from training_rank import main as command_line
from trajectories import in_float64

from paceline.models.task import Task


def main() -> int:
    build = Task.build
    Task.build = lambda self, device: build(self, device).double()  # type: ignore[method-assign]
    with in_float64():
        return command_line()
