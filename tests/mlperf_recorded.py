"""What the MLPerf reference's Mask R-CNN said when its own code ran (scripts/originals/mlperf_maskrcnn.py), and on which inputs.

Its boxes name the last pixels inside, and its widths are right - left + 1. `outside` moves them to where ours end: then widths,
areas and overlaps are the same numbers, and what is compared are the rules alone.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "tests" / "oracle" / "recorded" / "mlperf_maskrcnn.npz"
PHOTOS = (0, 1, 2, 3)


@cache
def recorded() -> dict[str, np.ndarray]:
    with np.load(RECORDED) as file:
        return dict(file)


@cache
def inputs() -> ModuleType:
    """scripts/originals/mlperf_maskrcnn_inputs.py."""
    folder = str(ROOT / "scripts" / "originals")
    sys.path.insert(0, folder)
    try:
        import mlperf_maskrcnn_inputs
    finally:
        sys.path.remove(folder)
    return mlperf_maskrcnn_inputs


def tensor(name: str) -> Tensor:
    return torch.from_numpy(recorded()[name])


def outside(boxes: Tensor | np.ndarray) -> Tensor:
    """(..., 4) ltrb whose right and bottom are the last pixels inside -> the same boxes by their edges."""
    return torch.as_tensor(boxes) + torch.tensor([0.0, 0.0, 1.0, 1.0])


class Masks(NamedTuple):
    """A photo's polygons, as models/maskrcnn/mask_targets.py reads them."""

    polygon_points: np.ndarray
    polygon_starts: np.ndarray
    object_polygons: np.ndarray
    rle_counts: np.ndarray
    object_rles: np.ndarray


def masks_of(photo: int) -> Masks:
    parts = [recorded()[f"photo{photo}_{name}"] for name in ("points", "lengths", "polygons")]
    points, starts, objects = parts[0], np.cumsum([0, *parts[1]]), np.cumsum([0, *parts[2]])
    return Masks(points, starts, objects, np.zeros(0, np.uint32), np.zeros(len(objects), np.int64))
