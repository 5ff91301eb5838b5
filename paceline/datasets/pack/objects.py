"""The objects of a photo as they are packed: COCO's words in a JSON field, or the numbers of MXNet's detection label.

Letters: M objects of one photo
The JSON says all that the index knows, so that what is prepared from it is the same set:
    {"image_id", "file_name", "height", "width", "annotations": [{"id", "category_id", "category", "bbox" (x, y, width, height in
    pixels), "area", "iscrowd", "segmentation" (polygons, or run lengths as COCO's tools write them)}, ...]}
A detection label has classes and boxes alone: crowd regions and boxes that training leaves out would become objects like any
other, so they are left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from paceline.boxes.run_lengths import compress
from paceline.datasets.pack.request import Form
from paceline.datasets.shapes.masks import run_lengths
from paceline.store.box_split import BoxSplit, ImageObjects
from paceline.store.orientation import lies_on_its_side

# Widths of a detection label's header, and of an object: class and corners.
HEADER_WIDTH, OBJECT_WIDTH = 2, 5
# What stands for a photo without objects: MXNet's ImageDetIter ends on a label without any (1.9.1, _parse_label), and takes class -1
# for padding everywhere, as our reader does.
PADDING = (-1.0, 0.0, 0.0, 1.0, 1.0)


def json_field(split: BoxSplit, i: int, name: str, size: tuple[int, int], says_size: bool) -> bytes:
    """The JSON of image i, which is called `name`.

    size       (height, width) in pixels of the photo as it is packed, in the stored frame: boxes and masks are scaled to it
    says_size  whether the annotations' frame is known
    """
    height, width = _shown(split, i, size)
    scale = np.array([width / split.widths[i], height / split.heights[i]])
    found = split.objects(i)
    annotations = []
    for place in range(len(found.boxes)):
        entry: dict[str, Any] = {
            "id": int(found.annotation_ids[place]),
            "category_id": int(split.category_ids[found.classes[place] - 1]),
            "category": split.names[found.classes[place] - 1],
            "bbox": (found.boxes[place] * np.tile(scale, 2)).tolist(),
            "area": float(found.areas[place] * scale.prod()),
            "iscrowd": int(found.crowd[place]),
        }
        mask = _mask(split, found.first + place, i, scale, (height, width))
        annotations.append(entry if mask is None else {**entry, "segmentation": mask})
    record: dict[str, Any] = {"image_id": int(split.image_ids[i]), "file_name": name}
    if says_size:
        record |= {"height": height, "width": width}
    return json.dumps({**record, "annotations": annotations}, separators=(",", ":")).encode()


def detection_label(split: BoxSplit, i: int) -> np.ndarray:
    """(2 + 5 max(1, M),) float32: the widths 2 and 5, then class from 0 and corners as fractions inside the photo, or padding."""
    objects = in_fractions(split, i, in_label(split.objects(i))) - [1, 0, 0, 0, 0]
    said = objects.reshape(-1) if len(objects) else PADDING
    return np.concatenate([[HEADER_WIDTH, OBJECT_WIDTH], said]).astype(np.float32)


def in_fractions(split: BoxSplit, i: int, kept: np.ndarray) -> np.ndarray:
    """(kept objects, 5) float64: class 1..K, then x and y of both corners as fractions inside the photo.

    kept  (M,) bool
    """
    found = split.objects(i)
    corners = np.concatenate([found.boxes[:, :2], found.boxes[:, :2] + found.boxes[:, 2:]], axis=1)[kept]
    fractions = (corners / np.tile([split.widths[i], split.heights[i]], 2)).clip(0.0, 1.0)
    return np.concatenate([found.classes[kept, None], fractions], axis=1)


def in_label(split: BoxSplit | ImageObjects) -> np.ndarray:
    """(objects of the split, or of the image,) bool: those that a detection label can say."""
    return (np.asarray(split.usable) == 1) & (np.asarray(split.crowd) == 0)


def in_example(split: BoxSplit | ImageObjects) -> np.ndarray:
    """(objects,) bool: those that an Example of the detection tools can say, crowd regions among them."""
    return np.asarray(split.usable) == 1


# Form -> what it says of image i as `in_fractions`; WebDataset's JSON says everything.
SAID: dict[Form, Callable[[BoxSplit, int], np.ndarray]] = {
    "recordio": lambda split, i: in_fractions(split, i, in_label(split.objects(i))).astype(np.float32),
    "tfrecord": lambda split, i: in_fractions(split, i, in_example(split.objects(i))).astype(np.float32),
}


def _shown(split: BoxSplit, i: int, size: tuple[int, int]) -> tuple[int, int]:
    """A stored size in the frame that the split was opened in."""
    turned = lies_on_its_side(split.index.orientation(i))
    return (size[1], size[0]) if turned else size


def _mask(split: BoxSplit, row: int, i: int, scale: np.ndarray, size: tuple[int, int]) -> Any:
    if len(runs := split.rle(row)):
        if (scale != 1).any():
            runs = _resized(runs, (int(split.heights[i]), int(split.widths[i])), size)
        counts = compress(runs.astype(np.int64), np.array([0, len(runs)], np.int64))[0]
        return {"size": list(size), "counts": counts.decode()}
    polygons = split.polygons(row)
    return [(points * scale).reshape(-1).tolist() for points in polygons] or None


def _resized(runs: np.ndarray, size: tuple[int, int], wanted: tuple[int, int]) -> np.ndarray:
    """Runs of a mask of `size` (height, width) -> runs of the nearest pixels of a mask of the `wanted` size."""
    inside = np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(size[1], size[0]).T
    rows, columns = (((np.arange(new) + 0.5) * old / new).astype(np.int64) for old, new in zip(size, wanted))
    return np.array(run_lengths(inside[rows][:, columns]), np.int64)
