"""The masks of a split's objects as compressed run lengths, made once and kept as bytes.

Letters: n images   M' objects of these images   N images of the split
Polygons are rasterised as COCO's tools do it, at the photo's own size, and the polygons of one object are merged; run lengths stay
as they are. hotcoco does it, to the same strings as pycocotools (tests/oracle/test_mask_pycocotools.py).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from paceline.boxes.run_lengths import RunLengths, compress, ranges
from paceline.store.box_split import BoxSplit

# Objects whose plain runs are turned into strings at once: a few megabytes of them.
CHUNK = 4096


class ObjectMasks(NamedTuple):
    """The objects of n images, one image after the other."""

    masks: RunLengths  # M' strings
    known: np.ndarray  # (M',) bool; where an object has no mask, its box, filled, stands in


def has_masks(split: BoxSplit) -> bool:
    """Whether any object of the split has polygons or run lengths."""
    return len(split.polygon_points) > 0 or len(split.rle_counts) > 0


def truth_masks(split: BoxSplit, numbers: np.ndarray) -> ObjectMasks:
    """The masks of all objects of some images, about 30 microseconds and 100 bytes each.

    numbers  (n,) of the images, in 0..N-1, in any order
    Crowds and objects that training leaves out are among them; rows are those of metrics.coco.subset(truth, numbers).
    """
    parts, known = [RunLengths.of([])], [np.zeros(0, bool)]
    numbers = np.asarray(numbers, np.int64)
    rows, places = ranges(split.object_starts[numbers], split.object_starts[numbers + 1])
    image_of = numbers[places]
    polygons, runs = np.diff(split.object_polygons)[rows] > 0, np.diff(split.object_rles)[rows] > 0
    for first in range(0, len(rows), CHUNK):
        chunk = slice(first, first + CHUNK)
        with_runs = np.flatnonzero(runs[chunk] & ~polygons[chunk])
        counts = [split.rle(int(row)) for row in rows[chunk][with_runs]]
        starts = np.cumsum([0, *map(len, counts)])
        strings = dict(
            zip(with_runs.tolist(), compress(np.concatenate([np.zeros(0, np.int64), *counts]).astype(np.int64), starts))
        )
        parts.append(
            RunLengths.of(
                [
                    strings.get(place) or _rasterised(split, int(row), int(image))
                    for place, (row, image) in enumerate(zip(rows[chunk], image_of[chunk]))
                ]
            )
        )
        known.append(polygons[chunk] | runs[chunk])
    return ObjectMasks(RunLengths.join(parts), np.concatenate(known))


def _rasterised(split: BoxSplit, row: int, image: int) -> bytes:
    """The polygons of an object, or its box, as one string."""
    from hotcoco import mask

    height, width = int(split.heights[image]), int(split.widths[image])
    polygons = [points.reshape(-1).tolist() for points in split.polygons(row)]
    if polygons:
        return mask.merge(mask.fr_py_objects(polygons, height, width))["counts"]
    return mask.fr_bbox(split.boxes[row].tolist(), height, width)["counts"]
