"""Whether two samples may come from one distribution: Kolmogorov and Smirnov's test, in the few lines that it is."""

from __future__ import annotations

import numpy as np


def differ(left: np.ndarray, right: np.ndarray, *, chance: float = 1e-4) -> bool:
    """True where samples (n,) and (m,) of one distribution would be as far apart with a probability below `chance`."""
    places = np.sort(np.concatenate([left, right]))
    shares = [np.searchsorted(np.sort(sample), places, side="right") / len(sample) for sample in (left, right)]
    most = np.sqrt(-np.log(chance / 2) / 2 * (1 / len(left) + 1 / len(right)))
    return bool(np.abs(shares[0] - shares[1]).max() > most)
