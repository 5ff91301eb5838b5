"""Which classes are taken for which: the matrix, and the most frequent pairs.

Letters: K classes; 0 is background, of a classifier unused
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paceline.models.metrics.confusion import BACKGROUND


class Cell(NamedTuple):
    """One cell of the drawn matrix."""

    text: str
    share: float  # of the row
    tone: str  # a class of the page's style
    pair: str  # what the gallery's tiles of this cell are marked with; "" where it has none


def pair_of(true: int, found: int) -> str:
    """The mark of an object of one class that was taken for another."""
    return f"{true}-{found}"


def mistakes(counts: np.ndarray, names: Sequence[str], most: int) -> list[tuple[str, str, int, float, str]]:
    """(class, taken for, times, share of the class's objects, mark) of the most frequent confusions of two classes."""
    pairs = [
        (
            *(names[true - 1], names[found - 1]),
            *(int(counts[true, found]), float(counts[true, found] / counts[true].sum()), pair_of(true, found)),
        )
        for true, found in np.argwhere(counts).tolist()
        if true != found and BACKGROUND not in (true, found)
    ]
    return sorted(pairs, key=lambda pair: (-pair[2], pair[0], pair[1]))[:most]


def confusion_matrix(counts: np.ndarray, names: Sequence[str], *, background: bool = True) -> list[tuple[str, list[Cell]]]:
    """Rows of the drawn matrix, background last both ways where there is one: (class, cells).

    counts  (K+1, K+1): objects of a class (row) found as a class (column)
    """
    order = [*range(1, len(names) + 1), *([BACKGROUND] if background else [])]
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)

    def cell(true: int, found: int) -> Cell:
        text = f"{counts[true, found]:,}" if true or found else ""
        tone = "good" if true == found else "bad"
        wrong = true != found and counts[true, found]
        return Cell(text, float(shares[true, found]), tone, pair_of(true, found) if wrong else "")

    return [(names[true - 1] if true else "no object", [cell(true, found) for found in order]) for true in order]
