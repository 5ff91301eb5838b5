"""Which photos of a real set a test looks at: any of them must do, so by night others are drawn each time (conftest.py, `seed`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

Thing = TypeVar("Thing")


def some(things: Sequence[Thing], count: int, seed: int) -> list[Thing]:
    """`count` of them, in their order; by seed 0 the same in every run, evenly spread."""
    if seed == 0:
        return list(things[:: max(1, len(things) // count)][:count])
    places = np.random.default_rng(seed).choice(len(things), min(count, len(things)), replace=False)
    return [things[place] for place in sorted(places.tolist())]
