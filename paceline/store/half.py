"""Two halves of a data set's validation photos: on "tune" settings are chosen, on "test" the result is scored once.

A photo's half is decided by its file's name alone, without folders: it is the same in each layout and container that keeps the
names, on each machine, and stays what it is when other photos come or go. Photos of one scene under different names may be parted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


def in_half(names: Iterable[bytes], half: str) -> np.ndarray:
    """(N,) bool, for N photos by their paths: half "test" has those whose SHA-256 of the last part begins with a set bit; "": all."""
    import numpy as np  # what prints a half's name needs none

    test = np.array([hashlib.sha256(name.rpartition(b"/")[2]).digest()[0] >= 128 for name in names], bool)
    return test if half == "test" else ~test if half == "tune" else np.ones_like(test)


def half_in_words(half: object) -> str:
    """As a run.json has it, as "half test"; "" where all photos are meant."""
    return f"half {half}" if half in ("tune", "test") else ""
