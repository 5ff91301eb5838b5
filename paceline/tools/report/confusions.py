"""Which classes are taken for which: the matrix, and the most frequent pairs.

Letters: K classes; 0 is background, of a classifier unused
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paceline.models.metrics.detection_errors import BACKGROUND_CLASS


class ConfusionCell(NamedTuple):
    """One cell of the drawn matrix."""

    text: str
    share: float  # of the row
    tone: str  # a class of the page's style
    pair: str  # what the gallery's tiles of this cell are marked with; "" where it has none


def class_pair(true: int, result: int) -> str:
    """The mark of an object of one class that was taken for another."""
    return f"{true}-{result}"


def list_mistakes(counts: np.ndarray, names: Sequence[str], most: int) -> list[tuple[str, str, int, float, str]]:
    """(class, taken for, times, share of the class's objects, mark) of the most frequent confusions of two classes."""
    pairs = [
        (
            *(names[true - 1], names[result - 1]),
            *(int(counts[true, result]), float(counts[true, result] / counts[true].sum()), class_pair(true, result)),
        )
        for true, result in np.argwhere(counts).tolist()
        if true != result and BACKGROUND_CLASS not in (true, result)
    ]
    return sorted(pairs, key=lambda pair: (-pair[2], pair[0], pair[1]))[:most]


def format_confusion_matrix(
    counts: np.ndarray, names: Sequence[str], *, background: bool = True
) -> list[tuple[str, list[ConfusionCell]]]:
    """Rows of the drawn matrix, background last both ways where there is one: (class, cells).

    counts  (K+1, K+1): objects of a class (row) found as a class (column)
    """
    order = [*range(1, len(names) + 1), *([BACKGROUND_CLASS] if background else [])]
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)

    def cell(true: int, match: int) -> ConfusionCell:
        text = f"{counts[true, match]:,}" if true or match else ""
        tone = "good" if true == match else "bad"
        wrong = true != match and counts[true, match]
        return ConfusionCell(text, float(shares[true, match]), tone, class_pair(true, match) if wrong else "")

    return [(names[true - 1] if true else "no object", [cell(true, result) for result in order]) for true in order]
