"""Whether scores mean what they say: of the answers with a score of 0.8, is four fifths right?

Source: Guo et al. 2017 (expected calibration error); of detections, Kueppers et al. 2020.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

BINS = 10  # of equal width


class Bin(NamedTuple):
    """Answers of similar score."""

    score: float  # mean
    right: float  # share, 0..1
    answers: int


def reliability(scores: np.ndarray, right: np.ndarray) -> tuple[list[Bin], float | None]:
    """-> the bins that have answers, and the expected calibration error: the mean distance of score and share, by answers.

    scores, right   (n,) in 0..1, and bool; the error is None where n is 0
    """
    places = np.clip((scores * BINS).astype(int), 0, BINS - 1)
    bins = [
        Bin(float(scores[mine].mean()), float(right[mine].mean()), int(mine.sum()))
        for place in range(BINS)
        if (mine := places == place).any()
    ]
    return bins, sum(each.answers * abs(each.score - each.right) for each in bins) / len(scores) if bins else None
