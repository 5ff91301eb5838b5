"""Rows of tables that have several for each image: those of image i are starts[i] to starts[i + 1] - 1."""

from __future__ import annotations

import numpy as np


def ranges(starts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The numbers starts[i] .. stops[i] - 1 of every i, one after the other, and the i of each; no stop lies before its start."""
    counts = stops - starts
    owners = np.repeat(np.arange(len(counts)), counts)
    return np.arange(len(owners)) + np.repeat(stops - np.cumsum(counts), counts), owners


def rows_of(starts: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """The rows of these images, image after image.

    starts   (N+1,) int64
    numbers  (n,) int64 in 0..N-1
    """
    return ranges(starts[numbers], starts[numbers + 1])[0]
