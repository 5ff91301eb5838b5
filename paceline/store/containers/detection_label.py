"""MXNet's detection label: the boxes of a photo, as the numbers of its RecordIO header.

    [A, B, A-2 further numbers, then for each object: class, xmin, ymin, xmax, ymax, B-5 further numbers]
A, the width of the header, is 2 or more; B, the width of an object, is 5 or more; coordinates are fractions of width and height,
classes count from 0. Source: MXNet 1.9.1, ImageDetIter._parse_label and tools/im2rec.py (--pack-label).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from paceline.config.errors import DataError

# A float32 tells whole numbers apart up to here.
_MOST_CLASS = 1 << 24


class Objects(NamedTuple):
    """Objects of one photo, M of them (0 too), in the label's order.

    boxes    (M, 4) float32 xyxy, fractions of width and height
    classes  (M,) int64, from 0
    extra    (M, B-5) float32, what further numbers say (difficult, for instance)
    """

    boxes: np.ndarray
    classes: np.ndarray
    extra: np.ndarray


def detection_objects(labels: np.ndarray, where: str) -> Objects:
    """`labels` (W,) float32 of one record, read as boxes. Raises DataError, beginning with `where`, where it is no such label.

    An object whose class is below 0 is padding, as MXNet's iterators write it, and is left out.
    """
    if len(labels) < 2 or not np.isfinite(labels).all():
        raise DataError(
            f"{where}: {len(labels)} numbers as label are no detection label (header width, object width, objects)."
        )
    if labels[0] != int(labels[0]) or labels[1] != int(labels[1]) or labels[0] < 2 or labels[1] < 5:
        raise DataError(
            f"{where}: its label begins {labels[0]:g}, {labels[1]:g}; a detection label begins with the width of its header "
            "(2 or more) and of an object (5 or more)."
        )
    header, width = int(labels[0]), int(labels[1])
    count, left = divmod(len(labels) - header, width)
    if count < 0 or left:
        raise DataError(
            f"{where}: its label has {len(labels)} numbers, which is not {header} of the header and {width} for each object."
        )
    objects = labels[header:].reshape(count, width)
    objects = objects[objects[:, 0] >= 0]
    wrong = (objects[:, 0] != np.floor(objects[:, 0])) | (objects[:, 0] > _MOST_CLASS)
    if wrong.any():
        raise DataError(
            f"{where}: an object's class is {objects[wrong][0, 0]:g}, not a whole number up to {_MOST_CLASS:,}."
        )
    return Objects(
        objects[:, 1:5].astype(np.float32), objects[:, 0].astype(np.int64), objects[:, 5:].astype(np.float32)
    )
