"""Parts of a data set that a run is evaluated on in place of its validation photos.

A half of the validation photos: settings are chosen on "tune", and the result is measured once on "test". The name of a photo's
file decides its half, without folders: it is the same in each layout and container that keeps the names, on each machine, and stays
what it is when other photos come or go. Photos of one scene under different names may be in different halves.

A fold is one part of the training photos; a run learns from all others. A manifest that carries one reads as a data set whose "val"
is that part; the real validation split is not touched. data/prepare/val_split.py decides which photos are in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Fold:
    """Part `number` of `of`, 1 to `of`."""

    number: int
    of: int
    seed: int  # of the division; a recipe's seed has no part in it
    group: str  # the pattern of photos that stay together; "" = none but those of equal content
    held_out: np.ndarray  # (N,) bool, the training photos of this part

    def facts(self, data_hash: str) -> dict[str, Any]:
        """For run.json, data.fold; data_hash: of the data set, alike in all folds."""
        return {"number": self.number, "of": self.of, "seed": self.seed, "group": self.group, "data": data_hash}

    def hash(self, data_hash: str) -> str:
        """64 hex digits: equal exactly where data set and held out photos are."""
        return hashlib.sha256(data_hash.encode() + self.held_out.tobytes()).hexdigest()


def format_fold(facts: Any) -> str:
    """`Fold.facts`, as a run.json has them, as "fold 2 of 5", with a seed where it is not 0; "" of no fold."""
    if not isinstance(facts, Mapping):
        return ""
    seed = f" (seed {facts['seed']})" if facts.get("seed") else ""
    return f"fold {facts.get('number')} of {facts.get('of')}{seed}"


def select_half(names: Iterable[bytes], half: str) -> np.ndarray:
    """(N,) bool, for N photos by their paths: half "test" has those whose SHA-256 of the last part begins with a set bit; "": all."""
    import numpy as np  # what prints a half's name needs none

    test = np.array([hashlib.sha256(name.rpartition(b"/")[2]).digest()[0] >= 128 for name in names], bool)
    return test if half == "test" else ~test if half == "tune" else np.ones_like(test)


def format_half(half: object) -> str:
    """As a run.json has it, as "half test"; "" where all photos are meant."""
    return f"{half} subset" if half in ("tune", "test") else ""
