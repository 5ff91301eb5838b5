"""A fold: one part of the training photos, on which a run is evaluated while it learns from all others.

A manifest that carries one reads as a data set whose "val" is that part; the real validation split is not touched. Which photos
are in it is decided by datasets/folds.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
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
        return {
            "number": self.number,
            "of": self.of,
            "seed": self.seed,
            "group": self.group,
            "data": data_hash,
        }

    def hash(self, data_hash: str) -> str:
        """64 hex digits: equal exactly where data set and held out photos are."""
        return hashlib.sha256(data_hash.encode() + self.held_out.tobytes()).hexdigest()


def fold_in_words(facts: Any) -> str:
    """`Fold.facts`, as a run.json has them, as "fold 2 of 5", with a seed where it is not 0; "" of no fold."""
    if not isinstance(facts, Mapping):
        return ""
    seed = f" (seed {facts['seed']})" if facts.get("seed") else ""
    return f"fold {facts.get('number')} of {facts.get('of')}{seed}"
