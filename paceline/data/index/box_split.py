"""A data set of boxes, opened; the one table between the annotations' category ids and the classes 1..K; masks as run lengths.

Letters: N images of one split, M objects   K classes, 1..K (0 is the background everywhere inside)
    P polygon coordinates   Q polygons   R runs of run-length encoded masks
Class k is the k-th category by ascending id: ids may have holes, begin anywhere, and be in any order in the file.
All arrays are memory-mapped; no Python object exists for an image or an object (see data/index/index.py).
For masks, polygons are rasterized as COCO's tools do it, at the photo's own size, and the polygons of one object are merged; run
lengths stay as they are. hotcoco does it, to the same strings as pycocotools (tests/oracle/test_mask_pycocotools.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from paceline._utils.errors import DataError
from paceline.config.resnet import Exif
from paceline.data.index.index import Index, open_split
from paceline.data.index.manifest import Manifest, repeat_command
from paceline.data.rle import RLE, compress, concatenated_ranges

# Beside the record arrays of data/index/index.py: array -> dtype. Rows of the first group are images, of the second objects.
IMAGE_ARRAYS = {"image_ids": np.int64, "object_starts": np.int64}
OBJECT_ARRAYS = {
    "boxes": np.float64,
    "classes": np.int32,
    "crowd": np.uint8,
    "areas": np.float64,
    "annotation_ids": np.int64,
    "usable": np.uint8,
}
MASK_ARRAYS = {
    "polygon_points": np.float64,
    "polygon_starts": np.int64,
    "object_polygons": np.int64,
    "rle_counts": np.uint32,
    "object_rles": np.int64,
}
BOX_ARRAYS = {**IMAGE_ARRAYS, **OBJECT_ARRAYS, **MASK_ARRAYS}


@dataclass(frozen=True)
class ImageObjects:
    """The objects of one image: views of n rows. `first` is the row of the first of them in the split."""

    first: int
    boxes: np.ndarray  # (n, 4) float64 x, y, width, height in pixels, as annotated
    classes: np.ndarray  # (n,) int32, 1..K
    crowd: np.ndarray  # (n,) uint8
    areas: np.ndarray  # (n,) float64 square pixels, as annotated
    annotation_ids: np.ndarray  # (n,) int64
    usable: np.ndarray  # (n,) uint8, 1 where training may use it


@dataclass(frozen=True)
class BoxSplit:
    """One split, opened. Objects of image i are rows object_starts[i]:object_starts[i + 1]; an image may have none."""

    index: Index  # reads the bytes: index.read(i), index.name(i)
    names: tuple[str, ...]  # of class k: names[k - 1]
    category_ids: np.ndarray  # (K,) int64, ascending: class k is category_ids[k - 1]
    image_ids: np.ndarray  # (N,) int64, the annotations'; unique
    heights: np.ndarray  # (N,) int32 pixels, in the frame that it was opened in: as stored, or as shown
    widths: np.ndarray  # (N,) int32
    object_starts: np.ndarray  # (N+1,) int64
    boxes: np.ndarray  # (M, 4) float64 x, y, width, height in pixels, as annotated; zeros where that was not finite
    classes: np.ndarray  # (M,) int32, 1..K
    crowd: np.ndarray  # (M,) uint8
    areas: np.ndarray  # (M,) float64 square pixels, as annotated
    annotation_ids: np.ndarray  # (M,) int64
    usable: np.ndarray  # (M,) uint8: finite, width and height above 0, some of it inside the image
    polygon_points: np.ndarray  # (P,) float64 x0 y0 x1 y1 ...
    polygon_starts: np.ndarray  # (Q+1,) int64 into polygon_points
    object_polygons: np.ndarray  # (M+1,) int64 into the polygons
    rle_counts: np.ndarray  # (R,) uint32 runs, column by column, the first of background
    object_rles: np.ndarray  # (M+1,) int64 into rle_counts; empty where the mask is no RLE

    def __len__(self) -> int:
        return len(self.image_ids)

    @property
    def num_classes(self) -> int:
        """K, without the background."""
        return len(self.names)

    def objects(self, i: int) -> ImageObjects:
        """The objects of image i, crowd regions and unusable ones among them."""
        first, last = int(self.object_starts[i]), int(self.object_starts[i + 1])
        return ImageObjects(first, **{name: getattr(self, name)[first:last] for name in OBJECT_ARRAYS})

    def polygons(self, row: int) -> list[np.ndarray]:
        """The polygons of one object (row of the split), each (points, 2) float64 x, y in pixels; [] for none."""
        starts = self.polygon_starts[self.object_polygons[row] : self.object_polygons[row + 1] + 1]
        return [self.polygon_points[first:last].reshape(-1, 2) for first, last in pairwise(starts)]

    def rle(self, row: int) -> np.ndarray:
        """The runs of one object's mask, uint32; empty where it has no RLE."""
        return self.rle_counts[self.object_rles[row] : self.object_rles[row + 1]]

    def truth_arrays(self) -> dict[str, np.ndarray]:
        """The ground truth, under the names of models/metrics/coco.py's GroundTruth (less num_classes)."""
        names = ("image_ids", "heights", "widths", "boxes", "classes", "crowd", "areas")
        return {"starts": self.object_starts, **{name: getattr(self, name) for name in names}}


def open_boxes(manifest: Manifest, split: str, exif: Exif = "ignore") -> BoxSplit:
    """Map one split of a data set of boxes.

    exif  whether photos, and so their sizes, are as they are shown or as they are stored
    Raises DataError where the data set is of another kind, has no such split, an array is missing, torn or of another
    shape, or the annotations' sizes fit the other setting of `exif`.
    """
    if manifest.kind != "boxes" or manifest.category_ids is None:
        raise DataError(
            f"{manifest.called}: has class folders without boxes, but a detector requires annotations. Pass a folder with "
            "COCO, Pascal VOC, or YOLO annotations."
        )
    counts = manifest.splits[split].boxes if split in manifest.splits else None
    if counts is not None and counts.exif not in ("", exif):
        rotated = manifest.splits[split].rotated
        photos = "1 image has" if rotated == 1 else f"{rotated:,} images have"
        fit, taken, other = ("shown", "stored", "apply") if exif == "ignore" else ("stored", "shown", "ignore")
        raise DataError(
            f"{manifest.called}: {photos} an EXIF rotation in {split}. The annotations match the images as {fit}, but this "
            f"recipe reads them as {taken}, so boxes would be in wrong positions. Add  --input.exif {other}"
        )
    index = box_index(manifest, split, exif)
    arrays = {name: index.extra.get(name) for name in BOX_ARRAYS}
    lacking = [name for name, array in arrays.items() if array is None or array.dtype != BOX_ARRAYS[name]]
    if lacking:
        raise DataError(
            f"{manifest.folder}: the array {lacking[0]} of {split} is missing in its index. Prepare the data again:  "
            f"{repeat_command(manifest)}"
        )
    result = {name: array for name, array in arrays.items() if array is not None}
    if manifest.relabel is not None:
        result["classes"] = np.array((-1, *manifest.relabel), np.int32)[result["classes"]] + 1
        if not result["classes"].all():  # of crowd regions alone, which no count of objects has
            raise DataError(f"{manifest.called}: has crowd regions of classes that the run does not have. Remove them.")
    return BoxSplit(
        index=index,
        names=manifest.classes,
        category_ids=np.array(manifest.category_ids, np.int64),
        heights=index.heights,
        widths=index.widths,
        **result,
    )


def box_index(manifest: Manifest, split: str, exif: Exif) -> Index:
    """The index of a split of boxes, its sizes and boxes in pixels of the frame of `exif`.

    Pixels are as annotated, and so stay what they are; only YOLO's fractions became pixels of the stored photos.
    Raises DataError as `open_split` and `Index.as_shown` do.
    """
    stored = open_split(manifest, split)
    if exif == "ignore":
        return stored
    index = stored.as_shown()
    if (manifest.request or {}).get("layout") != "yolo" or np.array_equal(index.widths, stored.widths):
        return index
    scale = np.stack([index.widths / stored.widths, index.heights / stored.heights], axis=1)  # (N, 2)
    objects = np.repeat(scale, np.diff(index.extra["object_starts"]), axis=0)  # (M, 2)
    points = np.repeat(objects, np.diff(index.extra["polygon_starts"][index.extra["object_polygons"]]) // 2, axis=0)
    boxes = index.extra["boxes"] * np.tile(objects, 2)
    polygon_points = index.extra["polygon_points"] * points.reshape(-1)
    return replace(index, extra={**index.extra, "boxes": boxes, "polygon_points": polygon_points})


def make_class_table(names: Mapping[int, str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """-> category ids (K,) int64, ascending, and the names in that order: class k is entry k-1 of both."""
    ids = sorted(names)
    return np.array(ids, np.int64), tuple(names[category] for category in ids)


def map_category_ids(category_ids: np.ndarray, categories: np.ndarray) -> np.ndarray:
    """(M,) category ids -> (M,) int32 classes 1..K; 0 for an id that is not in the table.

    category_ids  (K,) ascending, as class_table returns them
    """
    at = np.searchsorted(category_ids, categories)
    known = at < len(category_ids)
    known[known] = category_ids[at[known]] == categories[known]
    return np.where(known, at + 1, 0).astype(np.int32)


# Objects whose plain runs are turned into strings at once: a few megabytes of them.
CHUNK = 4096


class ObjectMasks(NamedTuple):
    """The objects of n images, one image after the other."""

    masks: RLE  # M' strings
    known: np.ndarray  # (M',) bool; where an object has no mask, its box, filled, stands in


def has_masks(split: BoxSplit) -> bool:
    """Whether any object of the split has polygons or run lengths."""
    return len(split.polygon_points) > 0 or len(split.rle_counts) > 0


def read_object_masks(split: BoxSplit, numbers: np.ndarray) -> ObjectMasks:
    """The masks of all objects of some images, about 30 microseconds and 100 bytes each.

    numbers  (n,) of the images, in 0..N-1, in any order
    Crowds and objects that training leaves out are among them; rows are those of metrics.coco.subset(truth, numbers).
    """
    parts, known = [RLE.of([])], [np.zeros(0, bool)]
    numbers = np.asarray(numbers, np.int64)
    rows, indices = concatenated_ranges(split.object_starts[numbers], split.object_starts[numbers + 1])
    image_of = numbers[indices]
    polygons, runs = np.diff(split.object_polygons)[rows] > 0, np.diff(split.object_rles)[rows] > 0
    for first in range(0, len(rows), CHUNK):
        chunk = slice(first, first + CHUNK)
        with_runs = np.flatnonzero(runs[chunk] & ~polygons[chunk])
        counts = [split.rle(int(row)) for row in rows[chunk][with_runs]]
        starts = np.cumsum([0, *map(len, counts)])
        flat = np.concatenate([np.zeros(0, np.int64), *counts]).astype(np.int64)
        strings = dict(zip(with_runs.tolist(), compress(flat, starts)))
        of_chunk = enumerate(zip(rows[chunk], image_of[chunk]))
        parts.append(RLE.of([strings.get(at) or _rasterized(split, int(row), int(image)) for at, (row, image) in of_chunk]))
        known.append(polygons[chunk] | runs[chunk])
    return ObjectMasks(RLE.join(parts), np.concatenate(known))


def _rasterized(split: BoxSplit, row: int, image: int) -> bytes:
    """The polygons of an object, or its box, as one string."""
    from hotcoco import mask

    height, width = int(split.heights[image]), int(split.widths[image])
    polygons = [points.reshape(-1).tolist() for points in split.polygons(row)]
    if polygons:
        return mask.merge(mask.fr_py_objects(polygons, height, width))["counts"]
    return mask.fr_bbox(split.boxes[row].tolist(), height, width)["counts"]
