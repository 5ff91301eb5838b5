"""The random inputs on which the MLPerf reference's Mask R-CNN was run: made again from a seed, by who records and by who tests.

numpy's RandomState keeps its sequences for ever, so they need not be stored. Boxes are ltrb pixels and name the last pixels
inside, as the reference's do.
"""

from __future__ import annotations

import numpy as np

SEED = 14
STRIDES = (4, 8, 16, 32, 64)
SHAPE = (128, 192)  # height and width of the input of random maps, pixels
PHOTOS = ((120, 190), (126, 186))  # height and width of the two photos in it
LEVELS = 4  # that regions are pooled from
REGIONS, PROPOSALS, CLASSES = 90, 300, 81
CHANNELS = 3
MASK_SIDE = 28
PASTED = 12


def stream(name: str) -> np.random.RandomState:
    """Random numbers that belong to a name."""
    return np.random.RandomState(SEED * 10000 + sum(name.encode()))


def normal(name: str, *shape: int, scale: float = 1.0) -> np.ndarray:
    """float32 normal numbers."""
    return (scale * stream(name).standard_normal(shape)).astype(np.float32)


def grids() -> list[tuple[int, int]]:
    """Height and width of each level's map."""
    return [(-(-SHAPE[0] // stride), -(-SHAPE[1] // stride)) for stride in STRIDES]


def boxes_in(name: str, count: int, height: int, width: int) -> np.ndarray:
    """(count, 4) float32 boxes of all sizes inside a photo."""
    random = stream(name)
    sides = np.exp(random.uniform(np.log(3), np.log(min(height, width) - 2), (count, 2)))
    corner = random.uniform(0, 1, (count, 2)) * (np.array([width, height]) - 1 - sides)
    return np.concatenate((corner, corner + sides), axis=1).astype(np.float32)


def head_maps() -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Of each level objectness logits (2, 3, h, w) and deltas (2, 12, h, w) of the proposal head."""
    logits = [normal(f"objectness {level}", 2, 3, *grid, scale=2.0) for level, grid in enumerate(grids())]
    return logits, [normal(f"deltas {level}", 2, 12, *grid, scale=0.1) for level, grid in enumerate(grids())]


def around(name: str, boxes: np.ndarray, count: int, height: int, width: int) -> np.ndarray:
    """(count, 4) proposals: moved and scaled copies of boxes, and some anywhere, inside the photo."""
    random = stream(name)
    near = boxes[random.randint(0, len(boxes), 2 * count // 3)]
    sides = np.tile(near[:, 2:] - near[:, :2] + 1, 2)
    near = near + random.uniform(-0.25, 0.25, near.shape).astype(np.float32) * sides
    low, high = np.minimum(near[:, :2], near[:, 2:]), np.maximum(near[:, :2], near[:, 2:])
    rest = boxes_in(name + " anywhere", count - len(near), height, width)
    found = np.concatenate((np.concatenate((low, high), axis=1), rest))
    return np.clip(found, 0, np.array([width - 1, height - 1] * 2)).astype(np.float32)


def box_head_output(name: str, regions: int) -> tuple[np.ndarray, np.ndarray]:
    """Class logits (regions, CLASSES) with some sure ones, and deltas (regions, 4 CLASSES)."""
    logits = normal(name + " logits", regions, CLASSES, scale=1.5)
    sure = stream(name + " sure").randint(0, 12, regions)
    logits[np.arange(regions), sure] += 6
    return logits, normal(name + " deltas", regions, 4 * CLASSES, scale=0.8)


def feature_maps() -> list[np.ndarray]:
    """Of each pooled level (2, CHANNELS, h, w)."""
    return [normal(f"features {level}", 2, CHANNELS, *grid) for level, grid in enumerate(grids()[:LEVELS])]
