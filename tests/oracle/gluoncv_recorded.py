"""The files that scripts/originals/gluoncv_maskrcnn.py records: the repository's, or in the nightly run new ones of a drawn seed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

Recorded = Callable[[str], Mapping[str, np.ndarray]]
ELSEWHERE = "PACELINE_GLUONCV_RECORDED"  # a folder with new ones: see test_gluoncv_anew.py


def reader() -> Recorded:
    """-> the arrays of a part by its name."""
    folder = Path(os.environ.get(ELSEWHERE, Path(__file__).parent / "recorded"))

    def read(part: str) -> Mapping[str, np.ndarray]:
        with np.load(folder / f"gluoncv_{part}.npz", allow_pickle=False) as file:
            return dict(file)

    return read
