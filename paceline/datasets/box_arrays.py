"""`Annotations` and what is known of the files -> the index's arrays of one split, masks among them, and counts of what is odd.

Letters: N images   M objects   K classes 1..K   P polygon coordinates   Q polygons   R runs
An object has polygons, or an RLE (run-length encoding), or neither. Runs count the image's pixels column by column,
background first. The compressed form is a string: each run a number of 5 bits a character, lowest first, from character
48 on; bit 5 marks that more follow; the sign is the last character's bit 4; from the fourth run on, it is the difference
to the run two before. Source: Lin et al. 2014; the form of the string: rleToString in pycocotools' maskApi.c.

A mask that marks nothing of its object is dropped: all of it outside the photo, shrunk to a point, written as fractions where
pixels are meant, or of another object. A network would learn from it that the object has no pixel.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from paceline.boxes import run_lengths
from paceline.boxes.run_lengths import ranges
from paceline.config.errors import DataError
from paceline.config.printable import short
from paceline.datasets.formats.annotations import Annotations
from paceline.input.outlines import crossings
from paceline.store.box_split import classes_of

# A number of more characters does not fit into 64 bits.
MOST_DIGITS = 12
# x and y of three points: less encloses nothing, and pycocotools takes four numbers for a box.
LEAST_NUMBERS = 6
# Pixels that a side of a box has inside its photo: of a smaller object, a good outline may miss every pixel's middle.
LEAST_SIDE = 2.0
# Pixels between a mask and its box that rounding explains.
ROUNDED = 1.0
# Square pixels: outlines that enclose less are drawn to see whether a pixel is met.
SURE_AREA = 4.0

ErrorOf = Callable[[int, str], Exception]
_NO_RUNS = np.zeros(0, np.uint32)


def box_arrays(
    annotations: Annotations, category_ids: np.ndarray, heights: np.ndarray, widths: np.ndarray
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """-> the arrays of store/box_split.py BOX_ARRAYS, and the fields of BoxCounts that follow from them.

    annotations      of the images that are kept, all of whose categories are in the table
    category_ids     (K,) ascending
    heights, widths  (N,) pixels, of the decoded files
    Objects are put in the order of their images; those of one image keep theirs.
    Raises DataError, naming the annotation, for a mask that does not fit its image.
    """
    number = len(annotations.file_names)
    order = np.argsort(annotations.object_rows, kind="stable")
    rows = annotations.object_rows[order]
    ids = annotations.annotation_ids[order]

    def error_of(row: int, reason: str) -> DataError:
        title = f"{annotations.source}: annotation id {ids[row]} (image {annotations.file_names[rows[row]]})"
        return DataError(f"{title}: {reason}. Correct the file, or export it again.")

    boxes = annotations.boxes[order].reshape(-1, 4)
    finite = np.isfinite(boxes).all(axis=1)
    # Comparisons with NaN are false, so pycocotools would match such a box everywhere; one without area matches nowhere.
    boxes[~finite] = 0.0
    classes = classes_of(category_ids, annotations.categories[order])
    crowd = annotations.crowd[order].astype(np.uint8)
    # (M, 2) width and height of what lies inside the image; not above 0 where nothing does.
    size = np.stack([widths[rows], heights[rows]], axis=1)
    inside = np.minimum(boxes[:, :2] + boxes[:, 2:], size) - np.maximum(boxes[:, :2], 0)
    degenerate = ~finite | (boxes[:, 2:] <= 0).any(axis=1)
    outside = ~degenerate & (inside <= 0).any(axis=1)
    # Annotations are rounded to hundredths: a box that ends a hundredth beyond the border was meant to end there.
    partly = ~degenerate & ~outside & (boxes[:, 2:] - inside > 0.011).any(axis=1)
    areas = annotations.areas[order].astype(np.float64)
    masks, left_out_polygons, polygons_not_finite = mask_arrays(
        [annotations.segmentations[i] for i in order.tolist()], heights[rows], widths[rows], error_of
    )
    none = ~_has_mask(masks)
    empty, beside = useless_masks(masks, boxes, heights[rows], widths[rows])
    if (empty | beside).any():
        masks = without(masks, empty | beside)
    counts = np.bincount(rows, minlength=number)
    # Objects that repeat an earlier one: same image, class and box.
    keys = np.column_stack([rows, classes, boxes])[np.lexsort((*boxes.T, classes, rows))]
    again = (keys[1:] == keys[:-1]).all(axis=1)
    arrays = {
        "image_ids": annotations.image_ids.astype(np.int64),
        "object_starts": starts_of(counts),
        "boxes": boxes,
        "classes": classes,
        "crowd": crowd,
        "areas": np.where(np.isfinite(areas), areas, 0.0),
        "annotation_ids": ids.astype(np.int64),
        "usable": (~degenerate & ~outside).astype(np.uint8),
        **masks,
    }
    numbers = {
        "objects": len(rows),
        "crowd": int(np.count_nonzero(crowd)),
        "degenerate": int(np.count_nonzero(degenerate)),
        "outside": int(np.count_nonzero(outside)),
        "partly_outside": int(np.count_nonzero(partly)),
        "duplicates": int(np.count_nonzero(again)),
        "empty_images": int(np.count_nonzero(counts == 0)),
        "left_out_polygons": left_out_polygons,
        "polygons_not_finite": polygons_not_finite,
        "masks_without_pixel": int(np.count_nonzero(empty)),
        "masks_beside_box": int(np.count_nonzero(beside)),
        "without_mask": 0 if none.all() else int(np.count_nonzero(none & (crowd == 0))),
    }
    return arrays, numbers


def _has_mask(masks: Mapping[str, np.ndarray]) -> np.ndarray:
    """(M,) bool"""
    return (np.diff(masks["object_polygons"]) > 0) | (np.diff(masks["object_rles"]) > 0)


def mask_arrays(
    segmentations: Sequence[Any], heights: np.ndarray, widths: np.ndarray, error_of: ErrorOf
) -> tuple[dict[str, np.ndarray], int, int]:
    """-> the arrays of store/box_split.py MASK_ARRAYS, and how many polygons were left out: too short; not finite.

    segmentations    (M) None | polygons | {"counts": list, str or bytes, "size": [height, width]}
    heights, widths  (M,) pixels, of the image that each object is in
    error_of         (object row, reason) -> the error that is raised for numbers that are none, runs that do not fill the image
    """
    polygons, per_object, runs, left_out, not_finite = [], [], [], 0, 0
    for row, given in enumerate(segmentations):
        kept: list[Any] = []
        run = _NO_RUNS
        if isinstance(given, dict):
            run = _runs(given, int(heights[row]), int(widths[row]), row, error_of)
        elif isinstance(given, list):
            kept = [polygon for polygon in given if isinstance(polygon, list | tuple) and len(polygon) >= LEAST_NUMBERS]
            kept = [polygon for polygon in kept if len(polygon) % 2 == 0]
            left_out += len(given) - len(kept)
            if given and not isinstance(given[0], list | tuple):
                raise error_of(row, "its segmentation is a list of numbers, where a list of polygons is wanted")
        elif given is not None:
            raise error_of(row, f"its segmentation is neither polygons nor run-lengths but {short(given, 40)!r}")
        polygons += kept
        per_object.append(len(kept))
        runs.append(run)
    lengths = np.array([len(polygon) for polygon in polygons], np.int64)
    objects = np.repeat(np.arange(len(segmentations)), per_object)
    points = _points(polygons, int(lengths.sum()), objects, error_of)
    if not np.isfinite(points).all():
        broken = np.unique(np.repeat(np.arange(len(polygons)), lengths)[~np.isfinite(points)])
        points = points[~np.isin(np.repeat(np.arange(len(polygons)), lengths), broken)]
        lengths, objects = np.delete(lengths, broken), np.delete(objects, broken)
        not_finite = len(broken)
    arrays = {
        "polygon_points": points,
        "polygon_starts": starts_of(lengths),
        "object_polygons": starts_of(np.bincount(objects, minlength=len(segmentations))),
        "rle_counts": np.concatenate([_NO_RUNS, *runs]),
        "object_rles": starts_of(np.array([len(run) for run in runs], np.int64)),
    }
    return arrays, left_out, not_finite


def starts_of(counts: np.ndarray) -> np.ndarray:
    """(n,) counts -> (n+1,) int64: rows of entry i are starts[i]:starts[i + 1]."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def decompress(text: bytes) -> np.ndarray:
    """The runs in a compressed RLE string, (n,) int64. Raises ValueError where a character or the end does not fit."""
    parts = np.frombuffer(text, np.uint8).astype(np.int64) - 48
    if not len(parts):
        return parts
    if parts.min() < 0 or parts.max() > 63:
        raise ValueError("a character that no run-length string has")
    last = parts & 32 == 0
    if not last[-1]:
        raise ValueError("it ends within a number")
    ends = np.flatnonzero(last)
    if np.diff(ends, prepend=-1).max() > MOST_DIGITS:
        raise ValueError("a number with too many digits")
    return run_lengths.decompress(run_lengths.RunLengths.of([text]))[0]


def _runs(given: dict[str, Any], height: int, width: int, row: int, error_of: ErrorOf) -> np.ndarray:
    counts, size = given.get("counts"), given.get("size")
    if not isinstance(size, list | tuple) or list(size) != [height, width]:
        raise error_of(row, f"its RLE mask has size {short(size, 40)}, the image has [{height}, {width}]")
    try:
        if isinstance(counts, str | bytes):
            runs = decompress(counts.encode("ascii") if isinstance(counts, str) else counts)
        else:
            if type(counts) is not list or not set(map(type, counts)) <= {int}:
                raise ValueError("its runs are no list of whole numbers")
            runs = np.array(counts, np.int64)
    except (ValueError, TypeError, OverflowError) as error:
        raise error_of(row, f"its RLE mask cannot be read ({error})") from None
    if (runs < 0).any():
        raise error_of(row, f"its RLE mask has a run of {runs.min():,} pixels")
    if (runs > height * width).any() or runs.sum() != height * width:
        raise error_of(row, f"its RLE mask covers {runs.sum():,} pixels, the image has {height * width:,}")
    return runs.astype(np.uint32)


def _points(polygons: list[Any], total: int, objects: np.ndarray, error_of: ErrorOf) -> np.ndarray:
    try:
        # Unlike numpy, array takes no text for a number.
        points = array("d", chain.from_iterable(polygons))
    except (TypeError, OverflowError):
        for row, polygon in zip(objects, polygons):
            for value in polygon:
                if not isinstance(value, int | float):
                    raise error_of(int(row), f"its segmentation holds {short(value)!r}, which is no number") from None
                if isinstance(value, int) and abs(value) > sys.float_info.max:
                    raise error_of(int(row), "its segmentation holds a number that no float can hold") from None
        raise
    return np.frombuffer(points, np.float64) if total else np.zeros(0)


def useless_masks(
    masks: Mapping[str, np.ndarray], boxes: np.ndarray, heights: np.ndarray, widths: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """-> (M,) bool: masks without a pixel of their photo; (M,) bool: others that lie beside their box.

    boxes            (M, 4) x, y, width, height, pixels; where one has no LEAST_SIDE inside the photo, its mask is not judged
    heights, widths  (M,) of each object's photo
    """
    size = np.stack([widths, heights], axis=1).astype(np.float64)
    extents, area = _outline_extents(masks)
    for row in np.flatnonzero(np.diff(masks["object_rles"])).tolist():
        extents[row] = _run_extent(masks["rle_counts"][slice(*masks["object_rles"][row : row + 2])], int(heights[row]))
    inside = np.minimum(extents[:, 2:], size) - np.maximum(extents[:, :2], 0)
    corners = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)
    judged = _has_mask(masks) & (np.minimum(corners[:, 2:], size) - np.maximum(corners[:, :2], 0) >= LEAST_SIDE).all(
        axis=1
    )
    empty = judged & (inside <= 0).any(axis=1)
    over = (extents[:, :2] < -ROUNDED).any(axis=1) | (extents[:, 2:] > size + ROUNDED).any(axis=1)
    # Not `<`: what overflowed is unsure too.
    unsure = judged & ~empty & (np.diff(masks["object_polygons"]) > 0) & (over | ~(area >= SURE_AREA))
    for row in np.flatnonzero(unsure).tolist():
        empty[row] = not _meets_a_pixel(masks, row, int(heights[row]), int(widths[row]))
    gap = np.maximum(extents[:, :2], corners[:, :2]) - np.minimum(extents[:, 2:], corners[:, 2:])
    return empty, judged & ~empty & (gap > ROUNDED).any(axis=1)


def without(masks: Mapping[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays with no mask for objects `rows`, (M,) bool."""
    polygons, runs = np.diff(masks["object_polygons"]), np.diff(masks["object_rles"])
    of_polygon, numbers = np.repeat(rows, polygons), np.diff(masks["polygon_starts"])
    return {
        "polygon_points": masks["polygon_points"][~np.repeat(of_polygon, numbers)],
        "polygon_starts": starts_of(numbers[~of_polygon]),
        "object_polygons": starts_of(np.where(rows, 0, polygons)),
        "rle_counts": masks["rle_counts"][~np.repeat(rows, runs)],
        "object_rles": starts_of(np.where(rows, 0, runs)),
    }


def _outline_extents(masks: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """-> (M, 4) left, top, right, bottom of each object's polygons; (M,) what they enclose, square pixels, overlaps twice."""
    points, starts = masks["polygon_points"].reshape(-1, 2), masks["polygon_starts"] // 2
    number = len(masks["object_polygons"]) - 1
    extents = np.tile([np.inf, np.inf, -np.inf, -np.inf], (number, 1))
    area = np.zeros(number)
    if not len(points):
        return extents, area
    has = np.diff(masks["object_polygons"]) > 0
    first = starts[masks["object_polygons"][:-1][has]]
    extents[has, :2] = np.minimum.reduceat(points, first)
    extents[has, 2:] = np.maximum.reduceat(points, first)
    following = np.arange(1, len(points) + 1)
    following[starts[1:] - 1] = starts[:-1]
    with np.errstate(over="ignore", invalid="ignore"):
        # Relative to each polygon's first corner: products of large coordinates would drown a small area.
        x, y = (points - np.repeat(points[starts[:-1]], np.diff(starts), axis=0)).T
        halves = np.abs(np.add.reduceat(x * y[following] - x[following] * y, starts[:-1])) / 2
        area[has] = np.add.reduceat(halves, masks["object_polygons"][:-1][has])
    return extents, area


def _run_extent(runs: np.ndarray, height: int) -> tuple[float, float, float, float]:
    """left, top, right, bottom of the pixels that run lengths mark, column by column."""
    stops = np.cumsum(runs.astype(np.int64))
    marked = runs[1::2] > 0
    last = stops[1::2][marked] - 1
    first = last + 1 - runs[1::2][marked]
    if not len(first):
        return np.inf, np.inf, -np.inf, -np.inf
    left, right = first // height, last // height
    top, bottom = np.where(left < right, 0, first % height), np.where(left < right, height - 1, last % height)
    return left.min(), top.min(), right.max() + 1, bottom.max() + 1


def _meets_a_pixel(masks: Mapping[str, np.ndarray], row: int, height: int, width: int) -> bool:
    polygons = ranges(masks["object_polygons"][[row]], masks["object_polygons"][[row + 1]])[0]
    starts, stops = masks["polygon_starts"][polygons], masks["polygon_starts"][polygons + 1]
    points = masks["polygon_points"][starts[0] : stops[-1]].reshape(-1, 2)
    return len(crossings(points, (stops - starts) // 2, height, width).columns) > 0
