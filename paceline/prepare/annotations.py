"""What any source of boxes yields (COCO JSON, VOC, YOLO): one split's images and objects, as annotated.

Letters: N images, M objects. Nothing here is sorted, cleaned or renumbered yet; prepare/box_folder.py does that.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Annotations:
    """One split as its source has it. `object_rows` and `boxes` speak of rows in the order of `file_names`."""

    source: Path  # the file or folder that was read, for messages
    images_folder: Path
    file_names: list[str]  # N paths relative to images_folder
    image_ids: np.ndarray  # (N,) int64
    heights: np.ndarray  # (N,) int32 pixels; 0 where the source does not say
    widths: np.ndarray  # (N,) int32
    object_rows: np.ndarray  # (M,) int64 row of the object's image
    boxes: np.ndarray  # (M, 4) float64 x, y, width, height in pixels, as annotated
    categories: np.ndarray  # (M,) int64 the source's ids
    crowd: np.ndarray  # (M,) uint8
    areas: np.ndarray  # (M,) float64 square pixels
    annotation_ids: np.ndarray  # (M,) int64
    segmentations: list[Any]  # (M) None | polygons, each a flat list | {"counts": list, str or bytes, "size": [h, w]}
    names: dict[int, str]  # category id -> name, in the source's order
