"""Lines of mllog.txt in an order that two runs with the same results share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Line = TypeVar("Line")
NEXT_BLOCK = ("block_stop", "block_start", "epoch_start", "run_stop")


def by_step(lines: Iterable[Line], about: Callable[[Line], tuple[str, float]]) -> list[Line]:
    """Of one step's lines, those of its evaluation first, then the block that follows.

    about  a line -> (its key, its step or None)
    Which of the two came first in time depends on whether training went on beside scoring, or was resumed there.
    """

    def place(line: Line) -> tuple[float, int]:
        key, step = about(line)
        return -1 if step is None else step, NEXT_BLOCK.index(key) + 1 if key in NEXT_BLOCK else 0

    return sorted(lines, key=place)
